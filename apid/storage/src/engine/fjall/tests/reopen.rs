//! Reopening after any end of a process: acknowledged data is present, and only the right identity opens the
//! store.

use std::collections::HashMap;
use std::sync::Arc;

use fjall::PersistMode;
use parking_lot::Mutex;

use super::super::check_unlocked;
use super::super::database::Tables;
use super::super::high_water_mark::{HighWaterMark, MarkValues};
use super::super::layout::{self, META_FORMAT, META_JUMP};
use super::*;

#[tokio::test(flavor = "multi_thread")]
async fn reopened_store_keeps_rows_history_and_revisions() {
    let dir = memory_dir();
    let path = dir.path().join("a/b/store");
    let (mut expected, mut changes, mut compacted) = (Vec::new(), Vec::new(), Revision(0));
    for round in 0..6 {
        let observer = Arc::new(RecordingObserver::default());
        // Small memtables in every other round, to cover rows in tables and rows in journals.
        let memtable_bytes = if round % 2 == 0 { 16 << 20 } else { 64 << 10 };
        let store = FjallStore::open(Options { memtable_bytes, ..options(&path) }, observer.clone()).unwrap();
        assert_eq!(rows(&store).await.unwrap(), expected, "round {round}");
        assert_eq!(store.compacted(), compacted);
        assert_eq!(changes_after(&store, compacted).await.unwrap(), changes, "round {round}");
        assert!(observer.changes().is_empty(), "no change is observed twice");
        expected = churn(&store, round, 200, 700).await;
        changes.extend(observer.changes());
        assert_eq!(store.revision(), Revision(200 * (round + 1)));
        if round == 3 {
            compacted = Revision(500);
            store.compact(compacted).await.unwrap();
            store.maintain().await.unwrap();
            changes.retain(|change| change.revision > compacted);
        }
        // Closing and dropping are equivalent.
        if round % 3 == 0 {
            store.close().await;
        }
    }
}

/// fjall compresses values of 4 KiB or more in journals. A `log` row contains the object key, so that a long
/// key makes a compressed row.
#[tokio::test(flavor = "multi_thread")]
async fn reopen_finds_newest_change_with_any_key_length() {
    let dir = memory_dir();
    for length in [1, 4070, 4074, 4075, 4076, 4090, 4096] {
        let path = dir.path().join(length.to_string());
        let key = "k".repeat(length);
        let store = open(&path).unwrap();
        store.commit(&key, Op::Create(Bytes::from_static(b"v"))).await.unwrap();
        drop(store);
        let store = open(&path).unwrap_or_else(|error| panic!("{length}: {error}"));
        assert_eq!(store.revision(), Revision(1), "{length}");
    }
}

/// The files at the moment of a kill contain every write acknowledged before.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_survive_kill_at_any_moment() {
    let dir = memory_dir();
    let store = Arc::new(open(&dir.path().join("store")).unwrap());
    let acknowledged = Arc::new(Mutex::new(HashMap::new()));
    // Few enough writes to avoid a flush during the copy: a copy during a flush is no consistent snapshot.
    let allowed = Arc::new(tokio::sync::Semaphore::new(0));
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..8 {
        let (store, acknowledged, allowed) = (store.clone(), acknowledged.clone(), allowed.clone());
        writers.spawn(async move {
            for number in 0.. {
                allowed.acquire().await.unwrap().forget();
                let key = format!("{writer}/{number}");
                let value = Bytes::from(vec![b'x'; 10 + number % 3000]);
                match store.commit(&key, Op::Create(value.clone())).await {
                    Ok(committed) => acknowledged.lock().insert(key, (committed.revision, value)),
                    Err(_) => return,
                };
            }
        });
    }
    for kill in 0..10 {
        let least = acknowledged.lock().len() + 50;
        allowed.add_permits(400);
        until("writers continue", async || acknowledged.lock().len() >= least).await;
        let before = acknowledged.lock().clone();
        let copy = dir.path().join(format!("kill-{kill}"));
        copy_store(&dir.path().join("store"), &copy);
        let reopened = open(&copy).unwrap();
        for (key, (revision, value)) in before {
            let row = reopened.get(&key, None).await.unwrap().unwrap();
            assert_eq!((row.revision, row.value), (revision, value), "kill {kill}, key {key}");
        }
        // The copy continues from its revision: no revision is assigned twice.
        let last = reopened.revision();
        let next = reopened.commit("after", Op::Create(Bytes::new())).await.unwrap();
        assert_eq!(next.revision, Revision(last.0 + 1));
    }
    store.close().await;
    allowed.add_permits(8);
    writers.join_all().await;
}

#[tokio::test]
async fn store_opens_only_with_its_identity() {
    let dir = memory_dir();
    open(dir.path()).unwrap().close().await;
    let others = [
        (Identity { preset: "kubernetes".to_owned(), ..identity() }, "`--names svc`"),
        (
            Identity { api_domain: "example.test".to_owned(), ..identity() },
            "`--names svc --api-domain svc.internal`",
        ),
    ];
    for (requested, flags) in others {
        let options = Options { identity: requested.clone(), ..options(dir.path()) };
        let refused = FjallStore::open(options, Arc::new(RecordingObserver::default())).err().unwrap();
        let text = refused.to_string();
        let identities = format!("created with {} and cannot be opened with {requested};", identity());
        assert!(text.contains(&identities), "{text}");
        assert!(text.ends_with(&format!("; start with {flags}")), "{text}");
    }
    open(dir.path()).unwrap().close().await;
}

