//! Failed writes reopen the database in the process. A stalled store ends the process.

use std::sync::mpsc;

use fjall::{AbstractTree, PersistMode};

use super::super::database::{Tables, map_fjall_error};
use super::super::layout;
use super::*;
use crate::Observer;

/// Renames the folder of the tables of each keyspace, so that flushes fail. Returns the old and the new
/// paths.
fn move_tables_away(database: &Path) -> Vec<(PathBuf, PathBuf)> {
    let keyspaces = std::fs::read_dir(database.join("keyspaces")).unwrap();
    let move_away = |keyspace: std::fs::DirEntry| {
        let tables = keyspace.path().join("tables");
        let away = tables.with_extension("away");
        std::fs::rename(&tables, &away).unwrap();
        (tables, away)
    };
    keyspaces.map(|keyspace| move_away(keyspace.unwrap())).collect()
}

/// fjall halts a batch forever when flushes fail and several memtables wait. The store must reject the batch
/// before it reaches fjall.
#[test]
fn batch_behind_failed_flushes_is_rejected() {
    for _ in 0..20 {
        let dir = memory_dir();
        let tables = Tables::open(dir.path(), 1 << 20, None).unwrap();
        move_tables_away(dir.path());
        let write = |revision: u64| {
            let mut batch = tables.begin_batch(PersistMode::Buffer)?;
            batch.insert(&tables.log, layout::log_key(revision), b"entry".as_slice());
            batch.commit().map_err(|error| map_fjall_error(&error))?;
            tables.log.rotate_memtable().map_err(|error| map_fjall_error(&error))
        };
        let failure = (1..10_000).find_map(|revision| write(revision).err());
        assert!(matches!(failure, Some(Error::Unavailable(_))), "{failure:?}");
    }
}

/// Trimming seals memtables faster than they are flushed, and then the flushes fail.
#[tokio::test(flavor = "multi_thread")]
async fn trim_behind_failed_flushes_is_rejected() {
    const REVISIONS: u64 = 8 * 1024;
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    churn(&store, 1, REVISIONS, 10).await;
    store.close().await;
    let small = Options { memtable_bytes: 4 << 10, ..options(dir.path()) };
    let store = Arc::new(FjallStore::open(small, Arc::new(RecordingObserver::default())).unwrap());
    // The end of a failed test does not wait for a halted writer.
    std::mem::forget(store.clone());
    let tables = store.state.tables_if_open().unwrap();
    until("memtables are flushed", async || {
        let written = [&tables.log, &tables.versions];
        written.iter().all(|keyspace| keyspace.tree.active_memtable().is_empty())
            && tables.sealed_memtables() == 0
    })
    .await;
    store.compact(Revision(REVISIONS)).await.unwrap();
    let folder = tables.versions.path().join("tables");
    std::fs::rename(&folder, folder.with_extension("away")).unwrap();
    let trim = {
        let _delayed_flush = tables.versions.tree.get_flush_lock();
        let store = store.clone();
        let trim = tokio::spawn(async move { store.maintain().await });
        while tables.sealed_memtables() < 4 {
            assert!(!trim.is_finished(), "the trim seals too few memtables");
            std::thread::sleep(Duration::from_millis(1));
        }
        trim
    };
    drop(tables);
    let outcome =
        tokio::time::timeout(Duration::from_secs(60), trim).await.expect("the writer is not halted");
    let outcome = outcome.unwrap();
    assert!(matches!(outcome, Err(Error::Unavailable(_))), "{outcome:?}");
    store.close().await;
}

/// Flushing fails because the directory of tables is renamed, as on a broken disk. The failure poisons fjall.
#[tokio::test(flavor = "multi_thread")]
async fn failed_write_reopens_database_without_restart() {
    let dir = memory_dir();
    let (clock, observer) = (clock(), Arc::new(RecordingObserver::default()));
    let options = Options { memtable_bytes: 64 << 10, clock: clock.clone(), ..options(dir.path()) };
    let store = FjallStore::open(options, observer.clone()).unwrap();
    churn(&store, 1, 50, 100).await;
    let away = move_tables_away(&dir.path().join("fjall"));
    let mut acknowledged = std::collections::HashMap::new();
    let mut number = 0;
    let refused = loop {
        number += 1;
        let key = format!("during/{number}");
        match store.commit(&key, Op::Create(Bytes::from(vec![b'x'; 4000]))).await {
            Ok(committed) => acknowledged.insert(key, committed.revision),
            Err(error) => break error,
        };
        assert!(number < 5000, "the failure was never detected");
    };
    assert!(matches!(refused, Error::Unavailable(_)), "{refused:?}");
    for (tables, aside) in &away {
        std::fs::rename(aside, tables).unwrap();
    }
    until("the database is reopened", async || {
        clock.advance(Duration::from_secs(1));
        let _ = store.maintain().await;
        number += 1;
        let key = format!("during/{number}");
        match store.commit(&key, Op::Create(Bytes::new())).await {
            Ok(committed) => acknowledged.insert(key, committed.revision).is_none(),
            Err(error) => {
                assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
                false
            }
        }
    })
    .await;
    assert!(store.health().is_ok());
    crate::conformance::check_history(&observer.changes());
    for (key, revision) in &acknowledged {
        assert_eq!(store.get(key, None).await.unwrap().unwrap().revision, *revision, "{key}");
    }
    let found = rows(&store).await.unwrap();
    store.close().await;
    let store = open(dir.path()).unwrap();
    assert_eq!(rows(&store).await.unwrap(), found);
}

