//! Creates that meet a write of another server just before their commit.

use apimachinery::object::Object;
use futures_util::FutureExt as _;
use serde_json::{Value, json};
use storage::engine::memory::MemoryStore;
use storage::{CLAIMS, Op, Revision, Store as _};

use super::custom_kinds::{
    DEFINITIONS, WIDGETS, define, definition, eventually, version, widget, with_controller,
};
use super::{MAPS, Reply, Server, map};

const NAMESPACE: &str = "core/namespaces/a";
const STORED_MAPS: &str = "core/configmaps/";
const STORED_WIDGETS: &str = "custom/shop.example.com/widgets/";
const STORED_SERVICES: &str = "core/services/";
const DEFINITION: &str = "apiextensions/customresourcedefinitions/widgets.shop.example.com";

impl Server {
    /// Lets another server change an object just before the commit of a key with a prefix; None deletes the object.
    fn interleave(&self, prefix: &str, key: &'static str, change: Option<fn(&mut Object)>) {
        self.memory.before_commit(prefix, move |store| {
            let row = store.get(key, None).now_or_never().unwrap().unwrap().unwrap();
            let op = match change {
                Some(change) => {
                    let mut object = kinds::entry::decode(&row.value, Revision(0)).unwrap();
                    change(&mut object);
                    Op::Update(kinds::entry::encode(&object), row.revision)
                }
                None => Op::Delete(row.revision),
            };
            store.commit(key, op).now_or_never().unwrap().unwrap();
        });
    }

    async fn has(&self, key: &str) -> bool {
        self.memory.get(key, None).await.unwrap().is_some()
    }
}

fn mark_as_terminating(object: &mut Object) {
    object.set_meta("deletionTimestamp", "2026-01-01T00:00:00Z");
}

fn add_label(object: &mut Object) {
    object.set_meta("labels", json!({"color": "red"}));
}

fn message(reply: &Reply) -> (u16, String) {
    (reply.code, reply.json()["message"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn object_is_not_stored_after_another_server_deletes_its_namespace() {
    let server = Server::start_among_servers().await;
    server.interleave(STORED_MAPS, NAMESPACE, Some(add_label));
    assert_eq!(server.post(MAPS, map("one", "x")).await.code, 201, "another change of the namespace");
    server.interleave(STORED_MAPS, NAMESPACE, Some(mark_as_terminating));
    let (code, text) = message(&server.post(MAPS, map("two", "x")).await);
    assert!(code == 403 && text.ends_with("namespace a because it is being terminated"), "{code} {text}");
    server.interleave(STORED_MAPS, NAMESPACE, None);
    let later = server.post(MAPS, map("three", "x")).await.code;
    assert_eq!(later, 403, "admission knows the terminating namespace");
    assert!(server.has("core/configmaps/a/one").await);
    assert!(!server.has("core/configmaps/a/two").await && !server.has("core/configmaps/a/three").await);
}

#[tokio::test]
async fn object_is_not_stored_after_another_server_removes_its_namespace() {
    let server = Server::start_among_servers().await;
    server.interleave(STORED_MAPS, NAMESPACE, None);
    let reply = server.post(MAPS, map("one", "x")).await;
    assert_eq!(message(&reply), (404, "namespaces \"a\" not found".to_owned()));
    assert!(!server.has("core/configmaps/a/one").await);
}

#[tokio::test]
async fn custom_object_is_not_stored_after_another_server_deletes_its_definition() {
    let server = with_controller(Server::start_among_servers().await).await;
    define(&server, definition(&[version("v1", true)])).await;
    server.interleave(STORED_WIDGETS, DEFINITION, Some(add_label));
    assert_eq!(server.post(WIDGETS, widget("one", json!({}))).await.code, 201);
    // The controller may write the status of the definition after its change.
    eventually("the write of the other server is last", || async {
        server.interleave(STORED_WIDGETS, DEFINITION, Some(mark_as_terminating));
        let (code, text) = message(&server.post(WIDGETS, widget("two", json!({}))).await);
        (code == 403 && text.contains("while custom resource definition is terminating")).then_some(())
    })
    .await;
    assert!(!server.has("custom/shop.example.com/widgets/a/two").await);
}

#[tokio::test]
async fn custom_object_is_not_stored_after_another_server_removes_its_definition() {
    let server = with_controller(Server::start_among_servers().await).await;
    define(&server, definition(&[version("v1", true)])).await;
    server.interleave(STORED_WIDGETS, DEFINITION, None);
    assert_eq!(server.post(WIDGETS, widget("one", json!({}))).await.code, 404);
    assert!(!server.has("custom/shop.example.com/widgets/a/one").await);
    assert_eq!(server.get(&format!("{DEFINITIONS}/widgets.shop.example.com")).await.code, 404);
}

const SERVICES: &str = "/api/v1/namespaces/a/services";

fn service(name: &str, address: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "a"}, "spec": {"clusterIP": address, "clusterIPs": [address],
        "ports": [{"port": 80}]}})
}

