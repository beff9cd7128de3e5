//! Work limits: the cost of a body, of a patched object and of an error response.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::{MAPS, Reply, Server, map};

const PODS: &str = "/api/v1/namespaces/a/pods";
const SECRETS: &str = "/api/v1/namespaces/a/secrets";

/// Maximum size of an error response, in bytes.
const MAX_ERROR_BYTES: usize = 256_000;

/// Starts a server whose requests end also on a busy machine: only their CPU time matters.
async fn start_without_deadline() -> Server {
    Server::start_with_timeout(Duration::from_secs(3_600)).await
}

/// Checks that the work of a request grows at most linearly with its size.
///
/// `send` sends a request of a size. The work is the CPU time of the worker threads, so that neither the test nor
/// other processes count.
async fn assert_linear_work(server: &Server, size: usize, send: impl AsyncFn(usize)) {
    const FACTOR: usize = 4;
    let pool = server.api.pool();
    let work = async |size: usize| {
        let (tasks, before) = (pool.started_tasks(), pool.cpu());
        send(size).await;
        assert!(pool.started_tasks() > tasks, "the request of size {size} ran on the I/O thread");
        pool.cpu() - before
    };
    // The first request initializes lazy data.
    work(size / FACTOR).await;
    let (small, large) = (work(size / FACTOR).await, work(size).await);
    println!("{small:?} for {}, {large:?} for {size}", size / FACTOR);
    // Quadratic work grows by the square of the factor.
    let max_growth = u32::try_from(FACTOR * FACTOR / 2).unwrap();
    assert!(large < small * max_growth, "{small:?} for {}, {large:?} for {size}", size / FACTOR);
}

