//! Damage inside journals: later batches are read, lost ones are reported, and objects that look like
//! journals stay objects.

use super::super::database::Tables;
use super::super::files::journal::Batches;
use super::super::high_water_mark::{Flushed, HighWaterMark, MarkValues};
use super::super::offline::{self, RepairOutcome};
use super::super::recovery;
use super::*;

/// The end offsets of the batches of a journal, in order.
fn ends(path: &Path) -> Vec<usize> {
    let mut batches = Batches::open(path, 0).unwrap();
    let mut ends = Vec::new();
    while batches.next().unwrap().is_some() {
        ends.push(usize::try_from(batches.end()).unwrap());
    }
    ends
}

/// A closed store with the keys `key/00001` and so on, and its journal.
///
/// Each key has one revision and one batch.
pub(super) struct FilledStore {
    dir: tempfile::TempDir,
    pub(super) journal: Vec<u8>,
    /// Start and end of each batch, by revision; index 0 is the batch of a new store.
    pub(super) batches: Vec<(usize, usize)>,
}

impl FilledStore {
    async fn with_values(values: &[&[u8]]) -> FilledStore {
        let dir = memory_dir();
        let store = open(&dir.path().join("store")).unwrap();
        for (number, value) in values.iter().enumerate() {
            let key = format!("key/{:05}", number + 1);
            store.commit(&key, Op::Create(Bytes::copy_from_slice(value))).await.unwrap();
        }
        store.close().await;
        let path = dir.path().join("store/fjall/0.jnl");
        let ends = ends(&path);
        let journal = std::fs::read(&path).unwrap()[..*ends.last().unwrap()].to_vec();
        let begins = std::iter::once(0).chain(ends.iter().copied());
        let mut batches: Vec<_> = begins.zip(ends.iter().copied()).collect();
        // The last batches are the commits, because fjall writes none of its own here.
        batches.drain(..batches.len() - values.len() - 1);
        FilledStore { dir, journal, batches }
    }

    pub(super) async fn with_keys(count: usize) -> FilledStore {
        FilledStore::with_values(&vec![&[b'v'; 300][..]; count]).await
    }

    pub(super) fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Replaces the content of the journal.
    pub(super) fn write_journal(&self, journal: &[u8]) {
        std::fs::write(self.store().join("fjall/0.jnl"), journal).unwrap();
    }

    /// Repairs the store, and returns the revisions of its objects and the report.
    pub(super) async fn repair(&self) -> (Vec<u64>, offline::Report) {
        let checked = offline::check(&self.store()).unwrap();
        let repaired = offline::repair(&self.store(), Some(&identity()), 0).unwrap();
        let RepairOutcome::Rebuilt { report, kept, objects, .. } = repaired else {
            panic!("sound: {checked}")
        };
        assert_eq!((&report, report.objects), (&checked, objects));
        let store = open(&self.store()).unwrap();
        let revisions = rows(&store).await.unwrap().iter().map(|row| row.revision.0).collect();
        store.close().await;
        std::fs::remove_dir_all(self.store()).unwrap();
        std::fs::rename(kept, self.store()).unwrap();
        (revisions, report)
    }
}

