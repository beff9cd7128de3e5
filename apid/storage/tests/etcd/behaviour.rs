//! Behaviour of the etcd engine beyond the contract: several servers, leases, compaction, failures of etcd.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use prerequisites::etcd::{EtcdServer, Release};
use storage::engine::etcd::{EtcdStore, LeaseOptions, Lifetime, OpenError, Options, Telemetry};
use storage::engine::fjall::Identity;
use storage::{Change, Error, Observer, Op, Revision, Row, Store};
use tokio::time::Instant;

use super::options;

const WAIT: Duration = Duration::from_secs(60);

/// The observed changes, and the newest observed revision.
#[derive(Default)]
pub(super) struct Recorder {
    changes: Mutex<Vec<Change>>,
    through: Mutex<Revision>,
}

impl Observer for Recorder {
    fn observe(&self, changes: &[Change]) {
        self.changes.lock().extend_from_slice(changes);
    }

    fn progress(&self, through: Revision) {
        *self.through.lock() = through;
    }
}

impl Recorder {
    pub(super) fn keys(&self) -> Vec<(String, bool)> {
        let changes = self.changes.lock();
        changes.iter().map(|change| (change.key.to_string(), change.new.is_some())).collect()
    }
}

/// Runs a test with a server of each release; a release that is not installed is skipped.
pub(super) fn each_release(flags: &[&str], test: impl AsyncFn(EtcdServer)) {
    for release in [Release::Current, Release::Old] {
        if let Some(server) = EtcdServer::start(release, flags) {
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
            runtime.block_on(test(server));
        }
    }
}

pub(super) async fn open(options: Options) -> (EtcdStore, Arc<Recorder>) {
    let recorder = Arc::new(Recorder::default());
    let store = EtcdStore::open(options, Arc::clone(&recorder) as Arc<dyn Observer>).await.unwrap();
    (store, recorder)
}

pub(super) async fn create(store: &EtcdStore, key: &str) -> Revision {
    store.commit(key, Op::Create(Bytes::from_static(b"x"))).await.unwrap().revision
}

