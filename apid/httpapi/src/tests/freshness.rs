//! Requests on a store to which other servers write: they wait for the newest revision, or fail with 503.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use storage::engine::memory::MemoryStore;
use storage::{Error, NewestReads, Observers, Op, Revision, Store};
use tokio::sync::watch;

use super::custom_kinds::{WIDGETS, define, definition, eventually, version, with_controller};
use super::{MAPS, Reply, Server, map};
use crate::freshness::{Freshness, PolicyConsistency};

/// The answer of etcd to reads of the newest revision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Now,
    Later,
    Failure,
}

/// A store with other writers, whose answer about its newest revision the test gives.
struct Remote {
    local: MemoryStore,
    answer: watch::Sender<Answer>,
    reads: AtomicUsize,
}

#[async_trait]
impl storage::conformance::StoreDouble for Remote {
    fn inner(&self) -> &dyn Store {
        &self.local
    }
    async fn newest_revision(&self) -> storage::Result<Revision> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        let mut answer = self.answer.subscribe();
        let answer = *answer.wait_for(|answer| *answer != Answer::Later).await.unwrap();
        if answer == Answer::Now {
            Ok(Revision(1))
        } else {
            Err(Error::Unavailable("secret-host".to_owned()))
        }
    }
}

struct Fixture {
    remote: Arc<Remote>,
    reads: Arc<NewestReads>,
    server: Arc<Server>,
}

impl Fixture {
    async fn start(consistency: PolicyConsistency, max_age: Duration) -> Self {
        let local = MemoryStore::of_several_servers(Arc::new(Observers(Vec::new())));
        let answer = watch::Sender::new(Answer::Now);
        let remote = Arc::new(Remote { local, answer, reads: AtomicUsize::new(0) });
        let store: Arc<dyn Store> = remote.clone();
        let reads = NewestReads::of(&store, "store", |_| ()).unwrap();
        reads.catch_up().await.unwrap();
        let freshness = Arc::new(Freshness::with_max_age(reads.clone(), consistency, max_age));
        let server = Arc::new(Server::start_with_freshness(freshness).await);
        Fixture { remote, reads, server }
    }

    async fn fresh() -> Self {
        Fixture::start(PolicyConsistency::Fresh, Duration::ZERO).await
    }

    fn answer(&self, answer: Answer) {
        self.remote.answer.send_replace(answer);
    }

    fn read_count(&self) -> usize {
        self.remote.reads.load(Ordering::SeqCst)
    }

    /// Sends a request, and checks that it waits for the newest revision.
    async fn send_waiting(&self, method: &'static str, url: &str) -> tokio::task::JoinHandle<Reply> {
        let before = self.read_count();
        self.answer(Answer::Later);
        let (server, url) = (self.server.clone(), url.to_owned());
        let request = tokio::spawn(async move { server.send(method, &url, &[], Bytes::new()).await });
        eventually("the request reads the newest revision", || async {
            (self.read_count() > before).then_some(())
        })
        .await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(!request.is_finished(), "the request does not wait");
        request
    }

    /// The code of a request that must not wait.
    async fn code_at_once(&self, method: &str, url: &str) -> u16 {
        let before = self.read_count();
        self.answer(Answer::Later);
        let code = self.server.send(method, url, &[], Bytes::new()).await.code;
        assert_eq!(self.read_count(), before, "{method} {url} waits");
        code
    }

    /// Removes a ConfigMap as another server does.
    async fn remove_elsewhere(&self, name: &str) {
        let state = &self.server.api_state;
        let kinds = state.kinds.get();
        let collection = kinds.collection(kinds.registry.find("", "v1", "configmaps").unwrap()).unwrap();
        let key = collection.kind.key("a", name);
        let row = state.store.get(&key, None).await.unwrap().unwrap();
        state.store.commit(&key, Op::Delete(row.revision)).await.unwrap();
    }
}

#[tokio::test]
async fn waiting_request_sees_changes_that_arrive_meanwhile() {
    let fixture = Fixture::fresh().await;
    for method in ["GET", "DELETE", "HEAD"] {
        fixture.answer(Answer::Now);
        assert_eq!(fixture.server.post(MAPS, map("one", "1")).await.code, 201);
        let request = fixture.send_waiting(method, &format!("{MAPS}/one")).await;
        fixture.remove_elsewhere("one").await;
        fixture.answer(Answer::Now);
        assert_eq!(request.await.unwrap().code, 404, "{method}");
    }
}

