//! `metadata.managedFields`: field ownership after all kinds of writes.

use std::time::Duration;

use apimachinery::clock::{Clock as _, SystemClock};
use serde_json::{Value, json};

use super::{MAPS, Server, map};

/// Returns the entry of a manager and an operation.
pub(super) fn entry(object: &Value, manager: &str, operation: &str) -> Option<Value> {
    let entries = object["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    entries.into_iter().find(|entry| entry["manager"] == manager && entry["operation"] == operation)
}

/// Returns the fields of a manager with any operation; null without an entry.
pub(super) fn owned_fields(object: &Value, manager: &str) -> Value {
    let found = ["Apply", "Update"].iter().find_map(|operation| entry(object, manager, operation));
    found.map_or(Value::Null, |entry| entry["fieldsV1"].clone())
}

fn managers(object: &Value) -> Vec<&str> {
    let entries = object["metadata"]["managedFields"].as_array().map_or(&[][..], Vec::as_slice);
    entries.iter().map(|entry| entry["manager"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn every_write_records_field_manager() {
    let server = Server::start().await;
    let object_url = format!("{MAPS}/one");
    let created = server.post(&format!("{MAPS}?fieldManager=m1"), map("one", "1")).await.json();
    let entries = created["metadata"]["managedFields"].as_array().unwrap();
    let [only] = &entries[..] else { panic!("{entries:?}") };
    let time = only["time"].as_str().unwrap();
    assert_eq!(
        *only,
        json!({"manager": "m1", "operation": "Update", "apiVersion": "v1", "time": time, "fieldsType": "FieldsV1",
            "fieldsV1": {"f:data": {".": {}, "f:k": {}}}}),
        "metadata set by the server has no owner"
    );
    assert_eq!(time, created["metadata"]["creationTimestamp"]);

    // Manager from the query, from the User-Agent, or neither; with PUT and with patch.
    let mut body = created.clone();
    body["data"]["l"] = json!("1");
    let headers = [("content-type", "application/json"), ("user-agent", "tool/v1.2 (x)")];
    let put = server.send("PUT", &object_url, &headers, body.to_string()).await.json();
    assert_eq!(entry(&put, "tool", "Update").unwrap()["fieldsV1"], json!({"f:data": {"f:l": {}}}));
    let patched = server
        .merge(&format!("{object_url}?fieldManager=m3"), json!({"data": {"k": "3", "l": null}}))
        .await
        .json();
    assert_eq!(owned_fields(&patched, "m3"), json!({"f:data": {"f:k": {}}}));
    assert_eq!(
        owned_fields(&patched, "m1"),
        json!({"f:data": {}}),
        "changing a value transfers its ownership"
    );
    assert_eq!(managers(&patched), ["m1", "m3"], "a manager without fields has no entry");
    let nameless = server.merge(&object_url, json!({"data": {"x": "1"}})).await.json();
    assert_eq!(owned_fields(&nameless, "unknown"), json!({"f:data": {"f:x": {}}}));

    // If a client drops managedFields, the server restores them.
    let mut body = nameless.clone();
    body["metadata"].as_object_mut().unwrap().remove("managedFields");
    let put = server.put(&object_url, body).await.json();
    assert_eq!(put, nameless, "the object is unchanged");

    // A PUT removes missing fields and their ownership.
    let mut body = nameless;
    body["data"].as_object_mut().unwrap().remove("x");
    let put = server.put(&object_url, body).await.json();
    assert_eq!((put["data"].get("x"), owned_fields(&put, "unknown")), (None, Value::Null));
}

#[tokio::test]
async fn time_of_entry_is_that_of_the_last_change_by_the_manager() {
    let server = Server::start().await;
    let object_url = format!("{MAPS}/one");
    let time_of = |object: &Value, manager: &str| {
        let entry = entry(object, manager, "Update").unwrap();
        apimachinery::time::parse(entry["time"].as_str().unwrap()).unwrap()
    };
    let data = json!({"metadata": {"name": "one"}, "data": {"a": "1", "b": "1"}});
    let before = SystemClock::new().now() - Duration::from_secs(1);
    let created = server.post(&format!("{MAPS}?fieldManager=m1"), data).await.json();
    let first = time_of(&created, "m1");
    assert!(before <= first && first <= SystemClock::new().now(), "{created}");

    // Times have whole seconds.
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let taken =
        server.merge(&format!("{object_url}?fieldManager=m2"), json!({"data": {"b": "2"}})).await.json();
    assert_eq!(owned_fields(&taken, "m1"), json!({"f:data": {".": {}, "f:a": {}}}));
    assert_eq!(time_of(&taken, "m1"), first, "another manager takes a field");
    let second = time_of(&taken, "m2");
    assert!(second > first, "{taken}");
    let same =
        server.merge(&format!("{object_url}?fieldManager=m2"), json!({"data": {"b": "2"}})).await.json();
    assert_eq!(same, taken, "a write without a change");

    tokio::time::sleep(Duration::from_millis(1_100)).await;
    let changed =
        server.merge(&format!("{object_url}?fieldManager=m1"), json!({"data": {"a": "3"}})).await.json();
    assert_eq!(owned_fields(&changed, "m1"), owned_fields(&taken, "m1"));
    assert!(time_of(&changed, "m1") > second, "the manager changes the value of its field: {changed}");
    assert_eq!(time_of(&changed, "m2"), second);
}

#[tokio::test]
async fn update_takes_ownership_from_apply_without_conflict() {
    let server = Server::start().await;
    let object_url = format!("{MAPS}/one");
    let intent = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one"}, "data": {"a": "1", "b": "1"}});
    let applied = server.apply(&object_url, "m1", intent).await;
    let mut body = applied.clone();
    body["data"]["a"] = json!("3");
    let put = server.put(&format!("{object_url}?fieldManager=m3"), body).await;
    assert_eq!(put.code, 200, "{put:?}");
    assert_eq!(owned_fields(&put.json(), "m3"), json!({"f:data": {"f:a": {}}}));
    assert_eq!(entry(&put.json(), "m3", "Apply"), None);
    assert_eq!(owned_fields(&put.json(), "m1"), json!({"f:data": {"f:b": {}}}));
    let patched = server.merge(&format!("{object_url}?fieldManager=m4"), json!({"data": {"b": "4"}})).await;
    assert_eq!((patched.code, owned_fields(&patched.json(), "m4")), (200, json!({"f:data": {"f:b": {}}})));
    assert_eq!(owned_fields(&patched.json(), "m1"), Value::Null);
}

#[tokio::test]
async fn subresource_write_has_separate_managed_fields_entry() {
    let server = Server::start().await;
    let all = "/apis/apps/v1/namespaces/a/deployments";
    let body = json!({"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "a", "image": "a:1"}]}}},
        "status": {"observedGeneration": 7}});
    let created = server.post(&format!("{all}?fieldManager=author"), body).await.json();
    assert_eq!(owned_fields(&created, "author").get("f:status"), None, "create does not write the status");
    let status = format!("{all}/web/status");
    let patched = server
        .merge(&format!("{status}?fieldManager=c"), json!({"status": {"observedGeneration": 1}}))
        .await
        .json();
    let part = entry(&patched, "c", "Update").unwrap();
    assert_eq!(
        (&part["subresource"], &part["fieldsV1"]),
        (&json!("status"), &json!({"f:status": {"f:observedGeneration": {}}}))
    );
    let intent = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "status": {"replicas": 2}});
    let applied = server.apply(&status, "a", intent).await;
    let part = entry(&applied, "a", "Apply").unwrap();
    assert_eq!(
        (&part["subresource"], &part["fieldsV1"]),
        (&json!("status"), &json!({"f:status": {"f:replicas": {}}}))
    );
    assert_eq!(applied["status"], json!({"observedGeneration": 1, "replicas": 2}));
    let missing = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "x"}});
    let missing = server.apply_with(&format!("{all}/x/status"), "a", "", &missing).await;
    assert_eq!(missing.code, 404, "apply to a subresource of a missing object");

    // A subresource cannot change managedFields.
    let same = server.merge(&status, json!({"metadata": {"managedFields": [{}]}})).await.json();
    assert_eq!(same["metadata"]["managedFields"], applied["metadata"]["managedFields"]);
}

