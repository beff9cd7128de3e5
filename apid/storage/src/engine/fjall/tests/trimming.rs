//! History is trimmed after its retention and its space is freed; current rows stay.

use fjall::AbstractTree;

use super::super::layout;
use super::*;

const RETENTION: Duration = Duration::from_secs(300);

/// The content of the keyspaces: the number of `log` rows and the keys in `versions`.
fn stored_rows(store: &FjallStore) -> (usize, Vec<String>) {
    let tables = store.state.tables_if_open().unwrap();
    let log = tables.log.iter().count();
    let versions = tables.versions.iter().map(|guard| {
        let key = guard.key().unwrap();
        let (head, _) = layout::split_version_key(&key).unwrap();
        layout::key_of_head(head).unwrap().to_string()
    });
    (log, versions.collect())
}

#[tokio::test(flavor = "multi_thread")]
async fn trimming_after_retention_keeps_only_current_rows() {
    let dir = memory_dir();
    let clock = clock();
    let options = Options { history_retention: RETENTION, clock: clock.clone(), ..options(dir.path()) };
    let store = FjallStore::open(options, Arc::new(RecordingObserver::default())).unwrap();
    let expected = churn(&store, 3, 2500, 50).await;
    store.maintain().await.unwrap();
    clock.advance(RETENTION - Duration::from_secs(1));
    store.maintain().await.unwrap();
    assert_eq!(store.compacted(), Revision(0), "history is retained for the whole retention");
    let (log, versions) = stored_rows(&store);
    assert_eq!((log, versions.len()), (2500, 2500));
    clock.advance(Duration::from_secs(1));
    store.maintain().await.unwrap();
    assert_eq!(store.compacted(), Revision(2500));
    assert_eq!(store.stats().trimmed, 2500);
    let (_, versions) = stored_rows(&store);
    let keys: Vec<String> = expected.iter().map(|row| row.key.to_string()).collect();
    assert_eq!(versions, keys, "one version of each live key, and no tombstone");
    assert_eq!(rows(&store).await.unwrap(), expected);
    let old = store.get("key/00", Some(Revision(2499))).await;
    assert!(matches!(old, Err(Error::Compacted { .. })));
    store.close().await;
    let store = open(dir.path()).unwrap();
    assert_eq!((store.revision(), store.compacted()), (Revision(2500), Revision(2500)));
    assert_eq!(rows(&store).await.unwrap(), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn leased_history_is_readable_until_the_lease_ends() {
    let dir = memory_dir();
    let clock = clock();
    // With a quota of 0 the store is full, and compacts history after five seconds instead of the retention.
    let quota = Options { quota_bytes: Some(0), clock: clock.clone(), ..options(dir.path()) };
    let full = Options { history_retention: RETENTION, quota_bytes: None, ..quota.clone() };
    let store = FjallStore::open(full, Arc::new(RecordingObserver::default())).unwrap();
    let first = store.commit("a", Op::Create(Bytes::from_static(b"1"))).await.unwrap().revision;
    let second = store.commit("a", Op::Update(Bytes::from_static(b"2"), first)).await.unwrap().revision;
    store.close().await;
    let store = FjallStore::open(quota, Arc::new(RecordingObserver::default())).unwrap();
    let lease = store.lease_history(second);
    store.commit("a", Op::Delete(second)).await.unwrap();
    let wait = async || {
        for _ in 0..3 {
            store.maintain().await.unwrap();
            clock.advance(Duration::from_secs(6));
        }
        store.maintain().await.unwrap();
    };
    wait().await;
    let row = store.get("a", Some(second)).await.unwrap().unwrap();
    assert_eq!(&row.value[..], b"2");
    drop(lease);
    wait().await;
    let old = store.get("a", Some(second)).await;
    assert!(matches!(old, Err(Error::Compacted { .. })), "{old:?}");
}

/// 40 MB of history over 40 keys, at most a tenth retained: the size of the files does not grow with the
/// writes.
#[tokio::test(flavor = "multi_thread")]
async fn disk_usage_is_limited_by_retained_history() {
    let dir = memory_dir();
    let clock = clock();
    let options = Options {
        history_retention: RETENTION,
        memtable_bytes: 256 << 10,
        clock: clock.clone(),
        ..options(dir.path())
    };
    let store = FjallStore::open(options, Arc::new(RecordingObserver::default())).unwrap();
    let mut expected = Vec::new();
    for round in 0..10 {
        expected = churn(&store, round, 1000, 4000).await;
        store.maintain().await.unwrap();
        clock.advance(RETENTION);
        store.maintain().await.unwrap();
        assert_eq!(store.stats().trimmed, 1000 * (round + 1));
    }
    until("flushes and compactions end", async || {
        store.maintain().await.unwrap();
        let stats = store.stats();
        stats.sealed_memtables == 0 && stats.table_bytes < 16 << 20
    })
    .await;
    let tables = store.state.tables_if_open().unwrap();
    let entries = tables.log.iter().count();
    assert!(entries < 10_000, "{entries} entries of the log remain after dropping tables");
    assert!(tables.log.tree.table_count() > 0, "the newest table stays");
    drop(tables);
    assert_eq!(rows(&store).await.unwrap(), expected);
    store.close().await;
    let store = open(dir.path()).unwrap();
    assert_eq!(store.revision(), Revision(10_000));
    assert_eq!(rows(&store).await.unwrap(), expected);
}

/// Commits trim too, so that trimming continues without an idle moment.
#[tokio::test(flavor = "multi_thread")]
async fn trimming_keeps_pace_with_commits() {
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    churn(&store, 1, 1000, 50).await;
    store.compact(Revision(1000)).await.unwrap();
    assert_eq!(store.stats().trimmed, 0);
    let expected = churn(&store, 2, 100, 50).await;
    assert_eq!(store.stats().trimmed, 1000, "without a call of `maintain`");
    assert_eq!(rows(&store).await.unwrap(), expected);
}

/// An unreadable log entry ends trimming, and nothing else: maintenance still flushes and records the flushed
/// revisions.
#[tokio::test(flavor = "multi_thread")]
async fn maintenance_continues_if_old_history_is_unreadable() {
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    churn(&store, 4, 100, 50).await;
    let tables = store.state.tables_if_open().unwrap();
    tables.log.insert(layout::log_key(50), b"damaged").unwrap();
    drop(tables);
    store.compact(Revision(100)).await.unwrap();
    for _ in 0..3 {
        store.maintain().await.unwrap();
    }
    assert_eq!(store.stats().trimmed, 0);
    store.commit("next", Op::Create(Bytes::new())).await.unwrap();
}
