//! Delete requests in all forms (requirements D-DELOPT, D-DEL). The end-to-end tests cover the garbage
//! collector.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use admission::Recorder;
use apimachinery::attributes::Attributes;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use authclient::Authorized;
use bytes::Bytes;
use serde_json::{Value, json};
use storage::Op;
use verbs::deletion::options::DeleteOptions;
use verbs::options::ListOptions;
use verbs::{BatchLimits, Call};

use super::{MAPS, Reply, Server, map};

const PODS: &str = "/api/v1/namespaces/a/pods";

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (field, value) in spec.as_object().unwrap() {
        pod["spec"][field] = value.clone();
    }
    pod
}

fn map_with_finalizer(name: &str) -> Value {
    json!({"metadata": {"name": name, "finalizers": ["example.com/hold"]}})
}

/// Returns the grace period in seconds, and whether the pod still exists.
async fn grace(server: &Server, reply: &Reply, name: &str) -> (Value, bool) {
    assert_eq!(reply.code, 200, "{}", reply.json());
    let body = reply.json();
    assert_eq!(body["kind"], "Pod");
    let exists = server.get(&format!("{PODS}/{name}")).await.code == 200;
    (body["metadata"]["deletionGracePeriodSeconds"].clone(), exists)
}

#[tokio::test]
async fn pod_grace_period_can_only_be_shortened() {
    let server = Server::start().await;
    let spec_on_node = |seconds: Value| json!({"nodeName": "n", "terminationGracePeriodSeconds": seconds});
    for (i, (spec, query, body, want)) in [
        (spec_on_node(json!(20)), "?gracePeriodSeconds=50", Value::Null, (json!(50), true)),
        // A body replaces all options of the query, even when it is empty.
        (spec_on_node(json!(20)), "?gracePeriodSeconds=50", json!({}), (json!(20), true)),
        (
            spec_on_node(json!(20)),
            "?gracePeriodSeconds=50",
            json!({"gracePeriodSeconds": 3}),
            (json!(3), true),
        ),
        // A pod without a node is deleted at once.
        (json!({"terminationGracePeriodSeconds": 20}), "", Value::Null, (json!(0), false)),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("p{i}");
        let created = server.post(PODS, pod(&name, spec)).await;
        assert_eq!(created.code, 201, "{}", created.json());
        let reply = server.delete(&format!("{PODS}/{name}{query}"), body.clone()).await;
        assert_eq!(grace(&server, &reply, &name).await, want, "{i} {query} {body}");
    }

    // Repeated deletes may shorten the grace period, not extend it. Only the first one increments the
    // generation.
    server.post(PODS, pod("slow", spec_on_node(json!(30)))).await;
    for (seconds, want) in
        [(None, 30), (Some(40), 30), (None, 30), (Some(10), 10), (Some(20), 10), (Some(1), 1)]
    {
        let body = seconds.map_or(Value::Null, |seconds| json!({"gracePeriodSeconds": seconds}));
        let reply = server.delete(&format!("{PODS}/slow"), body).await;
        assert_eq!(reply.json()["metadata"]["generation"], 2);
        assert_eq!(grace(&server, &reply, "slow").await, (json!(want), true), "{seconds:?}");
    }

    // Removing the last finalizer does not shorten the grace period. Grace period 0 deletes at once without
    // finalizers.
    let mut held_pod = pod("both", spec_on_node(json!(30)));
    held_pod["metadata"]["finalizers"] = json!(["example.com/hold"]);
    server.post(PODS, held_pod).await;
    server.delete(&format!("{PODS}/both"), Value::Null).await;
    let release = json!({"metadata": {"finalizers": null}});
    assert_eq!(server.merge(&format!("{PODS}/both"), release).await.code, 200);
    assert_eq!(server.get(&format!("{PODS}/both")).await.code, 200);
    let reply = server.delete(&format!("{PODS}/both?gracePeriodSeconds=0"), Value::Null).await;
    assert_eq!(grace(&server, &reply, "both").await, (json!(0), false));
}

