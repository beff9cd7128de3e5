//! A full disk or quota rejects writes, keeps reads, and recovers without intervention.

use super::*;

/// Creates rows of noise, which does not compress, one each second, until a create is rejected. Adds the
/// revisions to `revisions`, and returns the error.
async fn create_until_full(
    store: &FjallStore,
    clock: &ManualClock,
    rng: &SeededRng,
    size: usize,
    revisions: &mut Vec<Revision>,
) -> Error {
    loop {
        assert!(revisions.len() < 1000, "the quota was never enforced");
        let noise: Vec<u8> =
            std::iter::repeat_with(|| rng.bits().to_le_bytes()).flatten().take(size).collect();
        match store.commit(&revisions.len().to_string(), Op::Create(noise.into())).await {
            Ok(created) => revisions.push(created.revision),
            Err(error) => return error,
        }
        clock.advance(Duration::from_secs(1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_rejects_growth_until_space_is_freed() {
    let dir = memory_dir();
    let clock = clock();
    let options = Options {
        quota_bytes: Some(3 << 20),
        memtable_bytes: 256 << 10,
        clock: clock.clone(),
        ..options(dir.path())
    };
    let store = FjallStore::open(options, Arc::new(RecordingObserver::default())).unwrap();
    let rng = SeededRng::new(1);
    let mut revisions = Vec::new();
    let refused = create_until_full(&store, &clock, &rng, 20_000, &mut revisions).await;
    assert!(
        matches!(&refused, Error::Full(reason) if reason.contains("the quota is 3145728")),
        "{refused:?}"
    );
    let last = store.revision();
    assert_eq!(last.0 as usize, revisions.len(), "a rejected commit takes no revision");
    let update = store.commit("0", Op::Update(Bytes::new(), revisions[0])).await;
    assert!(matches!(update, Err(Error::Full(_))));
    assert_eq!(rows(&store).await.unwrap().len(), revisions.len());
    assert!(store.health().is_ok(), "reads continue");
    until("the reason is reported", async || {
        clock.advance(Duration::from_secs(1));
        // A compaction can reduce the used space below the quota; then a few more rows fit.
        create_until_full(&store, &clock, &rng, 20_000, &mut revisions).await;
        store.maintain().await.unwrap();
        store.full_reason().is_some_and(|reason| reason.contains("the quota is 3145728"))
    })
    .await;

    for (number, revision) in revisions.iter().enumerate().skip(1) {
        store.commit(&number.to_string(), Op::Delete(*revision)).await.unwrap();
    }
    until("space is available again", async || {
        clock.advance(Duration::from_secs(301));
        store.maintain().await.unwrap();
        store.commit("new", Op::Create(Bytes::new())).await.is_ok()
    })
    .await;
    assert_eq!(rows(&store).await.unwrap().len(), 2);
    store.maintain().await.unwrap();
    assert_eq!(store.full_reason(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn full_disk_rejects_writes_and_serves_reads() {
    let dir = memory_dir();
    let store = open(dir.path()).unwrap();
    let revision = store.commit("a", Op::Create(Bytes::new())).await.unwrap().revision;
    store.close().await;
    let options = Options { reserve_bytes: u64::MAX, ..options(dir.path()) };
    let store = FjallStore::open(options, Arc::new(RecordingObserver::default())).unwrap();
    for op in [Op::Create(Bytes::new()), Op::Update(Bytes::new(), revision), Op::Delete(revision)] {
        let refused = store.commit("a", op).await;
        assert!(
            matches!(&refused, Err(Error::Full(reason)) if reason.contains("MiB are free")),
            "{refused:?}"
        );
    }
    assert_eq!(rows(&store).await.unwrap().len(), 1);
    assert!(store.health().is_ok());
    store.close().await;
    assert_eq!(open(dir.path()).unwrap().revision(), revision);
}

/// Creates and deletes rows of noise, which does not compress.
async fn create_and_delete(store: &FjallStore, rows: u64, size: usize) {
    let rng = SeededRng::new(2);
    for number in 0..rows {
        let noise: Vec<u8> =
            std::iter::repeat_with(|| rng.bits().to_le_bytes()).flatten().take(size).collect();
        let key = format!("row/{number:06}");
        let created = store.commit(&key, Op::Create(noise.into())).await.unwrap();
        store.commit(&key, Op::Delete(created.revision)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_store_frees_space_of_deleted_rows_after_retention() {
    const RETENTION: Duration = Duration::from_secs(120);
    let dir = memory_dir();
    let clock = clock();
    let options = Options {
        history_retention: RETENTION,
        memtable_bytes: 4 << 20,
        clock: clock.clone(),
        ..options(dir.path())
    };
    let store = FjallStore::open(options, Arc::new(RecordingObserver::default())).unwrap();
    create_and_delete(&store, 1500, 8000).await;
    store.maintain().await.unwrap();
    let pass = async |seconds: u64| {
        for _ in 0..seconds {
            clock.advance(Duration::from_secs(1));
            store.maintain().await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    pass(RETENTION.as_secs() / 2).await;
    store.commit("marker", Op::Create(Bytes::new())).await.unwrap();
    pass(RETENTION.as_secs() / 2 - 1).await;
    assert!(store.stats().table_bytes > 8 << 20, "history is retained: {:?}", store.stats());
    pass(60).await;
    let stats = store.stats();
    assert!(stats.table_bytes + stats.memtable_bytes < 512 << 10, "{stats:?}");
    assert_eq!(rows(&store).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn full_store_accepts_writes_seconds_after_deletes() {
    let dir = memory_dir();
    let clock = clock();
    let options = Options {
        quota_bytes: Some(3 << 20),
        history_retention: Duration::from_secs(300),
        memtable_bytes: 256 << 10,
        clock: clock.clone(),
        ..options(dir.path())
    };
    let store = FjallStore::open(options, Arc::new(RecordingObserver::default())).unwrap();
    let rng = SeededRng::new(4);
    let mut revisions = Vec::new();
    let refused = create_until_full(&store, &clock, &rng, 40_000, &mut revisions).await;
    assert!(matches!(refused, Error::Full(_)), "{refused:?}");
    for (number, revision) in revisions.iter().enumerate() {
        store.commit(&number.to_string(), Op::Delete(*revision)).await.unwrap();
    }
    for _ in 0..20 {
        clock.advance(Duration::from_secs(1));
        store.maintain().await.unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    store.commit("new", Op::Create(Bytes::new())).await.unwrap();
}
