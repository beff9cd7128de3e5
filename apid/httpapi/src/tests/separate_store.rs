//! Events in a store of their own: their revisions, their waits and their writes are those of that store alone.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ::audit::AuditLog;
use apimachinery::clock::SystemClock;
use async_trait::async_trait;
use authclient::{Auth, PolicyRevisions};
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use serde_json::{Value, json};
use storage::engine::memory::MemoryStore;
use storage::{Error, NewestReads, Observer, Observers, Op, Page, Revision, Store};
use verbs::Cache;

use super::custom_kinds::eventually;
use super::deletion::start_controller;
use super::watches::Lines;
use super::{MAPS, Server, Settings, map};
use crate::freshness::{Freshness, PolicyConsistency};
use crate::resources::{MAX_REPETITIONS, REPETITION_PAUSE};

const EVENTS: &str = "/api/v1/namespaces/a/events";
const EVENTS_OF_GROUP: &str = "/apis/events.example.test/v1/namespaces/a/events";

/// An act of other servers before a read of the newest revision.
type Arrival = Box<dyn FnOnce() + Send>;

/// The part of a cluster that a test decides.
#[derive(Default)]
struct Control {
    is_away: AtomicBool,
    /// The number of reads that found the cluster away.
    failures: AtomicUsize,
    /// The acts that the next reads of the newest revision make known here, one for each read.
    arrivals: Mutex<VecDeque<Arrival>>,
}

impl Control {
    fn set_away(&self, is_away: bool) {
        self.is_away.store(is_away, Ordering::SeqCst);
    }

    fn check(&self) -> storage::Result<()> {
        if !self.is_away.load(Ordering::SeqCst) {
            return Ok(());
        }
        self.failures.fetch_add(1, Ordering::SeqCst);
        Err(Error::Unavailable("secret-host".to_owned()))
    }

    /// Another server commits this, which the read after the reads so far makes known here.
    fn arrive(&self, arrival: impl FnOnce() + Send + 'static) {
        self.arrivals.lock().push_back(Box::new(arrival));
    }
}

/// A store with other writers, which can be cut off from them.
struct Cluster {
    name: &'static str,
    local: MemoryStore,
    control: Arc<Control>,
    /// The names of the clusters whose newest revisions were read.
    reads: Arc<Mutex<Vec<&'static str>>>,
}

#[async_trait]
impl storage::conformance::StoreDouble for Cluster {
    fn inner(&self) -> &dyn Store {
        &self.local
    }

    async fn newest_revision(&self) -> storage::Result<Revision> {
        self.control.check()?;
        self.reads.lock().push(self.name);
        let arrival = self.control.arrivals.lock().pop_front();
        if let Some(arrival) = arrival {
            arrival();
        }
        Ok(self.local.revision())
    }

    async fn range(
        &self,
        prefix: &str,
        start: &str,
        limit: usize,
        at: Option<Revision>,
    ) -> storage::Result<Page> {
        self.control.check()?;
        self.local.range(prefix, start, limit, at).await
    }
}

/// Commits at once, as another server.
fn commit(store: &dyn Store, key: &str, op: Op) {
    store.commit(key, op).now_or_never().unwrap().unwrap();
}

/// The number of revisions by which one store is ahead of the other.
const LEAD: u64 = 1000;

fn advance(store: &dyn Store) {
    for number in 0..LEAD {
        commit(store, &format!("/elsewhere/{number}"), Op::Create(bytes::Bytes::new()));
    }
}

/// The store whose revisions are larger.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leading {
    Main,
    Events,
}

/// A server whose Events are in a store of their own. Either store can be away.
struct Fixture {
    server: Server,
    main: Arc<Control>,
    events: Arc<Control>,
    reads: Arc<Mutex<Vec<&'static str>>>,
}

impl Fixture {
    async fn start(consistency: PolicyConsistency) -> Self {
        let auth = |clock: Arc<SystemClock>| Auth::allow_all(clock);
        Fixture::with(consistency, Leading::Events, auth, None, "").await
    }