#[tokio::test]
async fn force_deleted_pod_sends_modified_then_deleted_event() {
    let server = Server::start().await;
    let created = server.post(PODS, pod("p", json!({"nodeName": "n"}))).await.json();
    let version = created["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let reply = server.delete(&format!("{PODS}/p?gracePeriodSeconds=0"), Value::Null).await;
    assert!(reply.json()["metadata"]["deletionTimestamp"].is_string());
    let watch = format!("{PODS}?watch=1&resourceVersion={version}&timeoutSeconds=1");
    let events = server.get(&watch).await;
    let events: Vec<Value> =
        events.body.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
    let grace_periods: Vec<_> = events
        .iter()
        .map(|e| (e["type"].as_str().unwrap(), e["object"]["metadata"]["deletionGracePeriodSeconds"].clone()))
        .collect();
    assert_eq!(grace_periods, [("MODIFIED", json!(0)), ("DELETED", json!(0))]);
}

#[tokio::test]
async fn propagation_policy_and_orphan_dependents_add_finalizer() {
    let server = Server::start().await;
    for (i, (query, body, code, finalizer)) in [
        ("?propagationPolicy=Foreground", Value::Null, 200, Some("foregroundDeletion")),
        ("?orphanDependents=true", Value::Null, 200, Some("orphan")),
        (
            "?propagationPolicy=Orphan",
            json!({"propagationPolicy": "Foreground"}),
            200,
            Some("foregroundDeletion"),
        ),
        ("", json!({"orphanDependents": true}), 200, Some("orphan")),
        ("?propagationPolicy=Orphan", json!({}), 200, None),
        ("?orphanDependents=true&propagationPolicy=Orphan", Value::Null, 422, None),
        ("", json!({"propagationPolicy": "orphan"}), 422, None),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("m{i}");
        server.post(MAPS, json!({"metadata": {"name": name}})).await;
        let reply = server.delete(&format!("{MAPS}/{name}{query}"), body.clone()).await;
        assert_eq!(reply.code, code, "{query} {body}");
        let now = server.get(&format!("{MAPS}/{name}")).await;
        match finalizer {
            Some(finalizer) => {
                assert_eq!(now.json()["metadata"]["finalizers"], json!([finalizer]), "{query} {body}");
                assert_eq!(reply.json()["kind"], "ConfigMap");
            }
            None if code == 200 => assert_eq!(now.code, 404, "{query} {body}"),
            None => assert_eq!(now.code, 200, "{query} {body}"),
        }
    }
    // `orphanDependents: false` returns 202 if the object still exists.
    server.post(MAPS, map_with_finalizer("h")).await;
    let reply = server.delete(&format!("{MAPS}/h?orphanDependents=false"), Value::Null).await;
    assert_eq!((reply.code, reply.json()["kind"].clone()), (202, json!("ConfigMap")));
}

#[tokio::test]
async fn jobs_and_replication_controllers_orphan_pods_by_default() {
    let server = Server::start().await;
    let template = json!({
        "metadata": {"labels": {"a": "b"}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]},
    });
    let jobs = "/apis/batch/v1/namespaces/a/jobs";
    let controllers = "/api/v1/namespaces/a/replicationcontrollers";
    let job = json!({"metadata": {"name": "x"}, "spec": {"template": template}});
    let mut controller =
        json!({"metadata": {"name": "x"}, "spec": {"selector": {"a": "b"}, "template": template}});
    controller["spec"]["template"]["spec"]["restartPolicy"] = json!("Always");
    for (path, object, warns) in [(jobs, job, true), (controllers, controller, false)] {
        assert_eq!(server.post(path, object.clone()).await.code, 201, "{path}");
        let reply = server.delete(&format!("{path}/x"), Value::Null).await;
        assert_eq!(reply.json()["metadata"]["finalizers"], json!(["orphan"]), "{path}");
        assert_eq!(reply.header("warning").contains("child pods are preserved by default"), warns, "{path}");
        let reply = server.delete(&format!("{path}/x?propagationPolicy=Background"), Value::Null).await;
        assert_eq!(reply.header("warning"), "");
        assert_eq!(server.get(&format!("{path}/x")).await.code, 404, "{path}");
    }
}