/// A reopen must not truncate a journal at a damage: a repair can salvage the acknowledged batches behind it.
#[tokio::test(flavor = "multi_thread")]
async fn reopen_with_damaged_journal_keeps_its_bytes() {
    let dir = memory_dir();
    let clock = clock();
    let options = Options { memtable_bytes: 64 << 10, clock: clock.clone(), ..options(dir.path()) };
    let store = FjallStore::open(options, Arc::new(RecordingObserver::default())).unwrap();
    let database = dir.path().join("fjall");
    let away = move_tables_away(&database);
    let rng = SeededRng::new(1);
    let create = async |number: u32| {
        // Random bytes, which fjall does not compress.
        let value = std::iter::repeat_with(|| rng.bits().to_le_bytes()).flatten().take(4000);
        store.commit(&format!("{number}"), Op::Create(value.collect::<Vec<u8>>().into())).await
    };
    let mut numbers = 0..5000;
    while create(numbers.next().expect("the failure is detected")).await.is_ok() {}
    for (tables, aside) in &away {
        std::fs::rename(aside, tables).unwrap();
    }
    let journal = database.join("0.jnl");
    let mut damaged = std::fs::read(&journal).unwrap();
    damaged[30_000] ^= 1;
    std::fs::write(&journal, &damaged).unwrap();
    clock.advance(Duration::from_secs(1));
    let refused = create(0).await;
    assert!(matches!(refused, Err(Error::Corrupt(_))), "{refused:?}");
    assert!(std::fs::read(&journal).unwrap() == damaged, "the reopen changed the journal");
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_writer_calls_on_stall_once_with_reason() {
    let dir = memory_dir();
    let clock = clock();
    let observer = Arc::new(RecordingObserver::default());
    let release = observer.block_next_batch();
    let (report, reports) = mpsc::channel();
    let options = Options {
        clock: clock.clone(),
        stall_after: Duration::from_secs(60),
        on_stall: Arc::new(move |reason| report.send(reason.to_owned()).unwrap()),
        ..options(dir.path())
    };
    let store = Arc::new(FjallStore::open(options, observer).unwrap());
    let writing = tokio::spawn({
        let store = store.clone();
        async move { store.commit("a", Op::Create(Bytes::new())).await }
    });
    until("writer is observing", async || store.state.durable.load(std::sync::atomic::Ordering::SeqCst) == 1)
        .await;
    assert_eq!(store.revision(), Revision(0), "a revision is published only after the observer returns");
    clock.advance(Duration::from_secs(61));
    let reason = tokio::task::spawn_blocking(move || reports.recv_timeout(Duration::from_secs(60)));
    let reason = reason.await.unwrap().unwrap();
    assert!(reason.contains("the storage writer thread has made no progress for 60 s"), "{reason}");
    drop(release);
    writing.await.unwrap().unwrap();
    store.close().await;
}

/// A panic of the writer thread, here in the observer, closes the store, and no call waits forever.
#[tokio::test(flavor = "multi_thread")]
async fn writer_thread_panic_closes_store_without_hanging_callers() {
    struct PanickingObserver;
    impl Observer for PanickingObserver {
        fn observe(&self, _: &[Change]) {
            panic!("injected panic");
        }
    }
    let dir = memory_dir();
    let store = FjallStore::open(options(dir.path()), Arc::new(PanickingObserver)).unwrap();
    let mut watch = store.watch("", Revision(0)).await.unwrap();
    for _ in 0..2 {
        let refused = store.commit("a", Op::Create(Bytes::new())).await;
        assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
    }
    assert!(matches!(watch.next().await, Err(Error::Unavailable(_))));
    assert!(store.health().is_err());
    store.close().await;
    drop(store);
    let store = open(dir.path()).unwrap();
    assert_eq!(store.revision(), Revision(1), "the commit with the unknown outcome was written");
}