#[tokio::test]
async fn template_generation_of_daemon_set_is_owned_by_writers_without_it() {
    const ANNOTATION: &str = "deprecated.daemonset.template.generation";
    let server = Server::start().await;
    let all = "/apis/apps/v1/namespaces/a/daemonsets";
    let body = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "d"}, "spec": {
        "selector": {"matchLabels": {"a": "b"}},
        "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "a:1"}]}}}});
    let annotation = |object: &Value| object["metadata"]["annotations"][ANNOTATION].clone();
    let owned =
        |object: &Value, manager: &str| owned_fields(object, manager)["f:metadata"]["f:annotations"].clone();
    let created = server.post(&format!("{all}?fieldManager=m1"), body.clone()).await.json();
    assert_eq!(annotation(&created), "1");
    assert_eq!(owned(&created, "m1"), json!({".": {}, (format!("f:{ANNOTATION}")): {}}));
    let url = format!("{all}/d");
    let labelled = server
        .merge(&format!("{url}?fieldManager=m2"), json!({"metadata": {"labels": {"c": "d"}}}))
        .await
        .json();
    assert_eq!((annotation(&labelled), owned(&labelled, "m2")), (json!("1"), Value::Null));
    for (path, manager) in [(url.clone(), "m3"), (format!("{url}/status"), "m4")] {
        let replaced = server.put(&format!("{path}?fieldManager={manager}"), body.clone()).await.json();
        assert_eq!(annotation(&replaced), "1", "{replaced}");
        let part = entry(&replaced, manager, "Update").unwrap()["fieldsV1"].clone();
        assert_eq!(part["f:metadata"]["f:annotations"], json!({(format!("f:{ANNOTATION}")): {}}), "{part}");
    }
    server.delete(&url, Value::Null).await;
    let applied = server.apply(&url, "m1", body).await;
    assert_eq!((annotation(&applied), owned(&applied, "m1")), (json!("1"), Value::Null));
}