/// Ends all claims, as etcd ends those of a paused server.
fn end_claims(store: &MemoryStore) {
    let claims = store.range(CLAIMS, "", 0, None).now_or_never().unwrap().unwrap().rows;
    for claim in claims {
        store.commit(&claim.key, Op::Delete(claim.revision)).now_or_never().unwrap().unwrap();
    }
}

#[tokio::test]
async fn service_is_stored_after_another_server_changes_its_namespace() {
    let server = Server::start_among_servers().await;
    server.interleave(STORED_SERVICES, NAMESPACE, Some(add_label));
    let reply = server.post(SERVICES, service("one", "10.0.0.9")).await;
    assert_eq!(reply.code, 201, "{}", reply.json());
    server.interleave(STORED_SERVICES, NAMESPACE, Some(mark_as_terminating));
    let (code, text) = message(&server.post(SERVICES, service("two", "10.0.0.10")).await);
    assert!(code == 403 && text.ends_with("namespace a because it is being terminated"), "{code} {text}");
    eventually("the claims end with their writes", || async {
        server.memory.range(CLAIMS, "", 0, None).await.unwrap().rows.is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn service_without_its_claim_is_not_stored() {
    let server = Server::start_among_servers().await;
    server.memory.before_commit(STORED_SERVICES, end_claims);
    let (code, text) = message(&server.post(SERVICES, service("one", "10.0.0.9")).await);
    assert!(code == 503 && text.contains("was not stored"), "{code} {text}");
    assert!(!server.has("core/services/a/one").await);
}

#[tokio::test]
async fn record_of_an_address_is_not_replaced_after_the_end_of_the_claim() {
    let server = Server::start_among_servers().await;
    assert_eq!(server.post(SERVICES, service("one", "10.0.0.9")).await.code, 201);
    server.delete(&format!("{SERVICES}/one"), json!({})).await;
    for (name, has_record) in [("two", true), ("three", false)] {
        // Another server may now own the address.
        server.memory.before_commit("networking/ipaddresses/10.0.0.9", end_claims);
        let (code, text) = message(&server.post(SERVICES, service(name, "10.0.0.9")).await);
        assert!(code == 500 && text.contains("was not stored"), "{code} {text}");
        let record = server.memory.get("networking/ipaddresses/10.0.0.9", None).await.unwrap();
        assert_eq!(record.is_some(), has_record, "for {name}");
        if let Some(record) = record {
            server.memory.commit(&record.key, Op::Delete(record.revision)).await.unwrap();
        }
    }
    assert_eq!(server.post(SERVICES, service("four", "10.0.0.9")).await.code, 201);
}

#[tokio::test]
async fn service_that_another_server_creates_first_exists_already() {
    let server = Server::start_among_servers().await;
    let other = Object::from_value(service("one", "10.0.0.9")).unwrap();
    server.memory.before_commit(CLAIMS, move |store| {
        let op = Op::Create(kinds::entry::encode(&other));
        store.commit("core/services/a/one", op).now_or_never().unwrap().unwrap();
    });
    let reply = server.post(SERVICES, service("one", "10.0.0.9")).await;
    assert_eq!(message(&reply), (409, "services \"one\" already exists".to_owned()));
}
