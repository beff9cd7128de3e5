//! Object names and metadata (requirements D-NAME and D-META).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use apimachinery::clock::{Rng, SeededRng};
use serde_json::{Value, json};

use super::{MAPS, Reply, Server, map};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/a/deployments";

fn causes(reply: &Reply) -> Vec<String> {
    let causes = reply.json()["details"]["causes"].as_array().cloned().unwrap_or_default();
    causes.iter().map(|cause| cause["field"].as_str().unwrap().to_owned()).collect()
}

fn deployment(metadata: Value) -> Value {
    let template =
        json!({"metadata": {"labels": {"app": "d"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    json!({"metadata": metadata, "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "d"}}, "template": template}})
}

/// A name is unique per kind and namespace, and can be used again after deletion.
#[tokio::test]
async fn create_with_existing_name_returns_409() {
    let server = Server::start().await;
    let uid = |reply: Reply| reply.json()["metadata"]["uid"].as_str().unwrap().to_owned();
    let mut uids = BTreeSet::new();
    for url in [MAPS, "/api/v1/namespaces/b/configmaps", "/api/v1/namespaces/a/secrets", "/api/v1/nodes"] {
        let body = json!({"metadata": {"name": "x", "uid": "mine"}});
        let created = server.post(url, body.clone()).await;
        assert_eq!(created.code, 201, "{url}");
        assert!(uids.insert(uid(created)), "{url}");
        let again = server.post(url, body.clone()).await;
        assert_eq!((again.code, &again.json()["reason"]), (409, &json!("AlreadyExists")), "{url}");
        assert_eq!(server.delete(&format!("{url}/x"), Value::Null).await.code, 200);
        assert!(uids.insert(uid(server.post(url, body).await)), "{url}: the UID is not new");
    }
    for uid in uids {
        let parts: Vec<usize> = uid.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12], "{uid}");
        assert_eq!(uid.as_bytes()[14], b'4', "{uid}: not a UUID of version 4");
    }
}

/// Generates the same suffix several times.
struct RepeatingSuffix {
    rng: SeededRng,
    draws: AtomicUsize,
}

impl Rng for RepeatingSuffix {
    fn bits(&self) -> u128 {
        self.rng.bits()
    }

    fn name_suffix(&self) -> String {
        let drawn = self.draws.fetch_add(1, Ordering::Relaxed);
        // The eighth attempt after the first name yields a new suffix; later attempts do not.
        if drawn == 8 { "zzzzz".to_owned() } else { "bbbbb".to_owned() }
    }
}

/// The server generates a new name on a collision, at most seven times.
#[tokio::test]
async fn generate_name_retries_on_collision() {
    let rng = Arc::new(RepeatingSuffix { rng: SeededRng::new(3), draws: AtomicUsize::new(0) });
    let server = Server::start_with_kinds(rng.clone(), &[]).await;
    let body = json!({"metadata": {"generateName": "gen-"}});
    let name = |reply: &Reply| reply.json()["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    assert_eq!(name(&server.post(MAPS, body.clone()).await), "gen-bbbbb");
    assert_eq!(name(&server.post(MAPS, body.clone()).await), "gen-zzzzz");
    assert_eq!(rng.draws.load(Ordering::Relaxed), 9);
    let exhausted = server.post(MAPS, body).await;
    assert_eq!((exhausted.code, &exhausted.json()["reason"]), (409, &json!("AlreadyExists")));
    assert_eq!(rng.draws.load(Ordering::Relaxed), 17);

    let body = json!({"metadata": {"generateName": "gen-", "name": "chosen"}});
    let created = server.post(MAPS, body).await.json();
    assert_eq!(
        (&created["metadata"]["name"], &created["metadata"]["generateName"]),
        (&json!("chosen"), &json!("gen-"))
    );
    let long = json!({"metadata": {"generateName": "l".repeat(80)}});
    assert_eq!(name(&server.post(MAPS, long).await).len(), 63, "a long prefix is truncated");
    assert_eq!(
        causes(&server.post(MAPS, json!({"metadata": {"generateName": "Oops_"}})).await),
        ["metadata.generateName", "metadata.name"]
    );
}

/// Every resource has a scope in discovery and is served only in that scope.
#[tokio::test]
async fn resources_are_served_only_in_their_scope() {
    let server = Server::start().await;
    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "proxy"];
    let mut count = 0;
    for resource in server.api_state.kinds.registry().resources() {
        for version in resource.versions() {
            let group = &resource.group_resource.group;
            let root =
                if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
            let listed = server.get(&root).await.json();
            let entries = listed["resources"].as_array().unwrap();
            let entry = entries.iter().find(|r| r["name"] == resource.plural()).unwrap();
            assert_eq!(entry["namespaced"], resource.namespaced, "{entry}");
            assert_eq!(entry["kind"], resource.name());
            assert!(
                entry["verbs"].as_array().unwrap().iter().all(|v| verbs.contains(&v.as_str().unwrap())),
                "{entry}"
            );
            let plural = resource.plural();
            if resource.namespaced {
                assert_eq!(server.get(&format!("{root}/{plural}/x")).await.code, 404, "{plural}");
            } else {
                assert_eq!(server.get(&format!("{root}/namespaces/a/{plural}")).await.code, 404, "{plural}");
                assert_eq!(
                    server.get(&format!("{root}/namespaces/a/{plural}/x")).await.code,
                    404,
                    "{plural}"
                );
            }
            count += 1;
        }
    }
    assert!(count > 60, "{count}");
    let namespace = server.get("/api/v1/namespaces/a").await.json();
    let label = server.api_state.names.metadata_name_label();
    assert_eq!(namespace["metadata"]["labels"][&label], "a");
    assert_eq!(namespace["spec"]["finalizers"], json!([server.api_state.names.api_service]));
}

/// Update of a missing object creates it for some kinds.
#[tokio::test]
async fn update_creates_missing_object_for_some_kinds() {
    let server = Server::start().await;
    let group = |stem: &str| server.api_state.names.group(stem);
    let event = json!({"metadata": {"name": "x"}, "involvedObject": {"namespace": "a"}});
    let named = json!({"metadata": {"name": "x"}});
    let service = json!({"metadata": {"name": "x"}, "spec": {"ports": [{"port": 80}]}});
    for (url, body, code) in [
        (format!("/apis/{}/v1/namespaces/a/leases", group("coordination")), &named, 201),
        ("/api/v1/namespaces/a/events".to_owned(), &event, 201),
        ("/api/v1/namespaces/a/endpoints".to_owned(), &named, 201),
        ("/api/v1/namespaces/a/services".to_owned(), &service, 201),
        (format!("/apis/{}/v1/namespaces/a/roles", group("rbac.authorization")), &named, 201),
        (MAPS.to_owned(), &named, 404),
        (DEPLOYMENTS.to_owned(), &deployment(json!({"name": "x"})), 404),
        (
            "/api/v1/namespaces/a/pods".to_owned(),
            &json!({"metadata": {"name": "x"}, "spec": {"containers": []}}),
            404,
        ),
    ] {
        let reply = server.put(&format!("{url}/x"), body.clone()).await;
        assert_eq!(reply.code, code, "{url}: {:?}", reply.json());
        if code == 201 {
            let url = format!("{url}/x");
            let found = server.get(&url).await.json();
            assert_eq!(server.put(&url, found).await.code, 200, "update of an existing object");
        }
    }
}

/// Fields that the server sets: values from clients are ignored or rejected.
#[tokio::test]
async fn server_managed_metadata_cannot_be_set_by_clients() {
    let server = Server::start().await;
    let client_metadata = json!({
        "name": "x", "uid": "mine", "creationTimestamp": "1999-01-01T00:00:00Z", "selfLink": "/mine", "generation": 7,
        "deletionTimestamp": "1999-01-01T00:00:00Z", "deletionGracePeriodSeconds": 3, "resourceVersion": "0",
    });
    let object = server.post(MAPS, json!({"metadata": client_metadata})).await.json();
    let metadata = &object["metadata"];
    assert_eq!(
        (&object["kind"], &object["apiVersion"], &metadata["name"], &metadata["namespace"]),
        (&json!("ConfigMap"), &json!("v1"), &json!("x"), &json!("a"))
    );
    for absent in ["selfLink", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        assert_eq!(metadata.get(absent), None, "{absent}");
    }
    assert_ne!(metadata["uid"], "mine");
    let creation_time = metadata["creationTimestamp"].as_str().unwrap();
    assert!(
        creation_time.len() == 20 && creation_time.ends_with('Z') && !creation_time.starts_with("1999"),
        "{creation_time}"
    );
    let version = metadata["resourceVersion"].as_str().unwrap().to_owned();

    let url = format!("{MAPS}/x");
    let body_with =
        |field: &str, value: &str| json!({"metadata": {"name": "x", field: value}, "data": {"k": "1"}});
    for (field, value) in [
        ("creationTimestamp", "1999-01-01T00:00:00Z"),
        ("selfLink", "/mine"),
        ("deletionTimestamp", "1999-01-01T00:00:00Z"),
        ("deletionGracePeriodSeconds", "3"),
    ] {
        let mut body = body_with(field, value);
        if field == "deletionGracePeriodSeconds" {
            body["metadata"][field] = json!(3);
        }
        let reply = server.put(&url, body).await;
        let found = server.get(&url).await.json();
        assert!(matches!(reply.code, 200 | 422), "{field}");
        assert_eq!(found["metadata"]["creationTimestamp"], creation_time, "{field}");
        assert_eq!(found["metadata"].get("deletionTimestamp"), None, "{field}");
        assert_eq!(found["metadata"].get("selfLink"), None, "{field}");
    }
    let conflict = server.put(&url, body_with("uid", "other")).await;
    assert_eq!(conflict.code, 409);
    let uid = object["metadata"]["uid"].as_str().unwrap();
    assert_eq!(
        conflict.json()["message"],
        format!(
            "Operation cannot be fulfilled on configmaps \"x\": StorageError: invalid object, Code: 4, Key: /configmaps/a/x, \
             ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: other, UID in object meta: {uid}"
        )
    );
    let now = server.get(&url).await.json();
    assert_ne!(now["metadata"]["resourceVersion"], version.as_str(), "a write changes the resourceVersion");
    assert_eq!(now["metadata"]["uid"], object["metadata"]["uid"]);

    let rejected = server.post(MAPS, json!({"metadata": {"name": "y", "resourceVersion": "7"}})).await;
    assert_eq!(rejected.code, 500);
    assert!(rejected.json()["message"].as_str().unwrap().contains("resourceVersion should not be set"));
    let named = server.get(DEPLOYMENTS).await.json();
    assert_eq!(named["apiVersion"], "apps/v1");
}

/// A write without changes creates no revision and no event.
#[tokio::test]
async fn write_without_changes_creates_no_revision_or_event() {
    let server = Server::start().await;
    let created = server.post(MAPS, map("x", "1")).await.json();
    let version = created["metadata"]["resourceVersion"].as_str().unwrap();
    let url = format!("{MAPS}/x");
    for reply in [
        server.put(&url, created.clone()).await,
        server.put(&url, map("x", "1")).await,
        server.merge(&url, json!({"data": {"k": "1"}})).await,
        server.merge(&url, json!({})).await,
    ] {
        assert_eq!((reply.code, &reply.json()["metadata"]["resourceVersion"]), (200, &json!(version)));
    }
    let events = server.get(&format!("{MAPS}?watch=1&resourceVersion={version}&timeoutSeconds=1")).await;
    assert_eq!(events.body, "");
}

/// Labels, annotations, finalizers and owner references: types and limits.
#[tokio::test]
async fn labels_annotations_finalizers_and_owners_are_validated() {
    let server = Server::start().await;
    let (long, longer) = ("v".repeat(63), "v".repeat(64));
    let large_annotation = |bytes: usize| json!({"annotations": {"a": "x".repeat(bytes - 1)}});
    let owner = |kind: &str| json!({"apiVersion": "v1", "kind": kind, "name": "o", "uid": "u"});
    let controller =
        |uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": uid, "controller": true});
    for (metadata, code, field) in [
        (json!({"labels": {"a": "b", "example.com/C_d": "", long.as_str(): long}}), 201, ""),
        (json!({"labels": {"a": longer}}), 422, "metadata.labels"),
        (json!({"labels": {longer.as_str(): "a"}}), 422, "metadata.labels"),
        (json!({"labels": {"a/b/c": "a"}}), 422, "metadata.labels"),
        (json!({"labels": {"a": "no!"}}), 422, "metadata.labels"),
        (json!({"labels": {"a": 5}}), 400, ""),
        (json!({"annotations": {"a": true}}), 400, ""),
        (json!({"annotations": {"Upper.example.com/x": "any\ntext"}}), 201, ""),
        (json!({"annotations": {"a b": ""}}), 422, "metadata.annotations"),
        (large_annotation(256 * 1024), 201, ""),
        (large_annotation(256 * 1024 + 1), 422, "metadata.annotations"),
        (json!({"finalizers": ["a.b/c", "orphan"]}), 201, ""),
        (json!({"finalizers": ["x"]}), 422, "metadata.finalizers[0]"),
        (json!({"finalizers": ["a b/c"]}), 422, "metadata.finalizers"),
        (json!({"finalizers": "a.b/c"}), 400, ""),
        (json!({"ownerReferences": [owner("ConfigMap")]}), 201, ""),
        (json!({"ownerReferences": [owner("Event")]}), 422, "metadata.ownerReferences"),
        (json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Pod"}]}), 422, "metadata.ownerReferences"),
        (json!({"ownerReferences": [controller("1"), controller("2")]}), 422, "metadata.ownerReferences"),
    ] {
        let mut body = json!({"metadata": metadata});
        body["metadata"]["generateName"] = json!("x-");
        let reply = server.post(MAPS, body.clone()).await;
        let text = body.to_string();
        let text = text.get(..120).unwrap_or(&text);
        assert_eq!(reply.code, code, "{text}: {}", reply.json()["message"]);
        let causes = causes(&reply);
        assert!(causes.iter().all(|cause| cause.starts_with(field)), "{text}: {causes:?}");
        assert_eq!(causes.is_empty(), code != 422, "{text}");
        if code == 201 {
            for part in metadata_fields(&body) {
                assert_eq!(reply.json()["metadata"][part], body["metadata"][part], "{text}");
            }
        }
    }
}

fn metadata_fields(body: &Value) -> Vec<&str> {
    let fields = body["metadata"].as_object().unwrap().keys();
    fields.map(String::as_str).filter(|field| *field != "generateName").collect()
}

/// The generation counts changes of the spec, not of the status.
#[tokio::test]
async fn generation_increments_only_on_spec_changes() {
    let server = Server::start().await;
    let created = server.post(DEPLOYMENTS, deployment(json!({"name": "d", "generation": 9}))).await.json();
    assert_eq!(
        (&created["metadata"]["generation"], created["status"].get("observedGeneration")),
        (&json!(1), None)
    );
    let url = format!("{DEPLOYMENTS}/d");
    for (part, body, generation) in [
        ("", json!({"metadata": {"labels": {"a": "b"}}}), 1),
        ("", json!({"spec": {"replicas": 2}}), 2),
        ("", json!({"status": {"replicas": 5}}), 2),
        ("/status", json!({"status": {"replicas": 2, "observedGeneration": 2}}), 2),
        ("", json!({"metadata": {"generation": 77}}), 2),
        ("/scale", json!({"spec": {"replicas": 4}}), 3),
        ("/status", json!({"spec": {"replicas": 9}}), 3),
    ] {
        let reply = server.merge(&format!("{url}{part}"), body.clone()).await;
        assert_eq!(reply.code, 200, "{part} {body}");
        assert_eq!(server.get(&url).await.json()["metadata"]["generation"], generation, "{part} {body}");
    }
    let now = server.get(&url).await.json();
    assert_eq!(
        (&now["spec"]["replicas"], &now["status"]),
        (&json!(4), &json!({"replicas": 2, "observedGeneration": 2}))
    );
}

/// Responses without an object have no name, and reviews support neither list nor apply.
#[tokio::test]
async fn reviews_and_status_have_no_name_and_no_list() {
    let server = Server::start().await;
    assert_eq!(server.get("/version").await.json().get("metadata"), None);
    let status = server.get(&format!("{MAPS}/gone")).await.json();
    assert_eq!((&status["kind"], &status["metadata"]), (&json!("Status"), &json!({})));
    let group = |stem: &str| server.api_state.names.group(stem);
    let apply = ("content-type", "application/apply-patch+yaml");
    for (stem, review) in [("authorization", "subjectaccessreviews"), ("authentication", "tokenreviews")] {
        let url = format!("/apis/{}/v1/{review}", group(stem));
        assert_eq!(server.get(&url).await.code, 405, "{review}");
        assert_eq!(server.get(&format!("{url}/x")).await.code, 404, "{review}");
        let applied = server.send("PATCH", &format!("{url}/x?fieldManager=m"), &[apply], "spec: {}").await;
        assert!(matches!(applied.code, 404 | 405), "{review}: {}", applied.code);
    }
}

/// Fields that admission plugins fill again are no change of the spec.
#[tokio::test]
async fn put_without_fields_of_admission_plugins_keeps_generation() {
    let server = Server::start().await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let created = server.post("/api/v1/namespaces/a/pods", pod).await.json();
    let mut body = created.clone();
    let spec = body["spec"].as_object_mut().unwrap();
    for field in ["tolerations", "priority", "preemptionPolicy"] {
        assert!(spec.remove(field).is_some(), "{field}");
    }
    let reply = server.put("/api/v1/namespaces/a/pods/p", body).await;
    assert_eq!((reply.code, reply.json()), (200, created));
}

/// Objects of two groups: errors name the group of the request.
#[tokio::test]
async fn error_of_event_names_the_group_of_the_request() {
    let server = Server::start().await;
    let events = "/apis/events.example.test/v1/namespaces/a/events";
    let event = json!({"metadata": {"name": "x"}, "regarding": {"namespace": "a"}, "reason": "r", "action": "a", "type": "Normal",
        "eventTime": "2024-01-02T03:04:05.000000Z", "reportingController": "a.example/c", "reportingInstance": "i"});
    let created = server.post(events, event.clone()).await;
    assert_eq!(created.code, 201, "{:?}", created.json());
    let with = |field: &str, value: &str| {
        let mut event = created.json();
        event["metadata"][field] = json!(value);
        event
    };
    let url = format!("{events}/x");
    for (reply, expected) in [
        (server.post(events, event).await, "events.events.example.test \"x\" already exists"),
        (
            server.put(&url, with("uid", "other")).await,
            "Operation cannot be fulfilled on events.events.example.test \"x\": StorageError",
        ),
        (
            server.put(&url, with("resourceVersion", "1")).await,
            "Operation cannot be fulfilled on events.events.example.test \"x\": the object has been modified",
        ),
        (server.merge(&format!("{events}/y"), json!({})).await, "events.events.example.test \"y\" not found"),
    ] {
        let message = reply.json()["message"].as_str().unwrap().to_owned();
        assert!(message.starts_with(expected), "{message}");
    }
}