/// Waits until a condition holds.
pub(super) async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !condition() {
        assert!(Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn servers_observe_all_writes_in_the_same_order() {
    each_release(&[], async |server| {
        let (first, first_seen) = open(options(server.url())).await;
        let (second, second_seen) = open(options(server.url())).await;
        let mut newest: HashMap<String, Revision> = HashMap::new();
        for round in 0..40 {
            let store = if round % 2 == 0 { &first } else { &second };
            let key = format!("key/{}", round % 3);
            let op = match newest.get(&key) {
                None => Op::Create(Bytes::from(round.to_string())),
                Some(at) if round % 7 == 0 => Op::Delete(*at),
                Some(at) => Op::Update(Bytes::from(round.to_string()), *at),
            };
            let is_deleted = matches!(op, Op::Delete(_));
            let revision = store.commit(&key, op).await.unwrap().revision;
            if is_deleted {
                newest.remove(&key)
            } else {
                newest.insert(key, revision)
            };
        }
        for (store, seen) in [(&first, &first_seen), (&second, &second_seen)] {
            let revision = store.newest_revision().await.unwrap();
            assert!(store.revision() >= revision);
            assert_eq!(seen.changes.lock().len(), 40, "a newest revision is published");
        }
        assert_eq!(*first_seen.changes.lock(), *second_seen.changes.lock());
        let conflict = second.commit("key/0", Op::Update(Bytes::new(), Revision(1))).await;
        assert!(matches!(conflict, Err(Error::Conflict(_) | Error::NotFound(_))), "{conflict:?}");
        first.close().await;
        second.close().await;
    });
}

#[test]
fn revision_of_other_prefixes_is_reached_without_a_change() {
    each_release(&[], async |server| {
        let (store, seen) = open(options(server.url())).await;
        let elsewhere = Options { prefix: "/other".to_owned(), ..options(server.url()) };
        let (other, _) = open(elsewhere).await;
        let revision = create(&other, "a").await;
        assert!(store.newest_revision().await.unwrap() >= revision);
        assert!(store.revision() >= revision && *seen.through.lock() >= revision);
        assert_eq!(seen.keys(), [], "other keys are not observed");
        assert_eq!(store.get("a", None).await, Ok(None));
        let later = create(&other, "b").await;
        store.expect_revision(later);
        eventually("the expected revision", || store.revision() >= later).await;
    });
}

#[test]
fn keys_with_a_lifetime_share_a_lease_and_are_removed() {
    #[derive(Default)]
    struct Counts(Mutex<Vec<usize>>);
    impl Telemetry for Counts {
        fn lease_objects(&self, count: usize) {
            self.0.lock().push(count);
        }
    }
    each_release(&[], async |server| {
        let counts = Arc::new(Counts::default());
        let lifetime = Lifetime { prefix: "events/".to_owned(), time: Duration::from_secs(5) };
        let leases = LeaseOptions { lifetimes: vec![lifetime], max_keys: 3, ..LeaseOptions::default() };
        let telemetry = Arc::clone(&counts) as Arc<dyn Telemetry>;
        let (store, seen) = open(Options { leases, telemetry, ..options(server.url()) }).await;
        create(&store, "kept").await;
        let mut watch = store.watch("events/", store.revision()).await.unwrap();
        for name in ["a", "b", "c", "d"] {
            create(&store, &format!("events/{name}")).await;
        }
        eventually("the end of the lease", || seen.keys().len() == 9).await;
        assert!(store.range("events/", "", 0, None).await.unwrap().rows.is_empty());
        assert!(store.get("kept", None).await.unwrap().is_some());
        let mut changes = Vec::new();
        while changes.len() < 8 {
            changes.extend(watch.next().await.unwrap());
        }
        let deleted: Vec<&Change> = changes.iter().filter(|change| change.new.is_none()).collect();
        assert_eq!(deleted.len(), 4);
        assert!(deleted.iter().all(|change| change.old.is_some()), "a removal carries the last value");
        let first = deleted.iter().map(|change| change.revision).min().unwrap();
        let together = deleted.iter().filter(|change| change.revision == first).count();
        assert!(together == 3 || together == 1, "one lease has 3 keys, the next one has 1: {together}");
        assert_eq!(*counts.0.lock(), [3], "the first lease was full");
    });
}

#[test]
fn compaction_by_one_server_is_known_to_all_servers() {
    each_release(&[], async |server| {
        let interval = Some(Duration::from_millis(400));
        let compacting = || Options { compaction_interval: interval, ..options(server.url()) };
        let (first, _) = open(compacting()).await;
        let (second, _) = open(compacting()).await;
        let old = create(&first, "a").await;
        eventually("a compaction", || first.compacted() > old && second.compacted() > old).await;
        let refused = second.get("a", Some(old)).await;
        assert!(
            matches!(refused, Err(Error::Compacted { requested, .. }) if requested == old),
            "{refused:?}"
        );
        assert!(second.get("a", None).await.unwrap().is_some(), "an idle server reads at a newer revision");
        // A server that starts later learns the compacted revision of etcd.
        let (third, _) = open(options(server.url())).await;
        assert!(third.compacted() > old);
        let refused = third.watch("", old).await.err();
        assert!(matches!(refused, Some(Error::Compacted { .. })), "{refused:?}");
    });
}

#[test]
fn history_lease_delays_compaction() {
    each_release(&[], async |server| {
        let interval = Duration::from_millis(200);
        let options = Options { compaction_interval: Some(interval), ..options(server.url()) };
        let (store, _) = open(options).await;
        let leased = create(&store, "a").await;
        let lease = store.lease_history(leased);
        for key in ["b", "c", "d", "e"] {
            create(&store, key).await;
            tokio::time::sleep(interval).await;
        }
        assert!(store.compacted() <= leased, "{}", store.compacted());
        assert!(store.get("a", Some(leased)).await.unwrap().is_some());
        drop(lease);
        eventually("a compaction", || store.compacted() > leased).await;
    });
}

#[test]
fn restarted_etcd_loses_no_change() {
    each_release(&[], async |mut server| {
        let (store, seen) = open(options(server.url())).await;
        let store = Arc::new(store);
        let mut watch = store.watch("", store.revision()).await.unwrap();
        create(&store, "before").await;
        server.kill();
        let refused = store.commit("during", Op::Create(Bytes::new())).await;
        assert!(matches!(refused, Err(Error::Unavailable(_))), "{refused:?}");
        assert!(matches!(store.get("before", None).await, Err(Error::Unavailable(_))));
        eventually("the failed health check", || store.health().is_err()).await;
        server.restart();
        let deadline = Instant::now() + WAIT;
        while store.commit("after", Op::Create(Bytes::new())).await.is_err() {
            assert!(Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(50)).await;
            if store.get("after", None).await.is_ok_and(|row| row.is_some()) {
                break;
            }
        }
        eventually("the new health check", || store.readiness().is_ok()).await;
        eventually("the last change", || seen.keys().contains(&("after".to_owned(), true))).await;
        assert_eq!(seen.keys(), [("before".to_owned(), true), ("after".to_owned(), true)]);
        let mut changes = Vec::new();
        while changes.len() < 2 {
            changes.extend(watch.next().await.unwrap());
        }
        assert_eq!(changes, *seen.changes.lock());
    });
}

#[test]
fn full_etcd_rejects_writes_and_serves_reads() {
    each_release(&["--quota-backend-bytes=20000000"], async |server| {
        let (store, _) = open(options(server.url())).await;
        let revision = create(&store, "a").await;
        let value = Bytes::from(vec![7; 1 << 20]);
        let mut refused = None;
        for number in 0..40 {
            if let Err(error) = store.commit(&format!("{number}"), Op::Create(value.clone())).await {
                refused = Some(error);
                break;
            }
        }
        let Some(Error::Full(reason)) = refused else { panic!("{refused:?}") };
        assert!(reason.contains("etcdctl alarm disarm"), "{reason}");
        assert!(store.full_reason().is_some(), "the readiness check has a warning");
        let deleted = store.commit("a", Op::Delete(revision)).await;
        assert!(matches!(deleted, Ok(_) | Err(Error::Full(_))), "old releases reject deletions: {deleted:?}");
        assert!(store.get("0", None).await.unwrap().is_some());
        let (late, _) = open(options(server.url())).await;
        assert!(late.get("0", None).await.unwrap().is_some(), "a full etcd can be read after a start");
    });
}

#[test]
fn store_opens_only_with_its_identity() {
    each_release(&[], async |server| {
        let (store, _) = open(options(server.url())).await;
        store.close().await;
        let identity = Identity { preset: "kubernetes".to_owned(), api_domain: "cluster.example".to_owned() };
        let other = Options { identity, ..options(server.url()) };
        let refused = EtcdStore::open(other.clone(), Arc::new(Recorder::default())).await.err();
        let Some(OpenError::Identity { found, .. }) = &refused else { panic!("{refused:?}") };
        assert_eq!(found.preset, "svc");
        assert!(refused.unwrap().to_string().contains("start with `--names svc"));
        // The prefix of this store is within another one, which therefore has objects without an identity.
        let outer = Options { prefix: "/".to_owned(), ..options(server.url()) };
        let refused = EtcdStore::open(outer.clone(), Arc::new(Recorder::default())).await.err();
        assert!(matches!(refused, Some(OpenError::Foreign { .. })), "{refused:?}");
        let adopted = Options { adopts_foreign: true, ..outer };
        assert!(EtcdStore::open(adopted, Arc::new(Recorder::default())).await.is_ok());
    });
}

#[test]
fn servers_that_start_together_share_an_empty_prefix() {
    each_release(&[], async |server| {
        for round in 0..10 {
            let starts = (0..6).map(|number| {
                let options = Options { prefix: format!("/round-{round}"), ..options(server.url()) };
                tokio::spawn(async move {
                    let store = EtcdStore::open(options, Arc::new(Recorder::default())).await?;
                    drop(store.commit(&format!("{number}"), Op::Create(Bytes::from_static(b"x"))).await);
                    Ok::<_, OpenError>(())
                })
            });
            for start in starts.collect::<Vec<_>>() {
                start.await.expect("a start").unwrap_or_else(|error| panic!("round {round}: {error}"));
            }
        }
    });
}

#[test]
fn open_of_unreachable_etcd_fails_after_open_timeout() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let unreachable =
            Options { open_timeout: Duration::from_millis(300), ..options("http://127.0.0.1:1") };
        let refused = EtcdStore::open(unreachable, Arc::new(Recorder::default())).await.err();
        let Some(OpenError::Store(Error::Unavailable(reason))) = &refused else { panic!("{refused:?}") };
        assert!(reason.contains("http://127.0.0.1:1"), "{reason}");
    });
}

#[test]
fn pages_in_bytes_need_few_reads() {
    #[derive(Default)]
    struct Reads(Mutex<usize>);
    impl Telemetry for Reads {
        fn request(&self, operation: &'static str, _: &str, _: Duration, _: bool) {
            *self.0.lock() += usize::from(operation == "list");
        }
    }
    each_release(&[], async |server| {
        let reads = Arc::new(Reads::default());
        let telemetry = Arc::clone(&reads) as Arc<dyn Telemetry>;
        let (store, _) = open(Options { telemetry, ..options(server.url()) }).await;
        for number in 0..500 {
            create(&store, &format!("key/{number:04}")).await;
        }
        let page = store.rows_within("key/", "", 0, 1 << 20, store.revision()).await.unwrap();
        assert_eq!((page.rows.len(), page.more), (500, false));
        assert!(*reads.0.lock() <= 7, "{} reads", reads.0.lock());
        let sizes = page.rows.iter().map(Row::size).sum::<usize>();
        let half = store.rows_within("key/", "", 0, sizes / 2, store.revision()).await.unwrap();
        assert_eq!((half.rows.len(), half.more), (250, true));
    });
}
