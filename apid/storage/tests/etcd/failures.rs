//! Behaviour of the etcd engine when members, observers or the cluster itself fail.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use prerequisites::etcd::{EtcdServer, Release};
use storage::engine::etcd::{EtcdStore, KeyMap, Options};
use storage::{Change, Error, Observer, Op, Revision, Store};
use tokio::time::Instant;

use super::behaviour::{Recorder, create, each_release, eventually, open};
use super::options;
use super::proxy::Proxy;

/// Keys whose first segments are in reverse order in etcd.
struct Reversed;

fn reverse(text: &str) -> String {
    let (first, rest) = text.split_once('/').unwrap_or((text, ""));
    let first: String = first.bytes().map(|byte| char::from(b'a' + b'z' - byte)).collect();
    format!("{first}/{rest}")
}

impl KeyMap for Reversed {
    fn to_etcd(&self, key: &str) -> String {
        format!("/{}", reverse(key))
    }

    fn parse_etcd<'k>(&self, key: &'k str) -> Option<Cow<'k, str>> {
        key.strip_prefix('/').map(|key| Cow::Owned(reverse(key)))
    }

    fn prefix_to_etcd(&self, prefix: &str) -> String {
        if prefix.contains('/') { self.to_etcd(prefix) } else { "/".to_owned() }
    }
}

#[test]
fn pages_over_all_keys_contain_every_key_in_each_order_of_resources() {
    each_release(&[], async |server| {
        let reversed = Options { keys: Arc::new(Reversed), ..options(server.url()) };
        let (store, _) = open(reversed).await;
        let mut expected = Vec::new();
        for resource in ["apps", "batch", "core"] {
            for number in 0..7 {
                let key = format!("{resource}/{number}");
                create(&store, &key).await;
                expected.push(key);
            }
        }
        let at = store.revision();
        for limit in [1, 2, 5, 20, 21] {
            for in_bytes in [false, true] {
                let (mut found, mut start, mut more) = (Vec::new(), String::new(), true);
                while more {
                    let page = match in_bytes {
                        true => store.rows_within("", &start, 0, limit * 8, at).await.unwrap(),
                        false => store.range("", &start, limit, Some(at)).await.unwrap(),
                    };
                    more = page.more;
                    found.extend(page.rows.iter().map(|row| row.key.to_string()));
                    start = format!("{}\0", found.last().unwrap());
                }
                assert_eq!(found.first().map(String::as_str), Some("core/0"), "the order is that of etcd");
                found.sort();
                assert_eq!(found, expected, "pages of {limit}");
            }
        }
        let part = store.range("batch/", "batch/3", 2, Some(at)).await.unwrap();
        let keys: Vec<&str> = part.rows.iter().map(|row| &*row.key).collect();
        assert_eq!((keys, part.more), (vec!["batch/3", "batch/4"], true));
    });
}

#[test]
fn panic_of_an_observer_ends_the_process() {
    struct Panicking;
    impl Observer for Panicking {
        fn observe(&self, _: &[Change]) {
            panic!("an observer of a test fails");
        }
    }
    each_release(&[], async |server| {
        let reasons = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&reasons);
        let on_gap = Arc::new(move |reason: &str| seen.lock().push(reason.to_owned()));
        let options = Options { on_gap, ..options(server.url()) };
        let store = Arc::new(EtcdStore::open(options, Arc::new(Panicking)).await.unwrap());
        let commit = Arc::clone(&store);
        tokio::spawn(async move { commit.commit("a", Op::Create(Bytes::new())).await });
        eventually("the reason of the end", || !reasons.lock().is_empty()).await;
        assert!(reasons.lock()[0].contains("the thread that publishes changes failed"), "{reasons:?}");
        assert!(store.readiness().is_err());
    });
}

/// An observer that blocks when it sees a deletion.
struct Blocking(Mutex<Receiver<()>>, Mutex<Sender<()>>);

impl Observer for Blocking {
    fn observe(&self, changes: &[Change]) {
        if changes.iter().any(|change| change.new.is_none()) {
            let _ = self.1.lock().send(());
            let _ = self.0.lock().recv();
        }
    }
}

#[test]
fn deletion_by_another_server_is_observed_before_it_rejects_a_write() {
    each_release(&[], async |server| {
        let (first, _) = open(options(server.url())).await;
        let (release, released) = channel();
        let (blocks, blocked) = channel();
        let observer = Blocking(Mutex::new(released), Mutex::new(blocks));
        let second = Arc::new(EtcdStore::open(options(server.url()), Arc::new(observer)).await.unwrap());
        let revision = create(&first, "a").await;
        second.newest_revision().await.unwrap();
        first.commit("a", Op::Delete(revision)).await.unwrap();
        tokio::task::spawn_blocking(move || blocked.recv()).await.unwrap().unwrap();
        let store = Arc::clone(&second);
        let refused = tokio::spawn(async move { store.commit("a", Op::Delete(revision)).await });
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(!refused.is_finished(), "the observer has not seen the deletion");
        drop(release);
        assert!(matches!(refused.await.unwrap(), Err(Error::NotFound(_))));
    });
}

