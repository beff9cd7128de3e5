//! Validation errors, and defaulting in dry runs (requirements D-FV-2, D-ERR-18 to -23, D-DRY-6).

use serde_json::{Value, json};

use super::{MAPS, Server, map};

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/a/deployments";
const SERVICES: &str = "/api/v1/namespaces/a/services";

fn deployment(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "c", "image": "i"}]}}}})
}

fn service(name: &str, port: u64) -> Value {
    json!({"metadata": {"name": name}, "spec": {"type": "NodePort", "selector": {"a": "b"},
        "ports": [{"port": port}]}})
}

#[tokio::test]
async fn invalid_object_returns_422_with_field_causes() {
    let server = Server::start().await;
    let mut without = deployment("x");
    without["spec"].as_object_mut().unwrap().remove("selector");
    let mut nameless = deployment("x");
    nameless["spec"]["template"]["spec"]["containers"][0].as_object_mut().unwrap().remove("name");
    for (url, body, field, reason) in [
        (DEPLOYMENTS, without, "spec.selector", "FieldValueRequired"),
        (DEPLOYMENTS, nameless, "spec.template.spec.containers[0].name", "FieldValueRequired"),
        (SERVICES, service("x", 70_000), "spec.ports[0].port", "FieldValueInvalid"),
    ] {
        for mode in ["Ignore", "Strict"] {
            let reply = server.post(&format!("{url}?fieldValidation={mode}"), body.clone()).await;
            let answer = reply.json();
            assert_eq!((reply.code, &answer["reason"]), (422, &json!("Invalid")), "{field}: {answer}");
            let causes = answer["details"]["causes"].as_array().unwrap();
            assert!(
                causes.iter().any(|cause| cause["field"] == field && cause["reason"] == reason),
                "{field}: {answer}"
            );
            assert_eq!(
                server.get(&format!("{url}/x")).await.code,
                404,
                "{field}: the object must not be stored"
            );
        }
        let unparsable = server.send("POST", url, &[("content-type", "application/json")], "{").await;
        assert_eq!((unparsable.code, &unparsable.json()["reason"]), (400, &json!("BadRequest")), "{url}");
    }
}

#[tokio::test]
async fn create_dry_run_sets_defaults() {
    let server = Server::start().await;
    let dry = server.post(&format!("{DEPLOYMENTS}?dryRun=All"), deployment("web")).await;
    assert_eq!((dry.code, &dry.json()["spec"]["replicas"]), (201, &json!(1)));
    assert_eq!(dry.json()["spec"]["strategy"]["type"], "RollingUpdate");
    assert_eq!(server.get(&format!("{DEPLOYMENTS}/web")).await.code, 404);
}

#[tokio::test]
async fn if_match_header_is_ignored() {
    let server = Server::start().await;
    let old = server.post(MAPS, map("one", "1")).await.json()["metadata"]["resourceVersion"].clone();
    let object_url = format!("{MAPS}/one");
    server.merge(&object_url, json!({"data": {"k": "2"}})).await;
    let current = server.get(&object_url).await.json()["metadata"]["resourceVersion"].clone();
    for (version, value) in [(&old, "3"), (&current, "4")] {
        let headers =
            [("content-type", "application/json-patch+json"), ("if-match", version.as_str().unwrap())];
        let patch = json!([{"op": "replace", "path": "/data/k", "value": value}]).to_string();
        let reply = server.send("PATCH", &object_url, &headers, patch).await;
        assert_eq!((reply.code, &reply.json()["data"]["k"]), (200, &json!(value)), "{version}");
    }
}