#[tokio::test]
async fn requests_without_newest_revision_get_503_and_tell_no_member() {
    let fixture = Fixture::fresh().await;
    fixture.answer(Answer::Failure);
    let any_state = format!("{MAPS}?resourceVersion=0");
    for url in [MAPS, &any_state, "/version", "/apis", "/metrics", "/unknown"] {
        let reply = fixture.server.get(url).await;
        let status = reply.json();
        assert_eq!((reply.code, status["reason"].as_str()), (503, Some("ServiceUnavailable")), "{url}");
        assert_eq!(status["details"]["retryAfterSeconds"], 1, "{url}");
        let message = status["message"].as_str().unwrap();
        assert!(message.contains("try again") && !message.contains("secret-host"), "{message}");
    }
    fixture.answer(Answer::Now);
    assert_eq!(fixture.server.get(MAPS).await.code, 200);
}

#[tokio::test]
async fn health_checks_do_not_wait() {
    let fixture = Fixture::fresh().await;
    for url in ["/livez", "/readyz", "/healthz", "/readyz/ping", "/readyz?verbose"] {
        assert_eq!(fixture.code_at_once("GET", url).await, 200, "{url}");
    }
}

#[tokio::test]
async fn bounded_policy_waits_only_for_newest_objects() {
    let fixture = Fixture::start(PolicyConsistency::Bounded, Duration::from_secs(3600)).await;
    assert_eq!(fixture.server.post(MAPS, map("one", "1")).await.code, 201);
    let one = fixture.server.get(&format!("{MAPS}/one")).await.json();
    let version = one["metadata"]["resourceVersion"].as_str().unwrap();
    for url in [
        format!("{MAPS}?resourceVersion=0"),
        format!("{MAPS}?resourceVersion={version}"),
        format!("{MAPS}/one?resourceVersion={version}"),
        "/version".to_owned(),
    ] {
        assert_eq!(fixture.code_at_once("GET", &url).await, 200, "{url}");
    }
    let reviews = "/apis/authorization.example.test/v1/selfsubjectaccessreviews";
    fixture.code_at_once("POST", reviews).await;
    let newer = format!("{MAPS}?resourceVersion=1000000&resourceVersionMatch=Exact");
    let continued = format!("{MAPS}?continue=x&resourceVersion=0");
    for (method, url) in [
        ("GET", MAPS),
        ("GET", &newer),
        ("GET", &continued),
        ("GET", &format!("{MAPS}/one")),
        ("POST", MAPS),
        ("PUT", &format!("{MAPS}/one?resourceVersion=0")),
        ("PATCH", &format!("{MAPS}/one")),
        ("DELETE", &format!("{MAPS}/none")),
        ("DELETE", &format!("{MAPS}?resourceVersion=0&labelSelector=a=b")),
    ] {
        let request = fixture.send_waiting(method, url).await;
        fixture.answer(Answer::Now);
        assert_ne!(request.await.unwrap().code, 503, "{method} {url}");
    }
}

#[tokio::test]
async fn bounded_policy_above_its_age_fails_closed() {
    let max_age = Duration::from_secs(2);
    let fixture = Fixture::start(PolicyConsistency::Bounded, max_age).await;
    let any_state = format!("{MAPS}?resourceVersion=0");
    fixture.answer(Answer::Failure);
    fixture.reads.catch_up().await.unwrap_err();
    assert_eq!(fixture.server.get(&any_state).await.code, 200, "the age is within the bound");
    eventually("the bound passes", || async {
        fixture.reads.age().is_some_and(|age| age > max_age).then_some(())
    })
    .await;
    let reply = fixture.server.get(&any_state).await;
    assert_eq!(reply.code, 503);
    assert!(reply.json()["message"].as_str().unwrap().contains("older than 2 s"), "{:?}", reply.json());
    fixture.answer(Answer::Now);
    fixture.reads.catch_up().await.unwrap();
    assert_eq!(fixture.server.get(&any_state).await.code, 200);
}

#[tokio::test]
async fn custom_kind_of_another_server_is_served_at_once() {
    let Fixture { server, .. } = Fixture::fresh().await;
    let server = with_controller(Arc::into_inner(server).unwrap()).await;
    define(&server, definition(&[version("v1", true)])).await;
    let store = server.api_state.store.clone();
    let kinds = server.api_state.kinds.get();
    let group = server.api_state.names.group("apiextensions");
    let key = kinds
        .registry
        .find_kind(&group, "CustomResourceDefinition")
        .unwrap()
        .key("", "widgets.shop.example.com");
    let established = store.get(&key, None).await.unwrap().unwrap().value;
    for _ in 0..20 {
        // Another server removes the definition, and then one establishes it again.
        let row = store.get(&key, None).await.unwrap().unwrap();
        store.commit(&key, Op::Delete(row.revision)).await.unwrap();
        assert_eq!(server.get(WIDGETS).await.code, 404);
        store.commit(&key, Op::Create(established.clone())).await.unwrap();
        assert_eq!(server.get(WIDGETS).await.code, 200);
    }
}