#[tokio::test]
async fn ignore_store_read_error_option_excludes_other_options() {
    let ignore = "ignoreStoreReadErrorWithClusterBreakingPotential";
    for gates in ["", "AllowUnsafeMalformedObjectDeletion=true"] {
        let server = Server::start_with_gates(gates).await;
        server.post(MAPS, json!({"metadata": {"name": "x"}})).await;
        for (option, value) in [("dryRun", json!(["All"])), ("propagationPolicy", json!("Orphan"))] {
            let reply = server.delete(&format!("{MAPS}/x"), json!({ignore: true, option: value})).await;
            assert_eq!(reply.code, 422, "{option}");
            let cause = reply.json()["details"]["causes"][0].clone();
            assert_eq!(cause["field"], ignore);
            assert!(cause["message"].as_str().unwrap().contains(option), "{cause}");
        }
        let wrong = server.delete(&format!("{MAPS}/x"), json!({ignore: "yes"})).await;
        assert_eq!(wrong.code, 400);
        assert_eq!(server.get(&format!("{MAPS}/x")).await.code, 200, "the object must not be deleted");
        // The option has no effect on a valid object.
        server.post(MAPS, map_with_finalizer("h")).await;
        server.delete(&format!("{MAPS}/h"), json!({ignore: true})).await;
        assert_eq!(server.get(&format!("{MAPS}/h")).await.code, 200, "the object still has a finalizer");
        assert_eq!(server.delete(&format!("{MAPS}/x"), json!({ignore: true})).await.code, 200);
        assert_eq!(server.get(&format!("{MAPS}/x")).await.code, 404);
    }
}

#[tokio::test]
async fn delete_dry_run_keeps_object() {
    let server = Server::start().await;
    server.post(MAPS, map_with_finalizer("h")).await;
    server.post(MAPS, json!({"metadata": {"name": "x"}})).await;
    server.post(PODS, pod("p", json!({"nodeName": "n"}))).await;
    let dry = json!({"dryRun": ["All"]});
    let reply = server.delete(&format!("{MAPS}/h"), dry.clone()).await;
    assert!(reply.json()["metadata"]["deletionTimestamp"].is_string());
    for path in [format!("{MAPS}/h"), format!("{MAPS}/x"), format!("{PODS}/p")] {
        let before = server.get(&path).await.json();
        for body in [json!({"dryRun": ["All"], "propagationPolicy": "Orphan"}), dry.clone()] {
            assert_eq!(server.delete(&path, body).await.code, 200, "{path}");
        }
        assert_eq!(server.delete(&path, json!({"dryRun": ["All"], "gracePeriodSeconds": 0})).await.code, 200);
        assert_eq!(server.get(&path).await.json(), before, "{path}");
    }
    assert_eq!(server.delete("/api/v1/namespaces/a", dry).await.json()["status"]["phase"], "Terminating");
    assert_eq!(server.get("/api/v1/namespaces/a").await.json()["status"]["phase"], "Active");
}

