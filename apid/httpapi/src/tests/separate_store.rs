//! Events in a store of their own: their revisions, their waits and their writes are those of that store alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use storage::engine::memory::MemoryStore;
use storage::{Error, NewestReads, Observer, Observers, Op, Revision, Store};
use verbs::Cache;

use super::watches::Lines;
use super::{MAPS, Server, Settings, map};
use crate::freshness::{Freshness, PolicyConsistency};

const EVENTS: &str = "/api/v1/namespaces/a/events";
const EVENTS_OF_GROUP: &str = "/apis/events.example.test/v1/namespaces/a/events";

/// A store with other writers, which can be cut off from them.
struct Cluster {
    local: MemoryStore,
    is_away: Arc<AtomicBool>,
}

#[async_trait]
impl storage::conformance::StoreDouble for Cluster {
    fn inner(&self) -> &dyn Store {
        &self.local
    }

    async fn newest_revision(&self) -> storage::Result<Revision> {
        match self.is_away.load(Ordering::SeqCst) {
            true => Err(Error::Unavailable("secret-host".to_owned())),
            false => Ok(self.local.revision()),
        }
    }
}

/// A server whose Events are in a store of their own. Either store can be away.
struct Fixture {
    server: Server,
    is_main_away: Arc<AtomicBool>,
    are_events_away: Arc<AtomicBool>,
}

impl Fixture {
    async fn start(consistency: PolicyConsistency) -> Self {
        let (is_main_away, are_events_away) = <(Arc<AtomicBool>, Arc<AtomicBool>)>::default();
        let policy: Arc<dyn Store> = Arc::new(Cluster {
            local: MemoryStore::of_several_servers(Arc::new(Observers(Vec::new()))),
            is_away: is_main_away.clone(),
        });
        let reads = NewestReads::of(&policy, |_| ()).unwrap();
        reads.catch_up().await.unwrap();
        let hour = Duration::from_secs(3600);
        let open = |cache: Arc<Cache>| -> Arc<dyn Store> {
            let local = MemoryStore::of_several_servers(cache as Arc<dyn Observer>);
            // The revisions of both stores differ much: Events have larger ones.
            for number in 0..1000 {
                let op = Op::Create(bytes::Bytes::new());
                local.commit(&format!("/elsewhere/{number}"), op).now_or_never().unwrap().unwrap();
            }
            Arc::new(Cluster { local, is_away: are_events_away.clone() })
        };
        let server = Server::start_with_settings(Settings {
            freshness: Some(Arc::new(Freshness::with_max_age(reads, consistency, hour))),
            is_shared: true,
            open_events: Some(&open),
            ..Settings::default()
        })
        .await;
        Fixture { server, is_main_away, are_events_away }
    }

    /// The number of rows with a key prefix in the main store, and in that of Events.
    async fn rows(&self, prefix: &str) -> [usize; 2] {
        let separate = self.server.api_state.separate_store.as_ref().unwrap();
        let count = async |store: &dyn Store| store.range(prefix, "", 0, None).await.unwrap().rows.len();
        [count(&*self.server.memory).await, count(&*separate.store).await]
    }
}

fn event(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "a"}, "involvedObject": {"namespace": "a"}, "reason": "Test"})
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

async fn start() -> Fixture {
    Fixture::start(PolicyConsistency::Fresh).await
}

#[tokio::test]
async fn events_are_written_and_read_in_their_own_store() {
    let fixture = start().await;
    let server = &fixture.server;
    let created = server.post(EVENTS, event("one")).await;
    assert_eq!(created.code, 201, "{}", created.json());
    let created = created.json();
    assert!(version(&created) > 1000, "{created}");
    assert_eq!(server.post(MAPS, map("one", "1")).await.code, 201);
    assert_eq!(
        (fixture.rows("core/events/").await, fixture.rows("core/configmaps/").await),
        ([0, 1], [1, 0])
    );
    assert_eq!(server.post(EVENTS, event("one")).await.code, 409);

    let mut newer = created.clone();
    newer["reason"] = json!("Newer");
    let updated = server.put(&format!("{EVENTS}/one"), newer.clone()).await;
    assert_eq!((updated.code, &updated.json()["reason"]), (200, &json!("Newer")));
    assert_eq!(server.put(&format!("{EVENTS}/one"), newer).await.code, 409, "an outdated version");
    let of_group = server.get(&format!("{EVENTS_OF_GROUP}/one")).await.json();
    assert_eq!(version(&of_group), version(&updated.json()));
    for name in ["two", "three"] {
        assert_eq!(server.post(EVENTS, event(name)).await.code, 201);
    }
    assert_eq!(server.delete(&format!("{EVENTS}/two"), Value::Null).await.code, 200);

    let list = server.get(EVENTS).await.json();
    let newest = version(&list);
    assert_eq!(list["items"].as_array().unwrap().len(), 2);
    assert!(newest > version(&updated.json()), "{list}");
    let past = format!("{EVENTS}?resourceVersionMatch=Exact&resourceVersion={}", version(&created));
    assert_eq!(server.get(&past).await.json()["items"].as_array().unwrap().len(), 1);
    let first = server.get(&format!("{EVENTS}?limit=1")).await.json();
    let token = first["metadata"]["continue"].as_str().unwrap();
    let rest = server.get(&format!("{EVENTS}?limit=1&continue={token}")).await.json();
    assert_eq!((rest["items"].as_array().unwrap().len(), version(&rest)), (1, newest));
    let maps = server.get(&format!("{MAPS}?resourceVersion={newest}")).await;
    let text = maps.json()["message"].as_str().unwrap().to_owned();
    assert_eq!(maps.code, 504, "a version of Events is one of the future elsewhere");
    assert!(text.contains(&format!("Too large resource version: {newest}, current: ")), "{text}");
    let own = server.get(&format!("{EVENTS}?resourceVersion={}", newest + 5)).await.json();
    assert!(own["message"].as_str().unwrap().ends_with(&format!("current: {newest}")), "{own}");

    assert_eq!(server.delete(EVENTS, Value::Null).await.code, 200);
    assert_eq!(fixture.rows("core/events/").await, [0, 0]);
    let statuses = server.get("/api/v1/componentstatuses").await.json();
    assert_eq!(statuses["items"][2]["metadata"]["name"], "storage-1", "{statuses}");
    let metrics = server.get("/metrics").await.body;
    let metrics = String::from_utf8_lossy(&metrics);
    assert!(metrics.contains("apiserver_storage_size_bytes{storage_cluster_id=\"override-0\"}"), "{metrics}");
}

