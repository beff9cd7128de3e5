//! Damaged files: a store is rejected, or returns correct data.

use super::super::offline;
use super::*;
use crate::Change;

/// The content of a store before the damage.
struct StoreContent {
    rows: Vec<Row>,
    changes: Vec<Change>,
}

/// Opens and reads a damaged store. Opening or reading may fail as corrupt, but returned data must be
/// correct.
async fn check(dir: &Path, expected: &StoreContent, damage: &str) -> Outcome {
    let store = match open(dir) {
        Ok(store) => store,
        Err(OpenError::Store(Error::Corrupt(_))) => return Outcome::Refused,
        Err(other) => panic!("{damage}: {other:?}"),
    };
    let read = async {
        assert_eq!(rows(&store).await?, expected.rows, "{damage}");
        for row in &expected.rows {
            assert_eq!(store.get(&row.key, None).await?.as_ref(), Some(row), "{damage}");
        }
        assert_eq!(changes_after(&store, Revision(0)).await?, expected.changes, "{damage}");
        Ok(())
    };
    match read.await {
        Ok(()) => Outcome::Harmless,
        Err(Error::Corrupt(_)) => Outcome::Noticed,
        Err(other) => panic!("{damage}: {other:?}"),
    }
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Refused,
    Noticed,
    Harmless,
}