#[test]
fn watch_leaves_paused_member_before_writes_fail() {
    each_release(&[], async |server| {
        let members = [Proxy::start(server.url()).await, Proxy::start(server.url()).await];
        let servers = members.iter().map(|member| member.url().to_owned()).collect();
        let (store, seen) = open(Options { servers, ..options(server.url()) }).await;
        create(&store, "before").await;
        for (number, member) in members.iter().enumerate() {
            member.pause(true);
            let begin = Instant::now();
            // A write to the paused member itself has no known outcome.
            let mut revision = Revision(0);
            for attempt in 0..5 {
                match store.commit(&format!("key/{number}/{attempt}"), Op::Create(Bytes::new())).await {
                    Ok(outcome) => {
                        revision = outcome.revision;
                        break;
                    }
                    Err(error) => assert!(error.to_string().contains("no answer"), "{error}"),
                }
            }
            assert!(revision > Revision(0) && begin.elapsed() < Duration::from_secs(25));
            member.pause(false);
            eventually("the readiness", || store.readiness().is_ok()).await;
        }
        let all = seen.keys().len();
        assert!(all >= 3, "{all}");
    });
}

/// Opens a store on a server with three keys, and leads its connections to another server. Returns the reason of the end.
async fn reason_of_the_end(server: &EtcdServer, other: &EtcdServer) -> String {
    let proxy = Proxy::start(server.url()).await;
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&reasons);
    let on_gap = Arc::new(move |reason: &str| seen.lock().push(reason.to_owned()));
    let recorder = Arc::new(Recorder::default());
    let store = EtcdStore::open(Options { on_gap, ..options(proxy.url()) }, recorder).await.unwrap();
    for key in ["a", "b", "c"] {
        create(&store, key).await;
    }
    assert!(reasons.lock().is_empty());
    let mut open_watch = store.watch("", store.revision()).await.unwrap();
    proxy.redirect_to(other.url());
    let begin = Instant::now();
    while reasons.lock().is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(30), "the process does not end");
        let newest = store.newest_revision().await;
        assert!(newest.is_err(), "a revision of another history: {newest:?}");
    }
    let newest = store.newest_revision().await.map(drop);
    let write = store.commit("a", Op::Create(Bytes::new())).await.map(drop);
    let read = store.get("a", None).await.map(drop);
    let range = store.range("", "", 0, None).await.map(drop);
    let watch = store.watch("", store.revision()).await.map(drop);
    for outcome in [newest, write, read, range, watch, store.health(), store.readiness()] {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("this server must start again"), "{error}");
    }
    assert!(open_watch.next().await.is_err(), "an open watch ends");
    let mut reasons = reasons.lock();
    assert_eq!(reasons.len(), 1, "the loss is reported once: {reasons:?}");
    reasons.remove(0)
}

#[test]
fn cluster_that_lost_revisions_ends_the_process() {
    // The peer URLs decide the id of the cluster: both servers have the same.
    let flags =
        ["--initial-advertise-peer-urls=http://127.0.0.1:1", "--initial-cluster=default=http://127.0.0.1:1"];
    each_release(&flags, async |server| {
        let Some(restored) = EtcdServer::start(Release::Current, &flags) else { return };
        let reason = reason_of_the_end(&server, &restored).await;
        assert!(reason.contains("etcd is at revision"), "{reason}");
    });
}

#[test]
fn cluster_with_another_id_ends_the_process() {
    each_release(&[], async |server| {
        let Some(other) = EtcdServer::start(Release::Current, &[]) else { return };
        let (store, _) = open(options(other.url())).await;
        for number in 0..20 {
            create(&store, &number.to_string()).await;
        }
        store.close().await;
        let reason = reason_of_the_end(&server, &other).await;
        assert!(reason.contains("started with the cluster"), "{reason}");
    });
}

#[test]
fn closed_store_calls_no_observer() {
    struct Slow(Arc<Mutex<(u32, u32)>>);
    impl Observer for Slow {
        fn observe(&self, _: &[Change]) {
            self.0.lock().0 += 1;
            std::thread::sleep(Duration::from_millis(500));
            self.0.lock().1 += 1;
        }
    }
    each_release(&[], async |server| {
        let (first, _) = open(options(server.url())).await;
        let calls = Arc::new(Mutex::new((0, 0)));
        let slow = Arc::new(Slow(Arc::clone(&calls)));
        let second = EtcdStore::open(options(server.url()), slow).await.unwrap();
        create(&first, "a").await;
        eventually("the first call", || calls.lock().0 > 0).await;
        create(&first, "b").await;
        second.close().await;
        let (begun, ended) = *calls.lock();
        assert_eq!(begun, ended, "the observer has returned");
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(*calls.lock(), (begun, begun), "no call follows the end of the store");
    });
}