#[tokio::test]
async fn terminating_object_allows_finalizer_removal_but_not_addition() {
    let server = Server::start().await;
    let object_url = format!("{MAPS}/x");
    let finalizers = ["example.com/a", "example.com/b", "example.com/c"];
    let live = server.post(MAPS, json!({"metadata": {"name": "x", "finalizers": finalizers}})).await.json();
    assert!(live["metadata"].get("deletionTimestamp").is_none());
    server.delete(&object_url, Value::Null).await;
    let ends = server.get(&object_url).await.json()["metadata"]["deletionTimestamp"].clone();
    for (wanted, code) in [
        (json!(["example.com/c", "example.com/a", "example.com/b"]), 200),
        (json!(["example.com/c", "example.com/a"]), 200),
        (json!(["example.com/c", "example.com/b"]), 422),
        (json!(["example.com/c", "example.com/d"]), 422),
        (json!(["example.com/c"]), 200),
    ] {
        let reply = server.merge(&object_url, json!({"metadata": {"finalizers": wanted}})).await;
        assert_eq!(reply.code, code, "{wanted}");
        let now = server.get(&object_url).await.json();
        assert_eq!(now["metadata"]["deletionTimestamp"], ends, "{wanted}");
    }
    // Concurrent removal of finalizers.
    let other = format!("{MAPS}/y");
    server.post(MAPS, json!({"metadata": {"name": "y", "finalizers": finalizers}})).await;
    server.delete(&other, Value::Null).await;
    let remove_finalizer = |finalizer: &'static str| {
        let (server, other) = (&server, &other);
        async move {
            loop {
                let now = server.get(other).await.json();
                let list = now["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
                let rest: Vec<_> = list.into_iter().filter(|f| f != finalizer).collect();
                let version = now["metadata"]["resourceVersion"].clone();
                let patch = json!({"metadata": {"resourceVersion": version, "finalizers": rest}});
                match server.merge(other, patch).await.code {
                    200 => return,
                    409 => {}
                    code => panic!("{finalizer}: {code}"),
                }
            }
        }
    };
    futures_util::future::join_all(finalizers.map(remove_finalizer)).await;
    assert_eq!(server.get(&other).await.code, 404);
    // Clients cannot change the deletion time.
    for metadata in [json!({"deletionTimestamp": null}), json!({"deletionGracePeriodSeconds": null})] {
        assert_eq!(server.merge(&object_url, json!({"metadata": metadata})).await.code, 200);
        assert_eq!(server.get(&object_url).await.json()["metadata"]["deletionTimestamp"], ends);
    }
    let last = server.merge(&object_url, json!({"metadata": {"finalizers": []}})).await;
    assert_eq!((last.code, server.get(&object_url).await.code), (200, 404));
}