/// A pod with `count` copies of a container.
fn pod(container: &str, count: usize) -> String {
    let containers = vec![container; count].join(",");
    format!(r#"{{"metadata":{{"name":"p"}},"spec":{{"containers":[{containers}]}}}}"#)
}

fn assert_rejected(reply: &Reply, code: u16) {
    let length = reply.body.len();
    assert_eq!(reply.code, code, "{}", String::from_utf8_lossy(&reply.body[..length.min(500)]));
    assert!(length < MAX_ERROR_BYTES, "{length} bytes");
}

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

#[tokio::test]
async fn list_of_million_empty_objects_returns_413_in_every_format() {
    let server = Server::start().await;
    for (media_type, body) in [
        ("application/json", pod("{}", 1_000_000)),
        ("application/json", pod("null", 600_000)),
        ("application/yaml", pod("{}", 1_000_000)),
    ] {
        let reply = server.send("POST", PODS, &[("content-type", media_type)], body).await;
        assert_rejected(&reply, 413);
        let status = reply.json();
        assert_eq!(status["reason"], "RequestEntityTooLarge");
        let message = status["message"].as_str().unwrap();
        assert!(message.contains("split the object") && message.contains("--max-request-"), "{message}");
    }
}

#[tokio::test]
async fn pod_of_30000_empty_containers_returns_422_with_100_causes() {
    let server = start_without_deadline().await;
    assert_linear_work(&server, 30_000, async |containers| {
        let reply = server.send("POST", PODS, &JSON, pod("{}", containers)).await;
        assert_rejected(&reply, 422);
        let status = reply.json();
        assert_eq!(status["details"]["causes"].as_array().unwrap().len(), 100);
        assert!(status["message"].as_str().unwrap().ends_with(" more]"), "{}", status["message"]);
    })
    .await;
}

#[tokio::test]
async fn object_of_60000_invalid_labels_returns_422_with_100_causes() {
    let server = start_without_deadline().await;
    assert_linear_work(&server, 60_000, async |count| {
        let labels: Map<String, Value> = (0..count).map(|i| (format!("/{i}"), json!("_"))).collect();
        let reply = server.post(MAPS, json!({"metadata": {"name": "m", "labels": labels}})).await;
        assert_rejected(&reply, 422);
        assert_eq!(reply.json()["details"]["causes"].as_array().unwrap().len(), 100);
    })
    .await;
}

#[tokio::test]
async fn long_keys_and_values_are_truncated_in_error_responses() {
    let server = Server::start().await;
    let long = "X".repeat(500_000);
    let unknown: Map<String, Value> = (0..1_000).map(|i| (format!("{i}"), json!(1))).collect();
    for (url, body) in [
        (MAPS, json!({"metadata": {"name": long}})),
        (MAPS, json!({"metadata": {"name": "m", "labels": {"a": long, (long.clone()): "b"}}})),
        (MAPS, json!({"metadata": {"name": "m"}, "data": {(format!("/{long}")): "b"}})),
        (MAPS, json!({"metadata": {"name": "m", "finalizers": [long, long]}})),
        (
            PODS,
            json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": long, "imagePullPolicy": long}]}}),
        ),
    ] {
        let reply = server.post(url, body).await;
        assert_rejected(&reply, 422);
        assert!(reply.body.len() < 20_000, "{url}: {}", reply.body.len());
    }
    for body in [
        json!({"kind": long}),
        json!({"apiVersion": long}),
        json!({"metadata": {"name": "m"}, (long.clone()): unknown, "data": {"a": 1}}),
    ] {
        let reply =
            server.send("POST", &format!("{MAPS}?fieldValidation=Strict"), &JSON, body.to_string()).await;
        assert_rejected(&reply, 400);
        assert!(reply.body.len() < 20_000, "{}", reply.body.len());
    }
}

#[tokio::test]
async fn patch_result_above_decode_limit_returns_413() {
    let server = Server::start().await;
    let url = format!("{MAPS}/m");
    assert_eq!(server.post(MAPS, map("m", "v")).await.code, 201);
    // Each operation copies the list of empty objects that the first one adds.
    let list = vec!["{}"; 20_000].join(",");
    let mut operations = vec![format!(r#"{{"op":"add","path":"/x","value":{{"0":[{list}]}}}}"#)];
    operations.extend((1..100).map(|i| format!(r#"{{"op":"copy","from":"/x/0","path":"/x/{i}"}}"#)));
    let patch = format!("[{}]", operations.join(","));
    let json_patch = [("content-type", "application/json-patch+json")];
    let reply = server.send("PATCH", &url, &json_patch, patch).await;
    assert_rejected(&reply, 413);
    assert!(reply.json()["message"].as_str().unwrap().contains("--max-request-"));

    // The pod and the patch are each within the decode limit; their result is not.
    let secrets = vec!["{}"; 30_000].join(",");
    let pod = format!(
        r#"{{"metadata":{{"name":"p"}},"spec":{{"containers":[{{"name":"c","image":"a"}}],"imagePullSecrets":[{secrets}]}}}}"#
    );
    assert_eq!(server.send("POST", PODS, &JSON, pod).await.code, 201);
    let volumes = vec!["{}"; 30_000].join(",");
    for (media_type, patch) in [
        ("application/merge-patch+json", format!(r#"{{"spec":{{"volumes":[{volumes}]}}}}"#)),
        (
            "application/json-patch+json",
            format!(r#"[{{"op":"add","path":"/spec/volumes","value":[{volumes}]}}]"#),
        ),
    ] {
        let reply = server.send("PATCH", &format!("{PODS}/p"), &[("content-type", media_type)], patch).await;
        assert_rejected(&reply, 413);
    }
}

#[tokio::test]
async fn invalid_secret_patch_error_contains_no_value() {
    let server = Server::start().await;
    let secret = json!({"metadata": {"name": "s"}, "data": {"password": "aHVudGVyMg=="}});
    assert_eq!(server.post(SECRETS, secret).await.code, 201);
    let url = format!("{SECRETS}/s");
    let patches = [
        ("application/strategic-merge-patch+json", r#"{"data":{"password":"not base64: hunter2"}}"#),
        ("application/merge-patch+json", r#"{"data":{"password":"not base64: hunter2"}}"#),
        (
            "application/merge-patch+json",
            r#"{"stringData":{"a":"hunter2"},"data":{"password":{"hunter2":1}}}"#,
        ),
        ("application/json-patch+json", r#"[{"op":"add","path":"/data/a","value":"not base64: hunter2"}]"#),
        (
            "application/apply-patch+yaml",
            r#"{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},"data":{"a":"not base64: hunter2"}}"#,
        ),
    ];
    for (media_type, patch) in patches {
        for query in ["?fieldManager=t", "?fieldManager=t&fieldValidation=Strict"] {
            let reply =
                server.send("PATCH", &format!("{url}{query}"), &[("content-type", media_type)], patch).await;
            assert!(reply.code >= 400, "{media_type}: {}", reply.code);
            let body = String::from_utf8_lossy(&reply.body);
            assert!(!body.contains("hunter2"), "{media_type}: {body}");
        }
    }
    // Errors of other kinds show the invalid value, truncated.
    assert_eq!(server.post(MAPS, map("m", "v")).await.code, 201);
    let reply =
        server.merge(&format!("{MAPS}/m"), json!({"data": {"k": {"shown": "x".repeat(5_000)}}})).await;
    assert_rejected(&reply, 422);
    assert!(reply.json()["message"].as_str().unwrap().contains("shown") && reply.body.len() < 2_000);
}

#[tokio::test]
async fn apply_with_many_duplicate_items_has_limited_warnings_and_causes() {
    let server = Server::start().await;
    let apply = [("content-type", "application/apply-patch+yaml")];
    let items = vec![r#"{"name":"c","image":"a:1"}"#; 128].join(",");
    let body = format!(
        r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{"name":"p"}},"spec":{{"containers":[{items}]}}}}"#
    );
    let reply = server.send("PATCH", &format!("{PODS}/p?fieldManager=t"), &apply, body).await;
    assert!(reply.code == 400 || reply.code == 500, "{}", reply.code);
    assert!(reply.headers.get_all("warning").iter().count() <= 20);
    assert!(reply.body.len() < MAX_ERROR_BYTES);
}

#[tokio::test]
async fn object_of_20000_controllers_is_rejected_in_linear_time() {
    let server = start_without_deadline().await;
    let owner = |i: usize| json!({"apiVersion": "v1", "kind": "Pod", "name": format!("p{i}"), "uid": "u", "controller": true});
    assert_linear_work(&server, 20_000, async |count| {
        let owners: Vec<Value> = (0..count).map(owner).collect();
        let reply = server.post(MAPS, json!({"metadata": {"name": "m", "ownerReferences": owners}})).await;
        assert_rejected(&reply, 422);
    })
    .await;
}