    async fn with(
        consistency: PolicyConsistency,
        leading: Leading,
        auth: impl FnOnce(Arc<SystemClock>) -> Arc<Auth>,
        policy: Option<Arc<PolicyRevisions>>,
        runtime_config: &str,
    ) -> Self {
        let (main, events) = <(Arc<Control>, Arc<Control>)>::default();
        let clusters = Arc::new(Mutex::new(Vec::new()));
        let main_cluster: Arc<dyn Store> = Arc::new(Cluster {
            name: "main",
            local: MemoryStore::of_several_servers(Arc::new(Observers(Vec::new()))),
            control: main.clone(),
            reads: clusters.clone(),
        });
        let reads = NewestReads::of(&main_cluster, "main", |_| ()).unwrap();
        reads.catch_up().await.unwrap();
        let hour = Duration::from_secs(3600);
        let open = |cache: Arc<Cache>| -> Arc<dyn Store> {
            let local = MemoryStore::of_several_servers(cache as Arc<dyn Observer>);
            if leading == Leading::Events {
                advance(&local);
            }
            let (control, reads) = (events.clone(), clusters.clone());
            Arc::new(Cluster { name: "events", local, control, reads })
        };
        let settings = Settings {
            runtime_config,
            freshness: Some(Arc::new(Freshness::with_max_age(reads, consistency, hour))),
            is_shared: true,
            policy,
            open_events: Some(&open),
            ..Settings::default()
        };
        let server = Server::with_settings(auth, AuditLog::off(), settings).await.with_namespaces().await;
        if leading == Leading::Main {
            advance(&*server.memory);
        }
        Fixture { server, main, events, reads: clusters }
    }

    /// The store of Events.
    fn events_store(&self) -> Arc<dyn Store> {
        self.server.api_state.separate_store.as_ref().unwrap().store.clone()
    }