#[tokio::test]
async fn delete_collection_applies_selectors_and_limit() {
    let server = Server::start().await;
    for i in 0..20 {
        let labels = json!({"even": (i % 2 == 0).to_string()});
        server.post(MAPS, json!({"metadata": {"name": format!("m{i:02}"), "labels": labels}})).await;
    }
    server.post(MAPS, map_with_finalizer("held")).await;
    let names = |list: &Value| -> Vec<String> {
        let items = list["items"].as_array().unwrap();
        items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    let deleted =
        server.delete(&format!("{MAPS}?labelSelector=even%3Dtrue&limit=3"), Value::Null).await.json();
    assert_eq!(names(&deleted), ["m00", "m02", "m04"]);
    assert_eq!(deleted["kind"], "ConfigMapList");
    assert!(
        deleted["items"][0]["metadata"].get("deletionTimestamp").is_none(),
        "the response has the objects before deletion"
    );
    let deleted =
        server.delete(&format!("{MAPS}?fieldSelector=metadata.name%3Dm01"), Value::Null).await.json();
    assert_eq!(names(&deleted), ["m01"]);
    let wrong = json!({"preconditions": {"uid": "another"}});
    assert_eq!(server.delete(MAPS, wrong).await.code, 409);
    assert_eq!(names(&server.get(MAPS).await.json()).len(), 17);
    server.delete(MAPS, json!({"propagationPolicy": "Background"})).await;
    let remaining = server.get(MAPS).await.json();
    assert_eq!(names(&remaining), ["held"]);
    assert!(remaining["items"][0]["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(server.delete(MAPS, Value::Null).await.code, 200, "deleting a terminating object succeeds");
}

#[tokio::test]
async fn namespace_delete_precondition_failure_returns_409() {
    let server = Server::start().await;
    for (condition, what) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
        let options = json!({"preconditions": {condition: "another"}});
        let reply = server.delete("/api/v1/namespaces/a", options).await;
        assert_eq!(reply.code, 409);
        let text = reply.json()["message"].as_str().unwrap().to_owned();
        let begin = format!(
            "Operation cannot be fulfilled on namespaces \"a\": Precondition failed: {what} in precondition: another, \
             {what} in object meta: "
        );
        assert!(text.starts_with(&begin), "{text}");
    }
    for name in ["default", "svc-system", "svc-public"] {
        server.post("/api/v1/namespaces", json!({"metadata": {"name": name}})).await;
        let reply = server.delete(&format!("/api/v1/namespaces/{name}"), Value::Null).await;
        assert_eq!(reply.code, 403, "{name}");
    }
    assert_eq!(server.delete("/api/v1/namespaces", Value::Null).await.code, 405);
}

/// Starts one controller of `--controllers`.
pub(super) fn start_controller(server: &Server, name: &str) {
    let enabled = controllers::EnabledControllers::new(&[name.to_owned()]);
    let options = controllers::ControllerOptions { enabled, ..Default::default() };
    controllers::start(&server.controller_state, options);
}

#[tokio::test]
async fn list_with_unreadable_objects_names_their_keys() {
    const GATE: &str = "AllowUnsafeMalformedObjectDeletion=true";
    for gates in ["", GATE] {
        let server = Server::start_with_gates(gates).await;
        server.post(MAPS, map_with_finalizer("good")).await;
        let resource = server.api_state.kinds.registry().find("", "v1", "configmaps").unwrap().clone();
        let keys = ["bad", "worse"].map(|name| format!("/registry{}", resource.reference_key("a", name)));
        for name in ["bad", "worse"] {
            let key = &resource.key("a", name);
            let torn = Bytes::from_static(br#"{"kind":"ConfigMap","data":{"k":"secret"#);
            server.api_state.store.commit(key, Op::Create(torn)).await.unwrap();
        }
        let lists = ["", "?labelSelector=a%3Db", "?limit=2", "?resourceVersion=0"];
        for query in lists {
            let reply = server.get(&format!("{MAPS}{query}")).await;
            let (status, message) = (reply.json(), reply.json()["message"].as_str().unwrap().to_owned());
            assert_eq!(reply.code, 500, "{query}");
            assert!(!status.to_string().contains("secret"), "{query}: {status}");
            if gates.is_empty() {
                assert_eq!(status["reason"], "InternalError", "{query}");
                assert!(message.contains("Key: /configmaps/a/bad, "), "{query}: {message}");
                continue;
            }
            assert_eq!(status["reason"], "StorageReadError", "{query}");
            assert_eq!(message, "failed to read one or more configmaps from the storage", "{query}");
            let details = &status["details"];
            assert_eq!((&details["kind"], &details["name"]), (&json!("configmaps"), &json!("list")));
            let causes = details["causes"].as_array().unwrap();
            // The page with a limit has the objects `bad` and `good`.
            let count = if query == "?limit=2" { 1 } else { 2 };
            assert_eq!(causes.len(), count, "{query}: {causes:?}");
            for (cause, key) in causes.iter().zip(&keys) {
                assert_eq!(cause["reason"], "UnexpectedServerResponse", "{query}");
                assert_eq!(cause["field"], **key, "{query}");
                let text = format!(
                    "StorageError: corrupt object, Code: 7, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: object \
                     not decodable revision="
                );
                assert!(cause["message"].as_str().unwrap().starts_with(&text), "{query}: {cause}");
            }
        }
        let one = server.get(&format!("{MAPS}/bad")).await;
        assert_eq!((one.code, &one.json()["reason"]), (500, &json!("InternalError")));
        assert!(one.json()["message"].as_str().unwrap().contains("Key: /configmaps/a/bad, "));
    }
}

#[tokio::test]
async fn unreadable_object_is_deleted_only_with_gate_and_option() {
    let ignore_read_error = || json!({"ignoreStoreReadErrorWithClusterBreakingPotential": true});
    let bad = format!("{MAPS}/bad");
    for (gates, options, code) in [
        ("", json!({}), 500),
        ("", ignore_read_error(), 500),
        ("AllowUnsafeMalformedObjectDeletion=true", json!({}), 500),
        ("AllowUnsafeMalformedObjectDeletion=true", ignore_read_error(), 200),
    ] {
        let server = Server::start_with_gates(gates).await;
        let key = server.api_state.kinds.registry().find("", "v1", "configmaps").unwrap().key("a", "bad");
        // The truncated bytes still show the finalizer.
        let torn =
            Bytes::from_static(br#"{"kind":"ConfigMap","metadata":{"finalizers":["example.com/hold"],"na"#);
        server.api_state.store.commit(&key, Op::Create(torn)).await.unwrap();
        let reply = server.delete(&bad, options.clone()).await;
        assert_eq!(reply.code, code, "{gates} {options}");
        let exists = server.api_state.store.get(&key, None).await.unwrap().is_some();
        assert_eq!(exists, code != 200, "{gates} {options}");
        if exists {
            assert_eq!(server.get(MAPS).await.code, 500, "the list contains the unreadable object");
        } else {
            assert_eq!(reply.json()["details"]["name"], "bad");
            assert_eq!(server.delete(&bad, options).await.code, 404);
            assert_eq!(server.get(MAPS).await.code, 200);
        }
    }
    // The preconditions of an unreadable object cannot be checked: together with the option they are invalid, and
    // the option alone deletes whatever version of the object is stored.
    let server = Server::start_with_gates("AllowUnsafeMalformedObjectDeletion=true").await;
    let key = server.api_state.kinds.registry().find("", "v1", "configmaps").unwrap().key("a", "bad");
    server.api_state.store.commit(&key, Op::Create(Bytes::from_static(b"{"))).await.unwrap();
    let mut options = ignore_read_error();
    for preconditions in [json!({"uid": "other"}), json!({"resourceVersion": "1"})] {
        options["preconditions"] = preconditions;
        assert_eq!(server.delete(&bad, options.clone()).await.code, 422, "{options}");
    }
    assert_eq!(server.delete(&bad, ignore_read_error()).await.code, 200);
    assert!(server.api_state.store.get(&key, None).await.unwrap().is_none());
    // With the gate, a valid object is deleted as usual, and delete collection rejects the option.
    let server = Server::start_with_gates("AllowUnsafeMalformedObjectDeletion=true").await;
    server.post(MAPS, map_with_finalizer("h")).await;
    assert_eq!(server.delete(&format!("{MAPS}/h"), ignore_read_error()).await.json()["kind"], "ConfigMap");
    assert_eq!(server.get(&format!("{MAPS}/h")).await.code, 200);
    let reply = server.delete(MAPS, ignore_read_error()).await;
    assert_eq!(reply.code, 422);
    assert_eq!(reply.json()["details"]["causes"][0]["reason"], "FieldValueInvalid");
}

#[tokio::test]
async fn interrupted_pod_deletion_is_completed_after_restart() {
    let server = Server::start().await;
    server.post(PODS, pod("cut", json!({"nodeName": "n"}))).await;
    server.post(PODS, pod("ends", json!({"nodeName": "n"}))).await;
    // The state after a crash between marking and removing the pod.
    let key = server.api_state.kinds.registry().find("", "v1", "pods").unwrap().key("a", "cut");
    let row = server.api_state.store.get(&key, None).await.unwrap().unwrap();
    let mut object = kinds::entry::decode(&row.value, row.revision).unwrap();
    object.set_meta("deletionTimestamp", "2026-01-01T00:00:00Z");
    object.set_meta("deletionGracePeriodSeconds", 0);
    let marked = kinds::entry::encode(&object);
    server.api_state.store.commit(&key, Op::Update(marked, row.revision)).await.unwrap();
    // A pod with remaining grace period is not deleted early.
    server.delete(&format!("{PODS}/ends"), Value::Null).await;

    start_controller(&server, "garbage-collector-controller");
    let removal = async {
        while server.get(&format!("{PODS}/cut")).await.code != 404 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), removal)
        .await
        .expect("the marked pod is removed");
    assert_eq!(server.get(&format!("{PODS}/ends")).await.code, 200);
}

#[tokio::test]
async fn unreadable_object_blocks_only_namespace_deletion() {
    let server = Server::start_with_gates("AllowUnsafeMalformedObjectDeletion=true").await;
    for name in ["x", "y"] {
        assert_eq!(server.post(MAPS, map(name, "v")).await.code, 201);
    }
    let torn = Bytes::from_static(br#"{"kind":"Pod","metadata":{"na"#);
    for resource in ["pods", "configmaps"] {
        let key = server.api_state.kinds.registry().find("", "v1", resource).unwrap().key("a", "bad");
        server.api_state.store.commit(&key, Op::Create(torn.clone())).await.unwrap();
    }
    start_controller(&server, "namespace-controller");
    assert_eq!(server.delete("/api/v1/namespaces/a", Value::Null).await.code, 200);
    let failure_message = async {
        loop {
            let namespace = server.get("/api/v1/namespaces/a").await.json();
            let conditions = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let is_content_failure =
                |condition: &&Value| condition["type"] == "NamespaceDeletionContentFailure";
            let failure =
                conditions.iter().find(is_content_failure).map(|condition| condition["message"].to_string());
            if let Some(failure) = failure.filter(|text| text.contains("of configmaps cannot be read")) {
                break failure;
            }
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    let limit = std::time::Duration::from_secs(30);
    let failure_message = tokio::time::timeout(limit, failure_message)
        .await
        .expect("the namespace has a NamespaceDeletionContentFailure condition");
    assert!(failure_message.contains("1 of pods cannot be read"), "{failure_message}");
    for name in ["x", "y"] {
        assert_eq!(server.get(&format!("{MAPS}/{name}")).await.code, 404, "{name}");
    }
    let ignore_read_error = || json!({"ignoreStoreReadErrorWithClusterBreakingPotential": true});
    for path in [format!("{PODS}/bad"), format!("{MAPS}/bad")] {
        assert_eq!(server.delete(&path, ignore_read_error()).await.code, 200);
    }
    let removal = async {
        while server.get("/api/v1/namespaces/a").await.code != 404 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(limit, removal).await.expect("the namespace is removed");
}

#[tokio::test]
async fn system_priority_class_is_protected_from_delete_but_not_from_delete_collection() {
    let server = Server::start().await;
    let classes = "/apis/scheduling.example.test/v1/priorityclasses";
    let class = format!("{classes}/system-node-critical");
    let object = json!({"metadata": {"name": "system-node-critical"}, "value": 2_000_001_000});
    assert_eq!(server.post(classes, object).await.code, 201);
    let rejected = server.delete(&class, Value::Null).await;
    assert_eq!(rejected.code, 403);
    let message = rejected.json()["message"].as_str().unwrap().to_owned();
    assert!(message.ends_with("this is a system priority class and cannot be deleted"), "{message}");
    assert_eq!(server.get(&class).await.code, 200);
    assert_eq!(server.delete(classes, Value::Null).await.code, 200);
    assert_eq!(server.get(&class).await.code, 404);
}

#[tokio::test]
async fn delete_collection_with_limit_reports_remaining_objects() {
    let server = Server::start().await;
    for name in ["m1", "m2", "m3", "m4", "m5"] {
        server.post(MAPS, map(name, "1")).await;
    }
    let reply = server.delete(&format!("{MAPS}?limit=2"), json!(null)).await.json();
    assert_eq!(reply["items"].as_array().unwrap().len(), 2, "{reply}");
    assert_eq!(reply["metadata"]["remainingItemCount"], 3);
    assert!(reply["metadata"]["continue"].is_string());
    let remaining = server.get(MAPS).await.json();
    let names: Vec<_> =
        remaining["items"].as_array().unwrap().iter().map(|item| &item["metadata"]["name"]).collect();
    assert_eq!(names, ["m3", "m4", "m5"], "the first keys are deleted");
}

#[tokio::test]
async fn delete_collection_of_large_objects_returns_status_with_count() {
    let server = Server::start().await;
    let value = "v".repeat(900_000);
    for number in 0..5 {
        assert_eq!(server.post(MAPS, map(&format!("m{number}"), &value)).await.code, 201);
    }
    let reply = server.delete(MAPS, json!(null)).await;
    let status = reply.json();
    assert_eq!((reply.code, &status["kind"], &status["status"]), (200, &json!("Status"), &json!("Success")));
    assert_eq!(status["message"], "the deletes of 5 configmaps were accepted");
    assert_eq!(status["details"]["kind"], "configmaps");
    assert_eq!(server.get(MAPS).await.json()["items"], json!([]));
}

#[tokio::test]
async fn delete_collection_deletes_in_key_order() {
    let server = Server::start().await;
    for number in 0..300 {
        server.post(MAPS, map(&format!("m{number:03}"), "1")).await;
    }
    let version = server.get(MAPS).await.json()["metadata"]["resourceVersion"].clone();
    assert_eq!(server.delete(MAPS, json!(null)).await.code, 200);
    let url = format!("{MAPS}?watch=1&timeoutSeconds=1&resourceVersion={}", version.as_str().unwrap());
    let events = server.get(&url).await;
    let names: Vec<String> = String::from_utf8_lossy(&events.body)
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|event| event["object"]["metadata"]["name"].as_str().unwrap().to_owned())
        .collect();
    let expected: Vec<String> = (0..300).map(|number| format!("m{number:03}")).collect();
    assert_eq!(names, expected);
}

#[tokio::test]
async fn delete_collection_after_timeout_reports_deleted_objects() {
    let server = Server::start().await;
    for number in 0..3 {
        server.post(MAPS, map(&format!("m{number}"), "1")).await;
    }
    // The time of the request is over before the first delete.
    let reply = server.delete(&format!("{MAPS}?timeout=1ns"), json!(null)).await;
    let status = reply.json();
    assert_eq!((reply.code, &status["reason"]), (504, &json!("Timeout")), "{status}");
    assert_eq!(server.get(MAPS).await.json()["items"].as_array().unwrap().len(), 3);
}

/// The check that a background task makes before each delete, because its right to write may end.
#[tokio::test]
async fn collection_delete_of_a_background_task_ends_when_no_further_delete_may_begin() {
    let server = Server::start().await;
    for number in 0..5 {
        assert_eq!(server.post(MAPS, map(&format!("m{number}"), "v")).await.code, 201);
    }
    let kinds = server.api_state.kinds.get();
    let kind = kinds.registry.find_stored("", "v1", "configmaps").unwrap();
    let collection = kinds.collection(kind).unwrap();
    let user = Arc::new(UserInfo { name: "task".to_owned(), ..UserInfo::default() });
    let authorized = Authorized::internal(user, Attributes::default(), "a test");
    let recorder = Recorder::new(false);
    let call = Call {
        api_state: &server.api_state,
        kinds: &kinds,
        authorized: &authorized,
        collection,
        version: "v1",
        namespace: "a",
        name: "",
        subresource: "",
        recorder: &recorder,
        request_id: "1",
        deadline: None,
        memory: None,
    };
    let checks = AtomicUsize::new(0);
    let may_begin = || match checks.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => Ok(()),
        _ => Err(Status::unavailable("the term has ended", 1)),
    };
    let limits = BatchLimits { concurrency: 4, begin_until: None, may_begin: Some(&may_begin) };
    let result =
        verbs::delete_collection(&call, &ListOptions::default(), &DeleteOptions::default(), limits).await;
    assert_eq!(result.unwrap_err().message, "the term has ended");
    let remaining = server.get(MAPS).await.json()["items"].as_array().unwrap().len();
    assert!(remaining >= 3, "only deletes that have begun are done: {remaining}");
    assert_eq!(checks.into_inner(), 3);
}
