//! Patch types: their effect on objects, and invalid patches.

use apimachinery::names::Preset;
use serde_json::{Value, json};

use super::{MAPS, Reply, Server, map};

const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/a/deployments/web";

impl Server {
    async fn patch(&self, url: &str, kind: &str, body: &Value) -> Reply {
        let media_type = format!("application/{kind}+json");
        self.send("PATCH", url, &[("content-type", &media_type)], body.to_string()).await
    }

    /// Creates a Deployment with two containers.
    async fn deployment(&self) {
        let body = json!({"metadata": {"name": "web", "finalizers": ["example.test/a", "example.test/b"]}, "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {
                "containers": [{"name": "app", "image": "app:1", "args": ["-a"]}, {"name": "side", "image": "side:1"}],
                "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}]}}}});
        let reply = self.post("/apis/apps/v1/namespaces/a/deployments", body).await;
        assert_eq!(reply.code, 201, "{reply:?}");
    }
}

#[tokio::test]
async fn json_patch_operations_apply_atomically() {
    let server = Server::start().await;
    server
        .post(
            MAPS,
            json!({"metadata": {"name": "one", "annotations": {"x/y": "1"}}, "data": {"a": "1", "b": "2"}}),
        )
        .await;
    let object_url = format!("{MAPS}/one");
    let patch = json!([
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "add", "path": "/data/c", "value": "3"},
        {"op": "replace", "path": "/data/b", "value": "4"},
        {"op": "copy", "from": "/data/b", "path": "/data/d"},
        {"op": "move", "from": "/data/c", "path": "/data/e"},
        {"op": "remove", "path": "/data/a"},
        {"op": "remove", "path": "/metadata/annotations/x~1y"},
    ]);
    let reply = server.patch(&object_url, "json-patch", &patch).await;
    assert_eq!(
        (reply.code, &reply.json()["data"]),
        (200, &json!({"b": "4", "d": "4", "e": "3"})),
        "{reply:?}"
    );
    assert_eq!(reply.json()["metadata"].get("annotations"), None);
    let before = server.get(&object_url).await.body;
    for (patch, code) in [
        (
            json!([{"op": "add", "path": "/data/z", "value": "1"}, {"op": "test", "path": "/data/b", "value": "no"}]),
            422,
        ),
        (json!([{"op": "remove", "path": "/data/none"}]), 422),
        // With the preset `svc`, a `replace` of a missing key fails, as in RFC 6902.
        (json!([{"op": "replace", "path": "/data/none", "value": "1"}]), 422),
        (json!([{"op": "increment", "path": "/data/b"}]), 422),
        (json!([{"op": "replace", "path": "/kind", "value": "Secret"}]), 422),
        (json!([{"op": "replace", "path": "/metadata/name", "value": "two"}]), 400),
        (json!({"data": {}}), 400),
        (json!([7]), 400),
        (json!(vec![json!({"op": "test", "path": "/data/none"}); 10_001]), 413),
    ] {
        let reply = server.patch(&object_url, "json-patch", &patch).await;
        assert_eq!(reply.code, code, "{:.200} {reply:?}", patch.to_string());
        assert_eq!(reply.json()["kind"], "Status");
    }
    assert_eq!(server.get(&object_url).await.body, before, "a failed patch has no effect");
}

#[tokio::test]
async fn merge_patch_replaces_lists_and_removes_nulls() {
    let server = Server::start().await;
    let body = json!({"metadata": {"name": "one", "finalizers": ["example.test/a"], "labels": {"l": "1"}}, "data": {"a": "1", "b": "2"}});
    server.post(MAPS, body).await;
    let object_url = format!("{MAPS}/one");
    let patch = json!({"data": {"a": null, "c": "3"}, "metadata": {"finalizers": ["example.test/b"]}});
    let patched = server.merge(&object_url, patch).await.json();
    assert_eq!(patched["data"], json!({"b": "2", "c": "3"}));
    assert_eq!(patched["metadata"]["finalizers"], json!(["example.test/b"]));
    assert_eq!(patched["metadata"]["labels"], json!({"l": "1"}), "fields outside the patch are kept");
    for wrong in ["[]", "3", "\"x\"", "{", ""] {
        let reply = server
            .send("PATCH", &object_url, &[("content-type", "application/merge-patch+json")], wrong)
            .await;
        assert_eq!(reply.code, 400, "{wrong}: {reply:?}");
    }
    assert_eq!(
        server.merge(&object_url, json!({"data": {"a": 1}})).await.code,
        422,
        "a value of the wrong type"
    );
    assert_eq!(server.merge(&format!("{MAPS}/none"), json!({})).await.code, 404);
}

#[tokio::test]
async fn strategic_merge_patch_above_work_limit_returns_413() {
    let server = Server::start().await;
    server.deployment().await;
    let variables: Vec<Value> = (0..2_000).map(|i| json!({"name": format!("n{i}")})).collect();
    let mut containers = vec![json!({"name": "app"}); 300];
    containers.insert(0, json!({"name": "app", "env": variables}));
    let body = json!({"spec": {"template": {"spec": {"containers": containers}}}});
    let reply = server.patch(DEPLOYMENT, "strategic-merge-patch", &body).await;
    assert_eq!((reply.code, &reply.json()["reason"]), (413, &json!("RequestEntityTooLarge")), "{reply:?}");
}

#[tokio::test]
async fn strategic_merge_patch_merges_service_ports_by_port() {
    let server = Server::start().await;
    let all = "/api/v1/namespaces/a/services";
    let body = json!({"metadata": {"name": "s"}, "spec": {"clusterIP": "None", "ports": [{"name": "web", "port": 80}, {"name": "tls", "port": 443}]}});
    assert_eq!(server.post(all, body).await.code, 201);
    let patch =
        json!({"spec": {"ports": [{"port": 443, "targetPort": 8443}, {"port": 80, "$patch": "delete"}]}});
    let ports =
        server.patch(&format!("{all}/s"), "strategic-merge-patch", &patch).await.json()["spec"]["ports"]
            .clone();
    assert_eq!(ports, json!([{"name": "tls", "port": 443, "protocol": "TCP", "targetPort": 8443}]));
}

#[tokio::test]
async fn patch_with_stale_resource_version_returns_409() {
    let server = Server::start().await;
    let old = server.post(MAPS, map("one", "1")).await.json()["metadata"]["resourceVersion"].clone();
    let object_url = format!("{MAPS}/one");
    // No resourceVersion is required.
    for kind in ["merge-patch", "strategic-merge-patch"] {
        assert_eq!(server.patch(&object_url, kind, &json!({"data": {kind: "1"}})).await.code, 200);
    }
    let patch = json!([{"op": "add", "path": "/data/json", "value": "1"}]);
    assert_eq!(server.patch(&object_url, "json-patch", &patch).await.code, 200);
    // A stale resourceVersion is a conflict. The current one succeeds, also as a `test` operation.
    let patch_of_version =
        |version: &Value| json!({"metadata": {"resourceVersion": version}, "data": {"x": version}});
    for kind in ["merge-patch", "strategic-merge-patch"] {
        let stale = server.patch(&object_url, kind, &patch_of_version(&old)).await;
        assert_eq!((stale.code, &stale.json()["reason"]), (409, &json!("Conflict")), "{kind}");
    }
    let current = server.get(&object_url).await.json()["metadata"]["resourceVersion"].clone();
    assert_eq!(server.patch(&object_url, "merge-patch", &patch_of_version(&current)).await.code, 200);
    let patch_with_test = |version: &Value| {
        json!([{"op": "test", "path": "/metadata/resourceVersion", "value": version},
            {"op": "add", "path": "/data/y", "value": "1"}])
    };
    assert_eq!(server.patch(&object_url, "json-patch", &patch_with_test(&current)).await.code, 422);
    let current = server.get(&object_url).await.json()["metadata"]["resourceVersion"].clone();
    assert_eq!(server.patch(&object_url, "json-patch", &patch_with_test(&current)).await.code, 200);
}

#[tokio::test]
async fn strategic_merge_patch_of_item_without_merge_key_returns_500_with_the_text_of_kubernetes() {
    let server = Server::start().await;
    server.deployment().await;
    let patch = json!({"spec": {"template": {"spec": {"containers": [{"image": "x"}]}}}});
    let reply = server.patch(DEPLOYMENT, "strategic-merge-patch", &patch).await;
    let status = reply.json();
    let message = "map: map[image:x] does not contain declared merge key: name";
    assert_eq!((reply.code, &status["message"], status.get("reason")), (500, &json!(message), None));
}

#[tokio::test]
async fn patch_without_changes_keeps_metadata() {
    let server = Server::start().await;
    server.deployment().await;
    let before = server.get(DEPLOYMENT).await.json();
    let containers =
        json!({"spec": {"template": {"spec": {"containers": [{"name": "side", "image": "side:1"}]}}}});
    for (kind, patch) in [
        ("merge-patch", json!({})),
        ("merge-patch", json!({"spec": {"replicas": 1}})),
        ("json-patch", json!([])),
        ("json-patch", json!([{"op": "replace", "path": "/spec/replicas", "value": 1}])),
        ("strategic-merge-patch", containers),
    ] {
        let reply = server.patch(&format!("{DEPLOYMENT}?fieldManager=other"), kind, &patch).await;
        assert_eq!((reply.code, &reply.json()["metadata"]), (200, &before["metadata"]), "{kind} {patch}");
    }
}

#[tokio::test]
async fn patch_with_unsupported_content_type_returns_415() {
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    let object_url = format!("{MAPS}/one?fieldManager=m");
    for kind in [
        "application/json",
        "application/yaml",
        "text/plain",
        "application/apply-patch+cbor",
        "application/json-patch+cbor",
        "application/merge-patch+cbor",
        "application/strategic-merge-patch+cbor",
        "application/apply-patch+json",
    ] {
        let reply = server.send("PATCH", &object_url, &[("content-type", kind)], "{}").await;
        assert_eq!((reply.code, &reply.json()["reason"]), (415, &json!("UnsupportedMediaType")), "{kind}");
    }
    assert_eq!(server.send("PATCH", &object_url, &[], "{}").await.code, 415);
    let merge = "application/merge-patch+json; charset=utf-8";
    assert_eq!(
        server
            .send("PATCH", &object_url.replace("?fieldManager=m", ""), &[("content-type", merge)], "{}")
            .await
            .code,
        200
    );
    let forced =
        server.send("PATCH", &format!("{object_url}&force=true"), &[("content-type", merge)], "{}").await;
    assert_eq!(forced.code, 422, "`force` is valid only for apply");
}

#[tokio::test]
async fn patch_that_changes_type_returns_422_with_field_patch() {
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    let object_url = format!("{MAPS}/one");
    for change in [json!({"kind": "Secret"}), json!({"apiVersion": "v2"}), json!({"kind": "secret"})] {
        let reply = server.patch(&object_url, "merge-patch", &change).await;
        let status = reply.json();
        assert_eq!((reply.code, &status["reason"]), (422, &json!("Invalid")), "{change}: {status}");
        assert_eq!(status["details"]["causes"][0]["field"], "patch", "{change}");
        let reply = server.patch(&object_url, "strategic-merge-patch", &change).await;
        let object = reply.json();
        assert_eq!(
            (reply.code, &object["kind"], &object["apiVersion"]),
            (200, &json!("ConfigMap"), &json!("v1"))
        );
    }
    let without_type = json!({"kind": null, "apiVersion": null, "data": {"k": "2"}});
    let removed = server.merge(&object_url, without_type.clone()).await;
    let text = "the name of the object (one based on URL) was undeterminable: name must be provided";
    assert_eq!((removed.code, &removed.json()["message"]), (400, &json!(text)));
    let strategic = server.patch(&object_url, "strategic-merge-patch", &without_type).await;
    assert_eq!((strategic.code, &strategic.json()["data"]["k"]), (200, &json!("2")));
    let without_kind = server.merge(&object_url, json!({"kind": null, "data": {"k": "3"}})).await;
    assert_eq!((without_kind.code, &without_kind.json()["kind"]), (200, &json!("ConfigMap")));
}

#[tokio::test]
async fn patch_in_former_version_or_with_type_of_parent_changes_replicas() {
    let server = Server::start().await;
    server.deployment().await;
    let scale_url = format!("{DEPLOYMENT}/scale");
    for (i, version) in ["apps/v1", "extensions/v1beta1", "apps/v1beta1", "apps/v1beta2"].iter().enumerate() {
        let body = json!({"kind": "Deployment", "apiVersion": version, "spec": {"replicas": 2 + i}});
        for kind in ["merge-patch", "strategic-merge-patch"] {
            let reply = server.patch(DEPLOYMENT, kind, &body).await;
            let object = reply.json();
            assert_eq!((reply.code, &object["apiVersion"]), (200, &json!("apps/v1")), "{version}: {object}");
            assert_eq!(object["spec"]["replicas"], json!(2 + i), "{version}");
        }
        let body = json!({"kind": "Deployment", "apiVersion": version, "spec": {"replicas": 7 + i}});
        let scaled = server.patch(&scale_url, "strategic-merge-patch", &body).await;
        let scale = scaled.json();
        assert_eq!(
            (scaled.code, &scale["kind"], &scale["spec"]["replicas"]),
            (200, &json!("Scale"), &json!(7 + i))
        );
    }
    let other = json!({"kind": "Deployment", "apiVersion": "extensions/v1", "spec": {"replicas": 1}});
    assert_eq!(server.patch(DEPLOYMENT, "merge-patch", &other).await.code, 422);
}

#[tokio::test]
async fn patch_of_wrong_shape_returns_400_with_text_of_go() {
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    let object_url = format!("{MAPS}/one");
    let of_map = "into Go value of type map[string]interface {}";
    for (kind, body, code, message) in [
        ("merge-patch", "[1]", 400, format!("error decoding patch: json: cannot unmarshal array {of_map}")),
        ("merge-patch", "\"x\"", 400, format!("error decoding patch: json: cannot unmarshal string {of_map}")),
        ("merge-patch", "null", 400, "Invalid JSON Patch".to_owned()),
        ("strategic-merge-patch", "[1]", 400, format!("json: cannot unmarshal array {of_map}")),
        ("strategic-merge-patch", "1", 400, format!("json: cannot unmarshal number {of_map}")),
        (
            "json-patch",
            r#"{"op":"remove"}"#,
            400,
            "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp".to_owned(),
        ),
        (
            "json-patch",
            "[true]",
            400,
            "error decoding patch: json: cannot unmarshal bool into Go value of type handlers.jsonPatchOp".to_owned(),
        ),
    ] {
        let headers = [("content-type", &*format!("application/{kind}+json"))];
        let reply = server.send("PATCH", &object_url, &headers, body).await;
        assert_eq!((reply.code, &reply.json()["message"]), (code, &json!(message)), "{kind} {body}");
    }
    for kind in ["strategic-merge-patch", "json-patch"] {
        let headers = [("content-type", &*format!("application/{kind}+json"))];
        assert_eq!(server.send("PATCH", &object_url, &headers, "null").await.code, 200, "{kind}");
    }
}

#[tokio::test]
async fn strict_errors_of_patches_name_the_part_of_the_patch() {
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    let object_url = format!("{MAPS}/one?fieldValidation=");
    let json_patch = r#"[{"op":"add","path":"/data/a","value":"1","value":"2","valeu":1},{"op":"add","path":"/extra","value":1}]"#;
    let texts = [
        "json patch duplicate field \"[0].value\"",
        "json patch unknown field \"[0].valeu\"",
        "unknown field \"extra\"",
    ];
    let headers = [("content-type", "application/json-patch+json")];
    let warned = server.send("PATCH", &format!("{object_url}Warn"), &headers, json_patch).await;
    let warnings: Vec<&str> = warned.headers.get_all("warning").iter().map(|w| w.to_str().unwrap()).collect();
    assert_eq!(warned.code, 200, "{warned:?}");
    assert_eq!(warnings, texts.map(|text| format!("299 - {}", json!(text))), "{warned:?}");
    assert_eq!(warned.json()["data"]["a"], "2");
    let strict = server.send("PATCH", &format!("{object_url}Strict"), &headers, json_patch).await;
    let message = strict.json()["message"].as_str().unwrap().to_owned();
    assert!(message.contains(&format!("strict decoding error: {}", texts.join(", "))), "{message}");
    let merge = [("content-type", "application/merge-patch+json")];
    let patch = r#"{"data":{"a":"2"},"extra":1}"#;
    let refused = server.send("PATCH", &format!("{object_url}Strict"), &merge, patch).await;
    assert_eq!(
        (refused.code, &refused.json()["message"]),
        (400, &json!(r#"strict decoding error: unknown field "extra""#))
    );
    // With the names `kubernetes`, the message contains the patched object.
    let server = Server::start_with_preset(Preset::Kubernetes).await;
    server.post(MAPS, map("one", "1")).await;
    let refused = server.send("PATCH", &format!("{object_url}Strict"), &merge, patch).await;
    let cause = &refused.json()["details"]["causes"][0];
    assert_eq!((refused.code, &cause["field"]), (422, &json!("patch")), "{refused:?}");
    let message = cause["message"].as_str().unwrap();
    let start = r#"Invalid value: "{\"apiVersion\":\"v1\",\"data\":{\"a\":\"2\",\"k\":\"1\"},\"extra\":1,"#;
    assert!(message.starts_with(start), "{message}");
}

#[tokio::test]
async fn namespace_in_patch_must_match_for_namespaced_kinds_only() {
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    let object_url = format!("{MAPS}/one");
    assert_eq!(server.merge(&object_url, json!({"metadata": {"namespace": "b"}})).await.code, 400);
    let removed = server.merge(&object_url, json!({"metadata": {"namespace": null}})).await;
    assert_eq!((removed.code, &removed.json()["metadata"]["namespace"]), (200, &json!("a")));
    let namespace = "/api/v1/namespaces/a";
    for media_type in ["merge-patch+json", "strategic-merge-patch+json", "apply-patch+yaml"] {
        let body = json!({"apiVersion": "v1", "kind": "Namespace",
            "metadata": {"name": "a", "namespace": "b", "labels": {"l": media_type.replace('+', ".")}}});
        let url = format!("{namespace}?fieldManager=m&force={}", media_type == "apply-patch+yaml");
        let url = if media_type == "apply-patch+yaml" { url } else { namespace.to_owned() };
        let media_type = format!("application/{media_type}");
        let reply = server.send("PATCH", &url, &[("content-type", &media_type)], body.to_string()).await;
        assert_eq!(reply.code, 200, "{media_type}: {reply:?}");
        assert_eq!(reply.json()["metadata"].get("namespace"), None, "{media_type}");
    }
}

#[tokio::test]
async fn patch_with_unroutable_media_type_has_empty_details() {
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    let reply =
        server.send("PATCH", &format!("{MAPS}/one"), &[("content-type", "application/json")], "{}").await;
    assert_eq!(
        reply.json(),
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "415: Unsupported Media Type", "reason": "UnsupportedMediaType", "details": {}, "code": 415})
    );
}