/// Damages each kind of field in a batch.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_journal_batch_loses_only_its_own_changes() {
    let filled = FilledStore::with_keys(30).await;
    let (begin, end) = filled.batches[12];
    // The start tag, the row count, a row tag, a length, a value, the end tag, the checksum. The sequence
    // number has no checksum.
    for at in [begin, begin + 1, begin + 13, begin + 24, begin + 28, begin + 100, end - 13, end - 8, end - 1]
    {
        let mut damaged = filled.journal.clone();
        damaged[at] ^= 0x10;
        filled.write_journal(&damaged);
        let position = format!("byte {} of {}", at - begin, end - begin);
        let reason = corrupt(open(&filled.store()));
        assert!(reason.contains("revisions 12 to 12 are missing"), "{position}: {reason}");
        let (revisions, report) = filled.repair().await;
        assert_eq!(report.lost.revisions, Some((12, 12)), "{position}: {report}");
        let expected: Vec<u64> = (1..=30).filter(|revision| *revision != 12).collect();
        assert_eq!(revisions, expected, "{position}");
        assert!(!report.to_string().contains("harmless"), "{position}: {report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batches_between_two_damaged_places_are_lost_and_reported() {
    let filled = FilledStore::with_keys(30).await;
    let mut damaged = filled.journal.clone();
    for revision in [8, 15] {
        damaged[filled.batches[revision].0 + 100] ^= 1;
    }
    filled.write_journal(&damaged);
    let (revisions, report) = filled.repair().await;
    assert_eq!(report.lost.revisions, Some((8, 15)), "{report}");
    assert_eq!(revisions, (1..8).chain(16..=30).collect::<Vec<u64>>());
    // With the last batch damaged too, no readable batch reaches the end.
    damaged[filled.batches[30].0 + 100] ^= 1;
    filled.write_journal(&damaged);
    let (revisions, report) = filled.repair().await;
    assert_eq!((revisions, report.lost.revisions), ((1..8).collect(), Some((8, 30))), "{report}");
}

/// No checksum covers the sequence number of a batch: the survey corrects it, and every row stays.
#[tokio::test(flavor = "multi_thread")]
async fn wrong_journal_batch_seqno_loses_nothing() {
    let filled = FilledStore::with_keys(20).await;
    for (revision, byte) in [(7, 4), (7, 0), (20, 0), (1, 2)] {
        let mut damaged = filled.journal.clone();
        damaged[filled.batches[revision].0 + 5 + byte] ^= 0x40;
        filled.write_journal(&damaged);
        let report = offline::check(&filled.store()).unwrap();
        assert!(report.lost.is_empty(), "{report}");
        assert_eq!(report.objects, 20);
        if !report.is_sound() {
            assert_eq!(filled.repair().await.0, (1..=20).collect::<Vec<u64>>());
        }
    }
}

/// A client stores journal bytes as an object, and the batch with that object is damaged.
#[tokio::test(flavor = "multi_thread")]
async fn object_with_journal_bytes_is_not_read_as_journal() {
    // A store under the client's control, whose batches have higher sequence numbers than those before the
    // object.
    let forged = FilledStore::with_values(&vec![&b"forged"[..]; 40]).await;
    let batches = &forged.journal[forged.batches[20].0..forged.batches[26].1];
    let first = FilledStore::with_values(&[b"a", b"b", batches, b"d", b"e"]).await;
    let (begin, end) = first.batches[3];
    let inside = (begin..end)
        .find(|at| first.journal[*at..].starts_with(batches))
        .expect("the object is stored uncompressed");
    // Damages each byte before the forged bytes, also in a journal that a power cut ended soon after them.
    for cut in [first.journal.len(), end, inside + batches.len()] {
        for at in begin..inside {
            let mut damaged = first.journal[..cut].to_vec();
            damaged[at] ^= 0x21;
            first.write_journal(&damaged);
            if cut == inside + batches.len() {
                // The write of the object was never acknowledged.
                let mut mark = HighWaterMark::open(&first.store().join("mark")).unwrap().unwrap();
                mark.write(MarkValues { revision: 2, ..mark.values() }).unwrap();
            }
            let report = offline::check(&first.store()).unwrap();
            assert!(
                report.objects <= 5 && report.revision <= 5,
                "byte {} cut to {cut}: {report}",
                at - begin
            );
        }
    }
}

/// Damages an older journal of a store that was killed before a flush. All revisions in it are compacted.
///
/// No gap in the history shows the loss.
#[tokio::test(flavor = "multi_thread")]
async fn damage_of_old_journal_below_compaction_is_reported() {
    let filled = FilledStore::with_keys(40).await;
    let store = open(&filled.store()).unwrap();
    store.compact(Revision(35)).await.unwrap();
    store.close().await;
    let whole = std::fs::read(filled.store().join("fjall/0.jnl")).unwrap();
    let split = filled.batches[20].1;
    let cases: [(&[usize], (u64, u64)); 3] = [(&[10], (10, 10)), (&[10, 20], (10, 20)), (&[20], (20, 20))];
    for (revisions, lost) in cases {
        let mut damaged = whole.clone();
        for revision in revisions {
            damaged[filled.batches[*revision].0 + 100] ^= 1;
        }
        filled.write_journal(&damaged[..split]);
        std::fs::write(filled.store().join("fjall/1.jnl"), &damaged[split..]).unwrap();
        let reason = corrupt(open(&filled.store()));
        assert!(reason.contains(&format!("revisions {} to {} are missing", lost.0, lost.1)), "{reason}");
        let (found, report) = filled.repair().await;
        assert_eq!(report.lost.revisions, Some(lost), "{report}");
        assert_eq!(found, (1..=40).filter(|at| !(lost.0..=lost.1).contains(at)).collect::<Vec<u64>>());
    }
}

/// Damages a journal whose rows are all in tables.
#[tokio::test(flavor = "multi_thread")]
async fn damaged_journal_with_flushed_rows_loses_nothing() {
    let dir = memory_dir();
    let path = dir.path().join("store");
    let store = FjallStore::open(
        Options { memtable_bytes: 16 << 10, ..options(&path) },
        Arc::new(RecordingObserver::default()),
    )
    .unwrap();
    let journal = path.join("fjall/0.jnl");
    churn(&store, 0, 40, 500).await;
    let before = *ends(&journal).last().unwrap();
    let expected = churn(&store, 1, 10, 500).await;
    until("memtables are flushed", async || store.stats().sealed_memtables == 0).await;
    store.close().await;
    // All rows are in tables, as the mark would record after a second.
    let tables = Tables::open(&path.join("fjall"), 1 << 20, None).unwrap();
    for keyspace in tables.keyspaces() {
        keyspace.rotate_memtable_and_wait().unwrap();
    }
    drop(tables);
    let mut mark = HighWaterMark::open(&path.join("mark")).unwrap().unwrap();
    mark.write(MarkValues { flushed: Flushed { log: 50, versions: 50 }, ..mark.values() }).unwrap();
    let mut copied = std::fs::read(&journal).unwrap();
    copied.truncate(before);
    // A crash leaves an obsolete journal and its successor.
    std::fs::write(path.join("fjall/1.jnl"), b"").unwrap();
    let middle = copied.iter().rposition(|byte| *byte != 0).unwrap() / 2;
    copied[middle] ^= 1;
    std::fs::write(&journal, &copied).unwrap();
    let report = offline::check(&path).unwrap();
    if report.is_sound() {
        // No checksum covers the damaged byte.
        return;
    }
    assert!(report.lost.is_empty(), "{report}");
    let reason = corrupt(open(&path));
    assert!(reason.contains("no change is lost"), "{reason}");
    let RepairOutcome::Rebuilt { objects, .. } = offline::repair(&path, None, 0).unwrap() else {
        panic!("{report}")
    };
    assert_eq!(objects, expected.len());
    assert_eq!(rows(&open(&path).unwrap()).await.unwrap(), expected);
}

/// The identity of the store is in its first batch.
#[tokio::test(flavor = "multi_thread")]
async fn store_without_identity_is_repaired_only_with_given_identity() {
    let filled = FilledStore::with_keys(5).await;
    let mut damaged = filled.journal.clone();
    let (_, end) = filled.batches[0];
    damaged[end - 20] ^= 1;
    filled.write_journal(&damaged);
    let report = offline::check(&filled.store()).unwrap();
    assert!(report.identity.is_none() && report.lost.is_empty(), "{report}");
    assert!(matches!(offline::repair(&filled.store(), None, 0), Err(OpenError::MissingIdentity)));
    let left: Vec<_> = std::fs::read_dir(filled.dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    let theirs = Identity { preset: "kubernetes".to_owned(), api_domain: "example.com".to_owned() };
    assert!(offline::repair(&filled.store(), Some(&theirs), 0).is_ok());
    let tables = Tables::open(&filled.store().join("fjall"), 1 << 20, None).unwrap();
    assert_eq!(recovery::identity(&tables).unwrap(), theirs);
}

/// Without the mark, the report must not claim that nothing is lost.
///
/// The acknowledged revisions are unknown in this case.
#[tokio::test(flavor = "multi_thread")]
async fn store_without_high_water_mark_reports_unknown_loss() {
    let filled = FilledStore::with_keys(5).await;
    std::fs::remove_file(filled.store().join("mark")).unwrap();
    let report = offline::check(&filled.store()).unwrap();
    assert_eq!(report.lost.after, Some(5), "{report}");
    assert_eq!(filled.repair().await.0, [1, 2, 3, 4, 5]);
}