#[tokio::test]
async fn empty_managed_fields_entry_resets_ownership() {
    let server = Server::start().await;
    let object_url = format!("{MAPS}/one");
    let json_patch = ("content-type", "application/json-patch+json");
    for way in ["merge", "put", "put of an empty list", "json"] {
        server.delete(&object_url, Value::Null).await;
        let created = server.post(&format!("{MAPS}?fieldManager=m1"), map("one", "1")).await.json();
        // An empty list does not reset managedFields.
        let kept = server.merge(&object_url, json!({"metadata": {"managedFields": []}})).await.json();
        assert_eq!(kept["metadata"]["managedFields"], created["metadata"]["managedFields"]);
        let reply = match way {
            "merge" => server.merge(&object_url, json!({"metadata": {"managedFields": [{}]}})).await,
            "put" | "put of an empty list" => {
                let mut body = created.clone();
                body["metadata"]["managedFields"] = if way == "put" { json!([{}]) } else { json!([]) };
                server.put(&object_url, body).await
            }
            _ => {
                let patch = json!([{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}]);
                server.send("PATCH", &object_url, &[json_patch], patch.to_string()).await
            }
        };
        assert_eq!((way, reply.code), (way, 200));
        assert_eq!(server.get(&object_url).await.json()["metadata"].get("managedFields"), None, "{way}");
        // After a reset, existing fields get no owner.
        let changed = server.merge(&object_url, json!({"data": {"x": "1"}})).await.json();
        assert_eq!(managers(&changed), [""; 0], "{way}");
    }
    let mut body = server.get(&object_url).await.json();
    body["metadata"]["managedFields"] = json!([{}]);
    body["data"]["x"] = json!("2");
    let put = server.put(&format!("{object_url}?fieldManager=m2"), body).await.json();
    assert_eq!(managers(&put), ["m2"], "the reset precedes the changes of the same request");
    assert_eq!(owned_fields(&put, "m2"), json!({"f:data": {"f:x": {}}}));
}