#[tokio::test]
async fn watch_of_events_follows_their_own_revisions() {
    let fixture = start().await;
    let server = &fixture.server;
    assert_eq!(server.post(EVENTS, event("one")).await.code, 201);
    let list = server.get(EVENTS).await.json();
    let mut from_list =
        Lines::open(server, &format!("{EVENTS}?watch=1&resourceVersion={}", version(&list))).await;
    let mut initial = Lines::open(server, &format!("{EVENTS_OF_GROUP}?watch=1")).await;
    for number in 0..20 {
        assert_eq!(server.post(MAPS, map(&format!("map-{number}"), "1")).await.code, 201);
    }
    let two = server.post(EVENTS, event("two")).await.json();
    let next = from_list.next().await.unwrap();
    assert_eq!((&next["type"], version(&next["object"])), (&json!("ADDED"), version(&two)));
    for name in ["one", "two"] {
        assert_eq!(initial.next().await.unwrap()["object"]["metadata"]["name"], name);
    }
    fixture.are_events_away.store(true, Ordering::SeqCst);
    fixture.is_main_away.store(true, Ordering::SeqCst);
    let separate = fixture.server.api_state.separate_store.as_ref().unwrap();
    let row = separate.store.get("core/events/a/two", None).await.unwrap().unwrap();
    separate.store.commit("core/events/a/two", Op::Delete(row.revision)).await.unwrap();
    let error = from_list.next().await.unwrap();
    assert_eq!((&error["type"], &error["object"]["code"]), (&json!("ERROR"), &json!(503)), "{error}");
    assert!(
        error["object"]["message"].as_str().unwrap().contains("the newest policy is not known"),
        "{error}"
    );
    assert!(from_list.next().await.is_none(), "no event is sent on policy that may be older than the event");
}

#[tokio::test]
async fn requests_for_other_objects_go_on_without_the_store_of_events() {
    let fixture = start().await;
    let server = &fixture.server;
    assert_eq!(server.post(EVENTS, event("one")).await.code, 201);
    fixture.are_events_away.store(true, Ordering::SeqCst);
    assert_eq!(server.post(MAPS, map("one", "1")).await.code, 201);
    assert_eq!(server.get("/apis").await.code, 200);
    for url in [EVENTS.to_owned(), EVENTS_OF_GROUP.to_owned(), format!("{EVENTS}?resourceVersion=0")] {
        let reply = server.get(&url).await;
        let text = reply.json()["message"].as_str().unwrap().to_owned();
        assert_eq!(reply.code, 503, "{url}");
        assert!(text.contains("an etcd cluster of its own") && !text.contains("secret-host"), "{text}");
    }
    assert_eq!(server.post(EVENTS, event("two")).await.code, 503);
    fixture.are_events_away.store(false, Ordering::SeqCst);
    fixture.is_main_away.store(true, Ordering::SeqCst);
    for url in [EVENTS, MAPS] {
        assert_eq!(server.get(url).await.code, 503, "no request is decided without policy: {url}");
    }
}

#[tokio::test]
async fn bounded_policy_waits_for_the_store_of_the_objects() {
    let fixture = Fixture::start(PolicyConsistency::Bounded).await;
    let server = &fixture.server;
    let created = server.post(EVENTS, event("one")).await.json();
    fixture.is_main_away.store(true, Ordering::SeqCst);
    assert_eq!((server.get(EVENTS).await.code, server.get(MAPS).await.code), (200, 503));
    fixture.is_main_away.store(false, Ordering::SeqCst);
    fixture.are_events_away.store(true, Ordering::SeqCst);
    assert_eq!((server.get(EVENTS).await.code, server.get(MAPS).await.code), (503, 200));
    for accepted in [0, version(&created)] {
        assert_eq!(server.get(&format!("{EVENTS}?resourceVersion={accepted}")).await.code, 200, "{accepted}");
    }
}

#[tokio::test]
async fn event_needs_a_namespace_that_is_not_being_deleted() {
    let fixture = start().await;
    let server = &fixture.server;
    let quota = json!({"metadata": {"name": "q", "namespace": "a"}, "spec": {"hard": {"count/events": "1"}}});
    assert_eq!(server.post("/api/v1/namespaces/a/resourcequotas", quota).await.code, 201);
    let created = server.post(EVENTS, event("one")).await;
    assert_eq!(created.code, 201, "quotas do not count Events: {}", created.json());
    assert_eq!(server.delete("/api/v1/namespaces/a", Value::Null).await.code, 200);
    let refused = server.post(EVENTS, event("two")).await;
    let text = refused.json()["message"].as_str().unwrap().to_owned();
    assert_eq!(refused.code, 403, "{text}");
    assert!(text.ends_with("because it is being terminated"), "{text}");
}