/// The written part of a journal, without the preallocated zeros.
fn written(path: &Path) -> Vec<u8> {
    let mut journal = std::fs::read(path).unwrap();
    journal.truncate(journal.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    journal
}

/// Truncates the preallocated part of the journals, to make a thousand copies fast.
fn shorten_journals(dir: &Path) {
    for file in files(&dir.join("fjall")) {
        if file.extension().is_some_and(|extension| extension == "jnl") {
            let content = written(&file);
            std::fs::write(file, content).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn flipped_journal_byte_is_rejected_or_harmless() {
    let dir = memory_dir();
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    let observer = Arc::new(RecordingObserver::default());
    let store = FjallStore::open(options(&source), observer.clone()).unwrap();
    let rows = churn(&store, 5, 60, 300).await;
    let whole = StoreContent { rows, changes: observer.changes() };
    store.close().await;
    shorten_journals(&source);
    let journal = written(&source.join("fjall/0.jnl"));
    let mut refused = 0;
    let places: Vec<usize> = (0..journal.len()).step_by(journal.len() / 120).collect();
    for at in &places {
        let _ = std::fs::remove_dir_all(&copy);
        copy_store(&source, &copy);
        let mut damaged = journal.clone();
        damaged[*at] ^= 0x41;
        std::fs::write(copy.join("fjall/0.jnl"), damaged).unwrap();
        if check(&copy, &whole, &format!("byte {at}")).await == Outcome::Refused {
            refused += 1;
        }
    }
    // Flipped sequence numbers, which fjall's checksums do not cover, do not change our rows.
    assert!(refused > places.len() * 9 / 10, "{refused} of {} damaged stores were rejected", places.len());
}

/// A closed store whose journal ends with a batch of one change, at revision 21.
struct LastBatch {
    /// The rows without the batch.
    rows: Vec<Row>,
    /// The high-water mark before the batch was acknowledged.
    unacknowledged: Vec<u8>,
    journal: Vec<u8>,
    /// Offset of the batch in the journal.
    begin: usize,
}

impl LastBatch {
    /// Writes the store in a directory.
    async fn write(dir: &Path) -> LastBatch {
        let store = open(dir).unwrap();
        let rows = churn(&store, 5, 20, 300).await;
        let begin = written(&dir.join("fjall/0.jnl")).len();
        let unacknowledged = std::fs::read(dir.join("mark")).unwrap();
        store.commit("last", Op::Create(Bytes::from(vec![b'l'; 500]))).await.unwrap();
        store.close().await;
        shorten_journals(dir);
        LastBatch { rows, unacknowledged, journal: written(&dir.join("fjall/0.jnl")), begin }
    }

    /// Checks that a store without the acknowledgement opens without the batch, and accepts writes.
    async fn check_discarded(&self, dir: &Path, damage: &str) {
        std::fs::write(dir.join("mark"), &self.unacknowledged).unwrap();
        let store = open(dir).unwrap_or_else(|error| panic!("{damage}: {error}"));
        assert_eq!(rows(&store).await.unwrap(), self.rows, "{damage}");
        let next = store.commit("next", Op::Create(Bytes::new())).await.unwrap();
        assert_eq!(next.revision, Revision(21), "{damage}");
        store.close().await;
        assert_eq!(open(dir).unwrap().revision(), Revision(21), "{damage}");
    }
}

/// A truncation that loses an acknowledged write is rejected. A truncation of only the unacknowledged write
/// is a normal crash.
#[tokio::test(flavor = "multi_thread")]
async fn truncated_journal_is_rejected_if_acknowledged_writes_are_lost() {
    let dir = memory_dir();
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    let last = LastBatch::write(&source).await;
    let end = last.journal.len();
    for length in (last.begin..end).step_by(7) {
        for (acknowledged, zeros) in [(true, false), (false, false), (false, true)] {
            let _ = std::fs::remove_dir_all(&copy);
            copy_store(&source, &copy);
            let mut cut = last.journal[..length].to_vec();
            if zeros {
                cut.resize(end + 4096, 0);
            }
            std::fs::write(copy.join("fjall/0.jnl"), cut).unwrap();
            if acknowledged {
                let reason = corrupt(open(&copy));
                assert!(reason.contains("revisions 21 to 21 are missing"), "{reason}");
            } else {
                last.check_discarded(&copy, &format!("cut to {length}")).await;
            }
        }
    }
}

/// A power cut can lose any sector of an unsynced batch, also from its middle. Such a batch was never
/// acknowledged, and the store opens without it. An acknowledged batch that is torn is a loss.
#[tokio::test(flavor = "multi_thread")]
async fn torn_batch_is_discarded_only_if_unacknowledged() {
    let dir = memory_dir();
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    let last = LastBatch::write(&source).await;
    let end = last.journal.len();
    for at in (last.begin..end).step_by(7) {
        for acknowledged in [true, false] {
            let _ = std::fs::remove_dir_all(&copy);
            copy_store(&source, &copy);
            let mut torn = last.journal.clone();
            torn[at..end.min(at + 64)].fill(0);
            std::fs::write(copy.join("fjall/0.jnl"), torn).unwrap();
            if acknowledged {
                let reason = corrupt(open(&copy));
                assert!(reason.contains("revisions 21 to 21 are missing"), "torn at {at}: {reason}");
            } else {
                last.check_discarded(&copy, &format!("torn at {at} of {}..{end}", last.begin)).await;
            }
        }
    }
}

/// Offsets of a file to flip: all of a small file, some of a larger one. `FLIPS` sets their number.
fn places(size: usize, random: &SeededRng) -> Vec<usize> {
    let flips = std::env::var("FLIPS").map_or(10, |flips| flips.parse().unwrap());
    if size <= flips.max(120) {
        return (0..size).collect();
    }
    // Offsets near the start and the end of the file, where lengths and checksums are, and random offsets.
    let edge = [0, 4, size - 1, size - 20];
    let others = std::iter::repeat_with(|| (random.bits() % size as u128) as usize);
    edge.into_iter().chain(others.take(flips)).collect()
}

/// The bytes of all files below a directory.
fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    files(dir).into_iter().map(|file| (file.clone(), std::fs::read(file).unwrap())).collect()
}

/// Damages every file of the store: fjall's files and the mark.
///
/// A damaged store is rejected before any file changes. A rejected store is repairable, and the report names
/// all missing data.
#[tokio::test(flavor = "multi_thread")]
async fn flipped_byte_in_any_file_is_harmless_or_rejected_with_loss_report() {
    let seed = std::env::var("FLIP_SEED").map_or(6, |seed| seed.parse().unwrap());
    println!("FLIP_SEED={seed}");
    let random = SeededRng::new(seed);
    let dir = memory_dir();
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    let small = Options { memtable_bytes: 16 << 10, ..options(&source) };
    let observer = Arc::new(RecordingObserver::default());
    let store = FjallStore::open(small, observer.clone()).unwrap();
    let mut rows = churn(&store, seed, 150, 500).await;
    until("memtables are flushed", async || store.stats().sealed_memtables == 0).await;
    store.compact(Revision(60)).await.unwrap();
    store.maintain().await.unwrap();
    rows = churn(&store, seed + 1, 20, 5000).await.into_iter().chain(rows.drain(..0)).collect();
    let mut changes = observer.changes();
    changes.retain(|change| change.revision > Revision(60));
    let whole = StoreContent { rows, changes };
    until("memtables are flushed", async || store.stats().sealed_memtables == 0).await;
    assert!(store.stats().tables > 0);
    store.close().await;
    shorten_journals(&source);
    assert!(offline::check(&source).unwrap().is_sound(), "{}", offline::check(&source).unwrap());
    let (mut refused, mut harmless, mut repaired) = (0, 0, 0);
    for (file, content) in contents(&source) {
        let name = file.strip_prefix(&source).unwrap();
        for at in places(content.len(), &random) {
            let _ = std::fs::remove_dir_all(&copy);
            copy_store(&source, &copy);
            let mut damaged = content.clone();
            damaged[at] ^= 1 << (random.bits() % 8);
            std::fs::write(copy.join(name), damaged).unwrap();
            let what = format!("FLIP_SEED={seed}: byte {at} of {}", name.display());
            let before = contents(&copy);
            match open(&copy) {
                Ok(store) => {
                    let found = async {
                        assert_eq!(self::rows(&store).await?, whole.rows, "{what}");
                        assert_eq!(changes_after(&store, Revision(60)).await?, whole.changes, "{what}");
                        Ok::<(), Error>(())
                    };
                    found.await.unwrap_or_else(|error| panic!("{what}: opened, but a read failed: {error}"));
                    harmless += 1;
                }
                Err(OpenError::Store(Error::Corrupt(reason))) => {
                    assert!(
                        reason.contains("revision") || reason.contains("no change is lost"),
                        "{what}: {reason}"
                    );
                    let mut after = contents(&copy);
                    after.retain(|(file, _)| file.file_name().unwrap() != "lock");
                    let mut before = before;
                    before.retain(|(file, _)| file.file_name().unwrap() != "lock");
                    assert!(before == after, "{what}: rejected, but the files changed");
                    refused += 1;
                    if refused % 4 == 0 {
                        check_repair(&copy, &whole, &what).await;
                        repaired += 1;
                    }
                }
                Err(other) => panic!("{what}: {other:?}"),
            }
        }
    }
    println!("{refused} refused, {repaired} of them repaired, {harmless} harmless");
    assert!(refused > 100 && harmless > 10 && repaired > 10);
}

/// Repairs a rejected store: present data is correct, and the report names all missing data.
async fn check_repair(dir: &Path, whole: &StoreContent, what: &str) {
    let report = offline::check(dir).unwrap();
    assert!(!report.is_sound(), "{what}: {report}");
    let offline::RepairOutcome::Rebuilt { report, revision, objects, kept } =
        offline::repair(dir, Some(&identity()), 0).unwrap()
    else {
        panic!("{what}: the survey found no damage");
    };
    let store = open(dir).unwrap_or_else(|error| panic!("{what}: the repaired store is rejected: {error}"));
    let found = rows(&store).await.unwrap();
    assert_eq!((found.len(), store.revision(), store.compacted()), (objects, revision, revision), "{what}");
    let lost = &report.lost;
    for row in &whole.rows {
        if found.contains(row) {
            continue;
        }
        let named = lost.keys.iter().any(|key| **key == *row.key)
            || lost.between.iter().any(|(after, before)| {
                after.as_ref().is_none_or(|after| **after <= *row.key)
                    && before.as_ref().is_none_or(|before| *row.key <= **before)
            })
            || lost.revisions.is_some_and(|(first, last)| (first..=last).contains(&row.revision.0));
        assert!(named, "{what}: {row:?} is missing but not reported in {report}");
    }
    for row in &found {
        let known = whole.rows.contains(row) || !lost.is_empty();
        assert!(known, "{what}: {row:?} is an old version");
    }
    store.close().await;
    std::fs::remove_dir_all(kept).unwrap();
}