#[tokio::test]
async fn managed_fields_entry_has_api_version_of_write() {
    let server = Server::start().await;
    let all = "/apis/autoscaling/v2/namespaces/a/horizontalpodautoscalers";
    let intent = json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
        "spec": {"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}}});
    let applied = server.apply(&format!("{all}/h"), "m1", intent).await;
    assert_eq!(entry(&applied, "m1", "Apply").unwrap()["apiVersion"], "autoscaling/v2");
}

#[tokio::test]
async fn scale_replicas_are_owned_in_parent_object() {
    let server = Server::start().await;
    let web = "/apis/apps/v1/namespaces/a/deployments/web";
    let intent = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {"replicas": 2,
        "selector": {"matchLabels": {"app": "web"}}, "template": {"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "a", "image": "a:1"}]}}}});
    server.apply(web, "author", intent.clone()).await;
    let scale = format!("{web}/scale");
    let scale_to = |replicas: u32| json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web"}, "spec": {"replicas": replicas}});
    let replicas = json!({"f:spec": {"f:replicas": {}}});

    assert_eq!(
        server.apply_with(&scale, "scaler", "", &intent).await.code,
        400,
        "configuration of another kind"
    );
    let rejected = server.apply_with(&scale, "scaler", "", &scale_to(5)).await;
    assert_eq!(
        (rejected.code, &rejected.json()["details"]["causes"][0]["field"]),
        (409, &json!(".spec.replicas")),
        "{rejected:?}"
    );
    let shared = server.apply(&scale, "scaler", scale_to(2)).await;
    assert_eq!((&shared["kind"], &shared["spec"]), (&json!("Scale"), &json!({"replicas": 2})));
    assert_eq!(shared["metadata"].get("managedFields"), None, "a Scale has no managedFields");
    let object = server.get(web).await.json();
    let part = entry(&object, "scaler", "Apply").unwrap();
    assert_eq!(
        (&part["subresource"], &part["apiVersion"], &part["fieldsV1"]),
        (&json!("scale"), &json!("apps/v1"), &replicas)
    );
    assert_eq!(owned_fields(&object, "author")["f:spec"]["f:replicas"], json!({}));

    let forced = server.apply_with(&scale, "scaler", "&force=true", &scale_to(5)).await;
    assert_eq!((forced.code, &forced.json()["spec"]), (200, &json!({"replicas": 5})), "{forced:?}");
    assert_eq!(owned_fields(&server.get(web).await.json(), "author")["f:spec"].get("f:replicas"), None);
    let rejected = server.apply_with(web, "author", "", &intent).await;
    let message = &rejected.json()["details"]["causes"][0]["message"];
    assert_eq!(
        (rejected.code, message),
        (409, &json!("conflict with \"scaler\" with subresource \"scale\""))
    );

    let put = server.put(&format!("{scale}?fieldManager=hand"), scale_to(7)).await;
    assert_eq!((put.code, &put.json()["spec"]), (200, &json!({"replicas": 7})));
    let object = server.get(web).await.json();
    assert_eq!(entry(&object, "scaler", "Apply"), None);
    let part = entry(&object, "hand", "Update").unwrap();
    assert_eq!((&part["subresource"], &part["fieldsV1"]), (&json!("scale"), &replicas));
    assert_eq!(
        server.apply_with(&scale, "scaler", "&force=true", &scale_to(0)).await.json()["spec"],
        json!({})
    );
    let wrong = json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "web"}, "spec": {"replicas": -1}});
    assert_eq!(server.apply_with(&scale, "scaler", "&force=true", &wrong).await.code, 422);
}