#[test]
fn identity_text_has_api_domain_if_it_is_not_the_default() {
    for (preset, api_domain, expected) in [
        ("svc", "svc.internal", "names `svc`"),
        ("svc", "example.test", "names `svc` and API domain `example.test`"),
        ("kubernetes", "svc.internal", "names `kubernetes`"),
        ("kubernetes", "example.test", "names `kubernetes` and API domain `example.test`"),
    ] {
        let identity = Identity { preset: preset.to_owned(), api_domain: api_domain.to_owned() };
        assert_eq!(identity.to_string(), expected);
    }
}

#[tokio::test]
async fn second_open_of_locked_store_is_rejected() {
    let dir = memory_dir();
    check_unlocked(dir.path()).unwrap();
    let store = open(dir.path()).unwrap();
    assert!(matches!(open(dir.path()), Err(OpenError::Locked(locked)) if locked == dir.path()));
    assert!(matches!(check_unlocked(dir.path()), Err(OpenError::Locked(locked)) if locked == dir.path()));
    store.close().await;
    check_unlocked(dir.path()).unwrap();
    let store = open(dir.path()).unwrap();
    drop(store);
    open(dir.path()).unwrap();
}

#[tokio::test]
async fn newer_format_version_is_rejected() {
    let dir = memory_dir();
    open(dir.path()).unwrap().close().await;
    write_meta(dir.path(), META_FORMAT, layout::encode_meta_row(META_FORMAT, 0, &7_u32.to_be_bytes()));
    assert!(matches!(open(dir.path()), Err(OpenError::Format { found: 7, known: 1 })));
}

#[tokio::test]
async fn newer_format_of_the_database_is_named_and_is_no_damage() {
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    churn(&store, 1, 5, 10).await;
    store.close().await;
    let version = dir.path().join("fjall/version");
    std::fs::write(&version, b"FJL\x04").unwrap();
    let text = open(dir.path()).map(drop).unwrap_err().to_string();
    assert!(text.contains("format 4 of fjall, which is newer than the known format 3"), "{text}");
    assert!(!text.contains("damaged") && !text.contains("repair"), "{text}");
    std::fs::write(&version, b"FJM\x04").unwrap();
    assert!(corrupt(open(dir.path())).contains("`version` is damaged"));
}

fn write_meta(dir: &Path, name: &[u8], row: Vec<u8>) {
    let tables = Tables::open(&dir.join("fjall"), 1 << 20, None).unwrap();
    let mut batch = tables.database.batch().durability(Some(PersistMode::SyncAll));
    batch.insert(&tables.meta, name, row);
    batch.commit().unwrap();
}

/// The mark is created last. Before its creation there is nothing to lose; later its absence is a loss.
#[tokio::test]
async fn missing_high_water_mark_is_rejected_after_first_write() {
    let dir = memory_dir();
    drop(Tables::open(&dir.path().join("fjall"), 1 << 20, None).unwrap());
    open(dir.path()).unwrap().close().await;
    std::fs::remove_file(dir.path().join("mark")).unwrap();
    let store = open(dir.path()).unwrap();
    store.commit("a", Op::Create(Bytes::new())).await.unwrap();
    store.close().await;
    let whole = std::fs::read(dir.path().join("mark")).unwrap();
    std::fs::remove_file(dir.path().join("mark")).unwrap();
    assert!(corrupt(open(dir.path())).contains("the high-water mark file `mark` is missing"));
    std::fs::write(dir.path().join("mark"), b"torn").unwrap();
    assert!(corrupt(open(dir.path())).contains("mark"));
    std::fs::write(dir.path().join("mark"), whole).unwrap();
    open(dir.path()).unwrap();
}

#[tokio::test]
async fn store_ending_below_high_water_mark_is_rejected() {
    let dir = memory_dir();
    let (now, old) = (dir.path().join("now"), dir.path().join("old"));
    let store = open(&now).unwrap();
    churn(&store, 1, 20, 100).await;
    store.close().await;
    copy_store(&now, &old);
    let store = open(&now).unwrap();
    let expected = churn(&store, 2, 30, 100).await;
    store.close().await;

    let above = dir.path().join("above");
    copy_store(&now, &above);
    std::fs::copy(old.join("mark"), above.join("mark")).unwrap();
    let store = open(&above).unwrap();
    assert_eq!(store.revision(), Revision(50));
    assert_eq!(rows(&store).await.unwrap(), expected);
    drop(store);
    let mark = HighWaterMark::open(&above.join("mark")).unwrap().unwrap();
    assert_eq!(mark.values().revision, 50, "start-up raises the mark to the recovered revision");

    std::fs::copy(now.join("mark"), old.join("mark")).unwrap();
    let reason = corrupt(open(&old));
    assert!(reason.contains("revisions 21 to 50 are missing"), "{reason}");
}

