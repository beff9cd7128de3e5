//! Requests for custom objects that differ from requests for built-in kinds.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::{Value, json};

use super::custom_kinds::{DEFINITIONS, define, definition_of_thing, eventually, start};
use super::{MAPS, Server, map};

const THINGS: &str = "/apis/shop.example.com/v1/namespaces/a/things";
const ALL_THINGS: &str = "/apis/shop.example.com/v1/things";

/// The schema of the `spec` of a thing.
fn spec() -> Value {
    json!({"type": "object", "x-svc-preserve-unknown-fields": true,
        "properties": {"size": {"type": "integer", "maximum": 9}}})
}

/// A definition of things with the subresource `scale`.
fn scalable_things(scope: &str) -> Value {
    let mut definition = definition_of_thing("shop.example.com", spec());
    definition["spec"]["scope"] = json!(scope);
    definition["spec"]["versions"][0]["subresources"] =
        json!({"scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}});
    definition
}

fn thing(name: &str, size: i64) -> Value {
    json!({"apiVersion": "shop.example.com/v1", "kind": "Thing", "metadata": {"name": name}, "spec": {"size": size}})
}

#[tokio::test]
async fn body_without_type_returns_400() {
    let server = start().await;
    define(&server, definition_of_thing("shop.example.com", spec())).await;
    let reply = server.post(THINGS, json!({})).await;
    assert_eq!((reply.code, &reply.json()["reason"]), (400, &json!("BadRequest")));
    assert_eq!(
        reply.json()["message"],
        "the object provided is unrecognized (must be of type Thing): Object 'Kind' is missing in '{}' ({})"
    );
    let reply = server.post(THINGS, json!({"kind": "Thing", "metadata": {"name": "x"}})).await;
    assert_eq!(
        (reply.code, &reply.json()["message"]),
        (
            400,
            &json!(
                "the API version in the data () does not match the expected API version (shop.example.com/v1)"
            )
        )
    );
}

#[tokio::test]
async fn path_of_another_scope_returns_404() {
    let server = start().await;
    define(&server, definition_of_thing("shop.example.com", spec())).await;
    assert_eq!(server.post(THINGS, thing("x", 1)).await.code, 201);
    let item = format!("{ALL_THINGS}/x");
    for (method, url, body) in [
        ("POST", ALL_THINGS, thing("y", 1)),
        ("DELETE", ALL_THINGS, json!({})),
        ("GET", &item, json!({})),
        ("PUT", &item, thing("x", 2)),
        ("DELETE", &item, json!({})),
    ] {
        let reply = server.send(method, url, &[("content-type", "application/json")], body.to_string()).await;
        assert_eq!((reply.code, &reply.body[..]), (404, &b"404 page not found\n"[..]), "{method} {url}");
    }
    assert_eq!(server.get(ALL_THINGS).await.json()["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn list_of_custom_objects_has_continue() {
    let server = start().await;
    define(&server, definition_of_thing("shop.example.com", spec())).await;
    assert_eq!(server.get(THINGS).await.json()["metadata"]["continue"], "");
    assert_eq!(server.post(THINGS, thing("x", 1)).await.code, 201);
    assert_eq!(server.get(&format!("{THINGS}?pretty=true")).await.json()["metadata"]["continue"], "");
    let table = ("accept", "application/json;as=Table;v=v1;g=meta.example.test");
    let table = server.send("GET", THINGS, &[table], "").await.json();
    assert!(table["metadata"].get("continue").is_none());
}

#[tokio::test]
async fn cluster_scoped_object_is_scaled() {
    let server = start().await;
    define(&server, scalable_things("Cluster")).await;
    assert_eq!(server.post(ALL_THINGS, thing("x", 1)).await.code, 201);
    let url = format!("{ALL_THINGS}/x/scale");
    let patched = server.merge(&url, json!({"spec": {"replicas": 3}})).await;
    assert_eq!((patched.code, &patched.json()["spec"]["replicas"]), (200, &json!(3)));
    let scale = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "x"}, "spec": {"replicas": 4}});
    assert_eq!(server.put(&url, scale).await.code, 200);
    assert_eq!(server.get(&format!("{ALL_THINGS}/x")).await.json()["spec"]["size"], 4);
    let negative = server.merge(&url, json!({"spec": {"replicas": -1}})).await;
    let causes = &negative.json()["details"]["causes"];
    assert_eq!(
        (negative.code, &causes[0]["field"], &causes[0]["message"]),
        (422, &json!(".spec.size"), &json!("Invalid value: -1: should be a non-negative integer"))
    );
    let strategic = [("content-type", "application/strategic-merge-patch+json")];
    assert_eq!(server.send("PATCH", &url, &strategic, r#"{"spec":{"replicas":5}}"#).await.code, 415);
}

#[tokio::test]
async fn finalizer_without_path_is_accepted_with_warning() {
    let server = start().await;
    define(&server, definition_of_thing("shop.example.com", spec())).await;
    let mut object = thing("x", 1);
    object["metadata"]["finalizers"] = json!(["things.shop.example.com"]);
    let created = server.post(THINGS, object).await;
    assert_eq!(created.code, 201);
    let warning = created.header("warning");
    assert!(warning.contains("prefer a domain-qualified finalizer name"), "{warning}");
}

#[tokio::test]
async fn names_of_built_in_kind_are_not_served() {
    let server = start().await;
    let group = server.api_state.names.group("rbac.authorization");
    let mut definition = definition_of_thing(&group, spec());
    definition["metadata"] = json!({"name": format!("roles.{group}"),
        "annotations": {(server.api_state.names.approval_annotation()): "unapproved"}});
    definition["spec"]["names"] = json!({"plural": "roles", "kind": "Role"});
    definition["spec"]["versions"][0]["name"] = json!("v9");
    let created = server.post(DEFINITIONS, definition).await;
    assert_eq!(created.code, 201, "{}", created.json());
    let url = format!("{DEFINITIONS}/roles.{group}");
    let conditions = eventually("the conditions", || async {
        let conditions = server.get(&url).await.json()["status"]["conditions"].clone();
        conditions.as_array().is_some_and(|list| list.len() == 3).then_some(conditions)
    })
    .await;
    let summary: Vec<_> = conditions
        .as_array()
        .unwrap()
        .iter()
        .map(|one| (one["type"].as_str().unwrap(), one["status"].as_str().unwrap()))
        .collect();
    assert_eq!(summary.first().unwrap().1, "False", "the approval comes first");
    assert_eq!(&summary[1..], [("NamesAccepted", "False"), ("Established", "False")]);
    assert_eq!(server.get(&format!("/apis/{group}/v9/namespaces/a/roles")).await.code, 404);
    assert_eq!(server.get(&format!("/apis/{group}/v1/namespaces/a/roles")).await.code, 200);
}

#[tokio::test]
async fn defaults_beyond_the_decode_limits_return_413() {
    let server = start().await;
    let items =
        json!({"type": "object", "properties": {"a": {"type": "string", "default": "x".repeat(100_000)}}});
    let spec = json!({"type": "object", "properties": {"list": {"type": "array", "items": items}}});
    define(&server, definition_of_thing("shop.example.com", spec)).await;
    let mut object = thing("x", 1);
    object["spec"] = json!({"list": vec![json!({}); 10_000]});
    let reply = server.post(THINGS, object).await;
    assert_eq!((reply.code, &reply.json()["reason"]), (413, &json!("RequestEntityTooLarge")));
    let mut object = thing("x", 1);
    object["spec"] = json!({"list": [{}]});
    assert_eq!(server.post(THINGS, object).await.code, 201);
    let patch = json!({"spec": {"list": vec![json!({}); 10_000]}});
    assert_eq!(server.merge(&format!("{THINGS}/x"), patch.clone()).await.code, 413);
    let mut intent = thing("x", 1);
    intent["spec"] = patch["spec"].clone();
    assert_eq!(server.apply_with(&format!("{THINGS}/x"), "m", "&force=true", &intent).await.code, 413);
}

/// The defaults take memory that the body does not show, so they count for the limits of heavy work.
#[tokio::test]
async fn small_body_with_large_defaults_is_heavy() {
    let server = start().await;
    let items = |length: usize| {
        json!({"type": "array", "items": {"type": "object", "properties": {
            "a": {"type": "string", "default": "x".repeat(length)}}}})
    };
    let spec = json!({"type": "object", "properties": {"small": items(10), "large": items(10_000)}});
    define(&server, definition_of_thing("shop.example.com", spec)).await;
    let pool = server.api.pool();
    let object = |name: &str, count: usize| {
        let mut object = thing(name, 1);
        object["spec"] = json!({"large": vec![json!({}); count]});
        object
    };
    let tasks = pool.started_tasks();
    assert_eq!(server.post(THINGS, thing("x", 1)).await.code, 201);
    assert_eq!(pool.started_tasks(), tasks, "few values");
    assert_eq!(server.post(THINGS, object("y", 200)).await.code, 201);
    assert_eq!(pool.started_tasks(), tasks + 1, "200 defaults of 10 kB");
    let patch = json!({"spec": {"large": vec![json!({}); 200]}});
    assert_eq!(server.merge(&format!("{THINGS}/x"), patch).await.code, 200);
    assert_eq!(pool.started_tasks(), tasks + 2);
}

/// Delays the creates of a resource by the timeout of a webhook, whose server never answers. Returns the server.
async fn delay_creates(server: &Server, group: &str, resource: &str) -> tokio::net::TcpListener {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let webhook = json!({"metadata": {"name": "slow"}, "webhooks": [{
        "name": "slow.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": format!("https://{}/", silent.local_addr().unwrap())},
        "failurePolicy": "Ignore", "timeoutSeconds": 2,
        "rules": [{"apiGroups": [group], "apiVersions": ["*"], "resources": [resource],
            "operations": ["CREATE"]}]}]});
    let webhooks = "/apis/admissionregistration.example.test/v1/validatingwebhookconfigurations";
    assert_eq!(server.post(webhooks, webhook).await.code, 201);
    silent
}

/// A webhook delays a create until its namespace is gone.
#[tokio::test]
async fn create_that_outlasts_its_namespace_stores_nothing() {
    let server = Arc::new(Server::start().await);
    let silent = delay_creates(&server, "", "configmaps").await;
    let slow = Arc::clone(&server);
    let creating = tokio::spawn(async move { slow.post(MAPS, map("x", "v")).await });
    let (_connection, _) = silent.accept().await.unwrap();
    let url = "/api/v1/namespaces/a";
    assert_eq!(server.delete(url, json!({})).await.code, 200);
    let mut namespace = server.get(url).await.json();
    namespace["spec"] = json!({"finalizers": []});
    assert_eq!(server.put(&format!("{url}/finalize"), namespace).await.code, 200);
    assert!(!creating.is_finished());
    let reply = creating.await.unwrap();
    assert_eq!((reply.code, &reply.json()["message"]), (404, &json!("namespaces \"a\" not found")));
    let rows = server.api_state.store.range("core/configmaps/a/", "", 0, None).await.unwrap().rows;
    assert!(rows.is_empty(), "{rows:?}");
}

/// A webhook delays a create until its definition is gone, exists again, or waits for a finalizer.
#[tokio::test]
async fn create_that_outlasts_its_definition_stores_nothing() {
    for (is_defined_again, finalizers, code) in
        [(false, json!([]), 404), (true, json!([]), 404), (false, json!(["example.com/hold"]), 403)]
    {
        let server = Arc::new(start().await);
        let mut definition = definition_of_thing("shop.example.com", spec());
        definition["metadata"]["finalizers"] = finalizers;
        define(&server, definition).await;
        let silent = delay_creates(&server, "shop.example.com", "things").await;
        let slow = Arc::clone(&server);
        let creating = tokio::spawn(async move { slow.post(THINGS, thing("x", 1)).await });
        let (_connection, _) = silent.accept().await.unwrap();
        let url = format!("{DEFINITIONS}/things.shop.example.com");
        assert_eq!(server.delete(&url, json!({})).await.code, 200);
        eventually("the end of the cleanup", || async {
            let definition = server.get(&url).await;
            let text = String::from_utf8_lossy(&definition.body).into_owned();
            (definition.code == 404 || text.contains("InstanceDeletionCompleted")).then_some(())
        })
        .await;
        if is_defined_again {
            define(&server, definition_of_thing("shop.example.com", spec())).await;
        }
        assert!(!creating.is_finished());
        let reply = creating.await.unwrap();
        assert_eq!(reply.code, code, "{}", reply.json());
        let rows =
            server.api_state.store.range("custom/shop.example.com/things/", "", 0, None).await.unwrap().rows;
        assert!(rows.is_empty(), "{rows:?}");
    }
}

/// A change of a definition replaces the cached objects of its kind.
///
/// The clients yield after each request: a request that waits for nothing never lets the other tasks of its thread run.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn requests_during_changes_of_the_definition_succeed() {
    let server = Arc::new(start().await);
    define(&server, definition_of_thing("shop.example.com", spec())).await;
    assert_eq!(server.post(THINGS, thing("x", 1)).await.code, 201);
    let (is_done, requests) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let clients: Vec<_> = (0..8)
        .map(|client| {
            let (server, is_done, requests) =
                (Arc::clone(&server), Arc::clone(&is_done), Arc::clone(&requests));
            tokio::spawn(async move {
                while !is_done.load(Ordering::Relaxed) {
                    let url = format!("{THINGS}/x");
                    let reply = match client % 4 {
                        0 => server.get(&url).await,
                        1 => server.get(THINGS).await,
                        2 => {
                            server
                                .merge(&url, json!({"spec": {"count": requests.load(Ordering::Relaxed)}}))
                                .await
                        }
                        _ => server.delete(&format!("{THINGS}?labelSelector=none"), json!({})).await,
                    };
                    assert_eq!(reply.code, 200, "{}", String::from_utf8_lossy(&reply.body));
                    requests.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for round in 0..40 {
        let path = "/spec/versions/0/schema/openAPIV3Schema/description";
        let patch = json!([{"op": "add", "path": path, "value": format!("round {round}")}]);
        let headers = [("content-type", "application/json-patch+json")];
        let url = format!("{DEFINITIONS}/things.shop.example.com");
        assert_eq!(server.send("PATCH", &url, &headers, patch.to_string()).await.code, 200);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    is_done.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    assert!(requests.load(Ordering::Relaxed) > 40);
}