    /// Removes a row, and returns an operation that makes another server store it again.
    async fn hide(&self, store: Arc<dyn Store>, key: &'static str) -> impl FnOnce() + Send + 'static {
        let row = store.get(key, None).await.unwrap().unwrap();
        commit(&*store, key, Op::Delete(row.revision));
        move || commit(&*store, key, Op::Create(row.value))
    }

    /// An operation that removes a row as another server.
    fn removal(&self, key: &'static str) -> impl FnOnce() + Send + 'static {
        let store = self.server.memory.clone();
        move || {
            let row = store.get(key, None).now_or_never().unwrap().unwrap().unwrap();
            commit(&*store, key, Op::Delete(row.revision));
        }
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
    fixture.events.set_away(true);
    fixture.main.set_away(true);
    let store = fixture.events_store();
    let again = fixture.hide(store.clone(), "core/events/a/two").await;
    let short = Duration::from_millis(500);
    assert!(tokio::time::timeout(short, from_list.next()).await.is_err(), "no event without the policy");
    fixture.main.set_away(false);
    assert_eq!(from_list.next().await.unwrap()["type"], "DELETED", "a short outage does not end the watch");
    fixture.main.set_away(true);
    again();
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
    fixture.events.set_away(true);
    assert_eq!(server.post(MAPS, map("one", "1")).await.code, 201);
    assert_eq!(server.get("/apis").await.code, 200);
    for url in [EVENTS.to_owned(), EVENTS_OF_GROUP.to_owned(), format!("{EVENTS}?resourceVersion=0")] {
        let reply = server.get(&url).await;
        let text = reply.json()["message"].as_str().unwrap().to_owned();
        assert_eq!(reply.code, 503, "{url}");
        assert!(text.contains("an etcd cluster of its own") && !text.contains("secret-host"), "{text}");
    }
    assert_eq!(server.post(EVENTS, event("two")).await.code, 503);
    fixture.events.set_away(false);
    fixture.main.set_away(true);
    for url in [EVENTS, MAPS] {
        assert_eq!(server.get(url).await.code, 503, "no request is decided without policy: {url}");
    }
}

#[tokio::test]
async fn bounded_policy_waits_for_the_store_of_the_objects() {
    let fixture = Fixture::start(PolicyConsistency::Bounded).await;
    let server = &fixture.server;
    let created = server.post(EVENTS, event("one")).await.json();
    fixture.main.set_away(true);
    assert_eq!((server.get(EVENTS).await.code, server.get(MAPS).await.code), (200, 503));
    fixture.main.set_away(false);
    fixture.events.set_away(true);
    assert_eq!((server.get(EVENTS).await.code, server.get(MAPS).await.code), (503, 200));
    for accepted in [0, version(&created)] {
        assert_eq!(server.get(&format!("{EVENTS}?resourceVersion={accepted}")).await.code, 200, "{accepted}");
    }
}

#[tokio::test]
async fn requests_for_lost_events_fail_at_once() {
    let fixture = Fixture::start(PolicyConsistency::Bounded).await;
    let server = &fixture.server;
    let separate = server.api_state.separate_store.as_ref().unwrap();
    separate.cache.unregister(&separate.key_prefix);
    // Repetitions would make each request last longer; a pause of the machine can do so once.
    let mut times = Vec::new();
    for _ in 0..5 {
        let begin = tokio::time::Instant::now();
        assert_eq!(server.get(&format!("{EVENTS}?resourceVersion=0")).await.code, 503);
        times.push(begin.elapsed());
    }
    let repetitions = REPETITION_PAUSE * u32::try_from(MAX_REPETITIONS).unwrap();
    assert!(times.iter().any(|time| *time < repetitions / 2), "{times:?}");
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

/// An Event of the namespace `c`.
fn event_in_c(name: &str) -> Value {
    json!({"metadata": {"name": name}, "involvedObject": {"namespace": "c"}, "reason": "Test"})
}

const EVENTS_IN_C: &str = "/api/v1/namespaces/c/events";
const NAMESPACE_C: &str = "core/namespaces/c";

#[tokio::test]
async fn bounded_write_of_an_event_uses_the_newest_namespace() {
    let fixture = Fixture::start(PolicyConsistency::Bounded).await;
    let server = &fixture.server;
    assert_eq!(server.post("/api/v1/namespaces", json!({"metadata": {"name": "c"}})).await.code, 201);
    let created_elsewhere = fixture.hide(server.memory.clone(), NAMESPACE_C).await;
    assert_eq!(server.post(EVENTS_IN_C, event_in_c("none")).await.code, 404);
    fixture.main.arrive(created_elsewhere);
    let created = server.post(EVENTS_IN_C, event_in_c("one")).await;
    assert_eq!(created.code, 201, "{}", created.json());
    fixture.main.arrive(fixture.removal(NAMESPACE_C));
    assert_eq!(server.post(EVENTS_IN_C, event_in_c("two")).await.code, 404);
    assert_eq!(fixture.rows("core/events/c/two").await, [0, 0]);
    fixture.reads.lock().clear();
    assert_eq!(server.get(EVENTS).await.code, 200);
    assert_eq!(*fixture.reads.lock(), ["events"], "a read needs no namespace");
}

#[tokio::test]
async fn event_is_not_stored_in_a_namespace_that_is_deleted_during_its_admission() {
    for consistency in [PolicyConsistency::Fresh, PolicyConsistency::Bounded] {
        let fixture = Fixture::start(consistency).await;
        let server = &fixture.server;
        assert_eq!(server.post("/api/v1/namespaces", json!({"metadata": {"name": "c"}})).await.code, 201);
        // The first read is that at the arrival of the request.
        fixture.main.arrive(|| ());
        fixture.main.arrive(fixture.removal(NAMESPACE_C));
        assert_eq!(server.post(EVENTS_IN_C, event_in_c("one")).await.code, 404, "{consistency:?}");
        assert_eq!(fixture.rows("core/events/c/").await, [0, 0], "{consistency:?}");
    }
}

#[tokio::test]
async fn policy_of_a_request_is_read_after_the_events() {
    let fixture = start().await;
    assert_eq!(fixture.server.post(EVENTS, event("one")).await.code, 201);
    fixture.reads.lock().clear();
    for url in [EVENTS.to_owned(), format!("{EVENTS}/one"), format!("{EVENTS}?resourceVersion=0")] {
        assert_eq!(fixture.server.get(&url).await.code, 200);
        assert_eq!(std::mem::take(&mut *fixture.reads.lock()), ["events", "main"], "{url}");
    }
}

#[tokio::test]
async fn event_after_a_revocation_is_not_sent_although_its_revision_is_smaller() {
    let is_revoked = Arc::new(AtomicBool::new(false));
    let (policy, denies) = (Auth::policy_revisions(), is_revoked.clone());
    let mut withhold = None;
    let auth = |clock: Arc<SystemClock>| {
        let (auth, withhold_decisions) =
            Auth::on_policy(clock, &policy, move |_| !denies.load(Ordering::SeqCst));
        withhold = Some(withhold_decisions);
        auth
    };
    let fixture =
        Fixture::with(PolicyConsistency::Fresh, Leading::Main, auth, Some(policy.clone()), "").await;
    let (server, withhold) = (&fixture.server, withhold.unwrap());
    let created = server.post(EVENTS, event("one")).await.json();
    assert!(version(&created) + 500 < server.api_state.cache.revision().0, "{created}");
    let mut watch =
        Lines::open(server, &format!("{EVENTS}?watch=1&resourceVersion={}", version(&created))).await;
    assert_eq!(server.post(EVENTS, event("two")).await.code, 201);
    assert_eq!(watch.next().await.unwrap()["object"]["metadata"]["name"], "two");

    withhold(true);
    is_revoked.store(true, Ordering::SeqCst);
    let role = json!({"metadata": {"name": "reader", "uid": "u"}, "rules": []});
    commit(&*server.memory, "clusterroles/reader", Op::Create(role.to_string().into()));
    let store = fixture.events_store();
    let row = store.get("core/events/a/two", None).await.unwrap().unwrap();
    commit(&*store, "core/events/a/three", Op::Create(row.value));
    let early = tokio::time::timeout(Duration::from_secs(1), watch.next()).await;
    assert!(early.is_err(), "sent before a decision on the newest policy: {early:?}");
    withhold(false);
    let end = watch.next().await.unwrap();
    assert_eq!((&end["type"], &end["object"]["code"]), (&json!("ERROR"), &json!(403)), "{end}");
    assert!(watch.next().await.is_none());
}

#[tokio::test]
async fn initial_events_need_one_read_of_the_policy() {
    let fixture = start().await;
    let server = &fixture.server;
    for number in 0..12 {
        let mut event = event(&format!("e{number}"));
        event["metadata"]["annotations"] = json!({"a": "x".repeat(20_000)});
        assert_eq!(server.post(EVENTS, event).await.code, 201);
    }
    fixture.reads.lock().clear();
    let mut watch = Lines::open(server, &format!("{EVENTS}?watch=1")).await;
    for _ in 0..12 {
        assert_eq!(watch.next().await.unwrap()["type"], "ADDED");
    }
    let of_main = fixture.reads.lock().iter().filter(|name| **name == "main").count();
    assert_eq!(of_main, 2, "one at the arrival of the request, one for all batches");
}

#[tokio::test]
async fn dependent_of_an_event_that_has_not_arrived_is_not_deleted() {
    let fixture = start().await;
    let server = &fixture.server;
    let owner = server.post(EVENTS, event("owner")).await.json();
    let created_elsewhere = fixture.hide(fixture.events_store(), "core/events/a/owner").await;
    fixture.events.arrive(created_elsewhere);
    start_controller(server, "garbage-collector-controller");
    let dependent = |name: &str, uid: &Value| {
        let mut dependent = map(name, "1");
        // An Event of the core group must not be an owner.
        let version = "events.example.test/v1";
        let owner = json!({"apiVersion": version, "kind": "Event", "name": "owner", "uid": uid});
        dependent["metadata"]["ownerReferences"] = json!([owner]);
        dependent
    };
    assert_eq!(server.post(MAPS, dependent("kept", &owner["metadata"]["uid"])).await.code, 201);
    eventually("the owner arrives", || async {
        let is_kept = server.get(&format!("{MAPS}/kept")).await.code == 200;
        assert!(is_kept, "the owner exists");
        fixture.events.arrivals.lock().is_empty().then_some(())
    })
    .await;
    assert_eq!(server.post(MAPS, dependent("orphan", &json!("another"))).await.code, 201);
    eventually("the owner of the other dependent is gone", || async {
        (server.get(&format!("{MAPS}/orphan")).await.code == 404).then_some(())
    })
    .await;
    assert_eq!(server.get(&format!("{MAPS}/kept")).await.code, 200);
}

#[tokio::test]
async fn migration_of_events_continues_after_an_outage() {
    let auth = |clock: Arc<SystemClock>| Auth::allow_all(clock);
    let served = "storagemigration.example.test/v1alpha1=true";
    let fixture = Fixture::with(PolicyConsistency::Fresh, Leading::Events, auth, None, served).await;
    let server = &fixture.server;
    fixture.events.set_away(true);
    start_controller(server, "storage-version-migrator-controller");
    let migrations = "/apis/storagemigration.example.test/v1alpha1/storageversionmigrations";
    let resource = json!({"version": "v1", "resource": "events", "group": "events.example.test"});
    let migration = json!({"metadata": {"name": "m"}, "spec": {"resource": resource}});
    let created = server.post(migrations, migration).await;
    assert_eq!(created.code, 201, "{}", created.json());
    eventually("the migration meets the outage", || async {
        (fixture.events.failures.load(Ordering::SeqCst) > 1).then_some(())
    })
    .await;
    let state = async || server.get(&format!("{migrations}/m")).await.json()["status"].to_string();
    assert!(!state().await.contains("Failed"), "{}", state().await);
    fixture.events.set_away(false);
    eventually("the migration ends", || async { state().await.contains("Succeeded").then_some(()) }).await;
}

#[tokio::test]
async fn deletion_of_a_namespace_reports_that_events_are_not_known() {
    let fixture = start().await;
    let server = &fixture.server;
    fixture.events.set_away(true);
    start_controller(server, "namespace-controller");
    assert_eq!(server.post(MAPS, map("one", "1")).await.code, 201);
    assert_eq!(server.delete("/api/v1/namespaces/a", Value::Null).await.code, 200);
    let message = eventually("the condition names the events", || async {
        let namespace = server.get("/api/v1/namespaces/a").await.json();
        let conditions = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|condition| {
            condition["type"] == "NamespaceDeletionContentFailure" && condition["status"] == "True"
        })
    })
    .await["message"]
        .to_string();
    assert!(message.contains("1 remaining: the etcd cluster of events does not answer"), "{message}");
    assert_eq!(server.get(&format!("{MAPS}/one")).await.code, 404, "the other content is deleted");
    fixture.events.set_away(false);
    eventually("the namespace is gone", || async {
        (server.get("/api/v1/namespaces/a").await.code == 404).then_some(())
    })
    .await;
}