#[tokio::test]
async fn lost_acknowledged_compaction_is_rejected() {
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    churn(&store, 1, 20, 100).await;
    store.compact(Revision(10)).await.unwrap();
    store.close().await;
    let mut mark = HighWaterMark::open(&dir.path().join("mark")).unwrap().unwrap();
    mark.write(MarkValues { compacted: 15, ..mark.values() }).unwrap();
    let reason = corrupt(open(dir.path()));
    assert!(reason.contains("compacted up to revision 15"), "{reason}");
}

/// The store rejects a gap between revisions unless the keyspace `meta` lists the gap as a jump.
#[tokio::test]
async fn revision_gap_is_rejected_unless_listed_as_jump() {
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    churn(&store, 1, 20, 100).await;
    store.close().await;
    let tables = Tables::open(&dir.path().join("fjall"), 1 << 20, None).unwrap();
    let mut batch = tables.database.batch().durability(Some(PersistMode::SyncAll));
    let entry =
        layout::LogEntry { revision: 31, key: "jumped".into(), event: layout::Tag::Created, previous: 0 };
    let key = layout::version_key("jumped", 31);
    batch.insert(&tables.log, layout::log_key(31), layout::encode_entry(&entry));
    batch.insert(&tables.versions, &key, layout::encode_version(&key, 31, Some(b"x")));
    batch.commit().unwrap();
    drop(tables);
    let reason = corrupt(open(dir.path()));
    assert!(reason.contains("revisions 21 to 30 are missing"), "{reason}");

    let name = [META_JUMP, &31_u64.to_be_bytes()].concat();
    write_meta(dir.path(), &name, layout::encode_meta_row(&name, 31, &20_u64.to_be_bytes()));
    let store = open(dir.path()).unwrap();
    assert_eq!(store.revision(), Revision(31));
    let changes = changes_after(&store, Revision(18)).await.unwrap();
    let revisions: Vec<u64> = changes.iter().map(|change| change.revision.0).collect();
    assert_eq!(revisions, [19, 20, 31]);
}

/// fjall creates its first journal before its version file.
#[tokio::test]
async fn interrupted_store_creation_is_completed_on_open() {
    for present in [&[][..], &["0.jnl"], &["0.jnl", "keyspaces"], &["0.jnl", "keyspaces", "version"]] {
        let dir = memory_dir();
        let database = dir.path().join("fjall");
        std::fs::create_dir(&database).unwrap();
        for name in present {
            match *name {
                "keyspaces" => std::fs::create_dir(database.join(name)).unwrap(),
                // The file exists, but nothing is written to it yet.
                name => std::fs::write(database.join(name), vec![0; if name == "0.jnl" { 4096 } else { 0 }])
                    .unwrap(),
            }
        }
        let store = open(dir.path()).unwrap_or_else(|error| panic!("{present:?}: {error}"));
        churn(&store, 1, 5, 10).await;
        store.close().await;
    }
    // After a write, the same state is damage, and no file is removed.
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    churn(&store, 1, 5, 10).await;
    store.close().await;
    std::fs::remove_file(dir.path().join("mark")).unwrap();
    std::fs::remove_file(dir.path().join("fjall/version")).unwrap();
    let reason = corrupt(open(dir.path()));
    assert!(reason.contains("`version` is missing"), "{reason}");
    assert!(dir.path().join("fjall/0.jnl").exists());
}

/// After a kill, the replayed journals fill one memtable. No write follows to seal it.
#[tokio::test(flavor = "multi_thread")]
async fn large_journal_replay_is_flushed_without_write() {
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    churn(&store, 1, 60, 3000).await;
    store.close().await;
    let stalled = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let noted = stalled.clone();
    let small = Options {
        memtable_bytes: 16 << 10,
        on_stall: Arc::new(move |_| noted.store(true, std::sync::atomic::Ordering::SeqCst)),
        ..options(dir.path())
    };
    let store = FjallStore::open(small, Arc::new(RecordingObserver::default())).unwrap();
    assert_eq!(store.stats().revision, 60);
    until("the memtable is flushed", async || store.stats().tables > 0).await;
    store.close().await;
    assert!(!stalled.load(std::sync::atomic::Ordering::SeqCst));
}

/// A full disk has no space for the table of a sealed memtable: reads continue, and the memtable waits.
#[tokio::test(flavor = "multi_thread")]
async fn large_journal_replay_on_full_disk_serves_reads() {
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    let expected = churn(&store, 1, 60, 3000).await;
    store.close().await;
    let full = Options { memtable_bytes: 16 << 10, reserve_bytes: u64::MAX, ..options(dir.path()) };
    let store = FjallStore::open(full, Arc::new(RecordingObserver::default())).unwrap();
    assert!(store.maintain().await.is_err(), "the writer thread has measured the disk");
    assert_eq!((store.stats().tables, store.stats().rotations), (0, 0));
    store.health().unwrap();
    assert_eq!(rows(&store).await.unwrap(), expected);
}
