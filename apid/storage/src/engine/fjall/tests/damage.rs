//! Damaged files: a store is refused, or what it answers is right. Never anything between.

use super::*;
use crate::Change;

/// What a store was before it was damaged.
struct Whole {
    rows: Vec<Row>,
    changes: Vec<Change>,
}

/// Opens a damaged store and reads all of it. Either may fail as corrupt; what is answered must be right.
async fn check(dir: &Path, whole: &Whole, what: &str) -> Outcome {
    let store = match open(dir) {
        Ok(store) => store,
        Err(OpenError::Store(Error::Corrupt(_))) => return Outcome::Refused,
        Err(other) => panic!("{what}: {other:?}"),
    };
    let read = async {
        assert_eq!(rows(&store).await?, whole.rows, "{what}");
        for row in &whole.rows {
            assert_eq!(store.get(&row.key, None).await?.as_ref(), Some(row), "{what}");
        }
        assert_eq!(changes_after(&store, Revision(0)).await?, whole.changes, "{what}");
        Ok(())
    };
    match read.await {
        Ok(()) => Outcome::Harmless,
        Err(Error::Corrupt(_)) => Outcome::Noticed,
        Err(other) => panic!("{what}: {other:?}"),
    }
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Refused,
    Noticed,
    Harmless,
}

/// The part of a journal that was written: fjall makes it longer beforehand.
fn written(path: &Path) -> Vec<u8> {
    let mut journal = std::fs::read(path).unwrap();
    journal.truncate(journal.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    journal
}

/// Cuts what was not written off the journals, so that a thousand copies are quick.
fn shorten_journals(dir: &Path) {
    for file in files(&dir.join("fjall")) {
        if file.extension().is_some_and(|extension| extension == "jnl") {
            let content = written(&file);
            std::fs::write(file, content).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_byte_in_the_journal_is_never_silent() {
    let dir = memory_dir();
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    let seen = Arc::new(Seen::default());
    let store = FjallStore::open(options(&source), seen.clone()).unwrap();
    let rows = churn(&store, 5, 60, 300).await;
    let whole = Whole { rows, changes: seen.changes() };
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
    // What fjall's checksums do not cover, the sequence numbers of batches, does not decide what our rows say.
    assert!(refused > places.len() * 9 / 10, "{refused} of {} were refused", places.len());
}

/// A cut that takes an acknowledged write is refused; one that only takes the write after the mark is the ordinary end
/// of a crash.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_journal_is_refused_unless_only_what_was_not_acknowledged_is_gone() {
    let dir = memory_dir();
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    let store = open(&source).unwrap();
    let before = churn(&store, 5, 20, 300).await;
    let first = written(&source.join("fjall/0.jnl")).len();
    let mark = std::fs::read(source.join("mark")).unwrap();
    store.commit("last", Op::Create(Bytes::from(vec![b'l'; 500]))).await.unwrap();
    store.close().await;
    shorten_journals(&source);
    let journal = written(&source.join("fjall/0.jnl"));
    let end = journal.len();
    for length in (first..end).step_by(7) {
        for (acknowledged, zeros) in [(true, false), (false, false), (false, true)] {
            let _ = std::fs::remove_dir_all(&copy);
            copy_store(&source, &copy);
            let mut cut = journal[..length].to_vec();
            if zeros {
                cut.resize(end + 4096, 0);
            }
            std::fs::write(copy.join("fjall/0.jnl"), cut).unwrap();
            if acknowledged {
                let why = corrupt(open(&copy));
                assert!(why.contains("revisions 21 to 21 are missing"), "{why}");
            } else {
                std::fs::write(copy.join("mark"), &mark).unwrap();
                let store = open(&copy).unwrap();
                assert_eq!(rows(&store).await.unwrap(), before, "cut to {length}");
                let next = store.commit("next", Op::Create(Bytes::new())).await.unwrap();
                assert_eq!(next.revision, Revision(21));
                store.close().await;
                assert_eq!(open(&copy).unwrap().revision(), Revision(21), "cut to {length}");
            }
        }
    }
}

/// Tables, their manifests and all else that fjall keeps.
#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_byte_in_any_file_is_never_silent() {
    let dir = memory_dir();
    let (source, copy) = (dir.path().join("source"), dir.path().join("copy"));
    let small = Options { memtable_bytes: 16 << 10, ..options(&source) };
    let seen = Arc::new(Seen::default());
    let store = FjallStore::open(small, seen.clone()).unwrap();
    let rows = churn(&store, 6, 150, 500).await;
    let whole = Whole { rows, changes: seen.changes() };
    until("memtables are flushed", async || store.stats().sealed_memtables == 0).await;
    assert!(store.stats().tables > 0);
    store.close().await;
    shorten_journals(&source);
    let mut outcomes = Vec::new();
    for file in files(&source.join("fjall")) {
        let name = file.strip_prefix(&source).unwrap();
        let content = std::fs::read(&file).unwrap();
        for at in (0..content.len()).step_by((content.len() / 6).max(1)) {
            let _ = std::fs::remove_dir_all(&copy);
            copy_store(&source, &copy);
            let mut damaged = content.clone();
            damaged[at] ^= 0x10;
            std::fs::write(copy.join(name), damaged).unwrap();
            let what = format!("byte {at} of {}", name.display());
            outcomes.push(check(&copy, &whole, &what).await);
        }
    }
    assert!(outcomes.contains(&Outcome::Refused) && outcomes.contains(&Outcome::Noticed), "{outcomes:?}");
}
