//! Object life cycle, and the Status of invalid requests.

use std::time::Duration;

use serde_json::json;

use super::{MAPS, Server, audit_log, map};
use authclient::Auth;

#[tokio::test]
async fn write_sets_entry_of_cached_item() {
    let server = Server::start().await;
    server.create_as_apid(json!({"name": "one"})).await;
    let kinds = server.api_state.kinds.get();
    let resource = kinds.registry.find("", "v1", "configmaps").unwrap();
    let items = server.cached_items(resource, &["one"]).await;
    assert!(items[0].is_decoded(), "the first reader does not decode");
}

#[tokio::test]
async fn create_get_update_patch_and_delete_object() {
    let server = Server::start().await;
    let object_url = format!("{MAPS}/one");
    let created = server.post(MAPS, map("one", "1")).await;
    assert_eq!((created.code, created.header("content-type")), (201, "application/json"), "{created:?}");
    assert!(!created.header("audit-id").is_empty());
    let version = created.json()["metadata"]["resourceVersion"].clone();
    assert_eq!(created.json()["metadata"]["namespace"], "a");

    let got = server.get(&object_url).await;
    assert_eq!((got.code, got.json()), (200, created.json()));

    let same = server.put(&object_url, created.json()).await;
    assert_eq!(
        (same.code, &same.json()["metadata"]["resourceVersion"]),
        (200, &version),
        "update without changes keeps the resourceVersion"
    );

    let mut changed = created.json();
    changed["data"] = json!({"k": "2"});
    let updated = server.put(&object_url, changed.clone()).await;
    assert_eq!((updated.code, &updated.json()["data"]), (200, &json!({"k": "2"})));
    changed["data"] = json!({"k": "3"});
    let stale = server.put(&object_url, changed).await;
    assert_eq!((stale.code, &stale.json()["reason"]), (409, &json!("Conflict")));

    let patched = server.merge(&object_url, json!({"data": {"k": null, "l": "4"}})).await;
    assert_eq!((patched.code, &patched.json()["data"]), (200, &json!({"l": "4"})));

    let deleted = server.delete(&object_url, json!(null)).await;
    assert_eq!((deleted.code, &deleted.json()["status"]), (200, &json!("Success")));
    assert_eq!(deleted.json()["details"]["kind"], "configmaps");
    assert_eq!(server.get(&object_url).await.code, 404);
}

#[tokio::test]
async fn finalizer_delays_object_deletion() {
    let server = Server::start().await;
    let object_url = format!("{MAPS}/one");
    let body = json!({"metadata": {"name": "one", "finalizers": ["example.test/x"]}});
    assert_eq!(server.post(MAPS, body).await.code, 201);
    let terminating = server.delete(&object_url, json!(null)).await.json();
    assert!(terminating["metadata"]["deletionTimestamp"].is_string(), "{terminating}");
    let again = server.delete(&object_url, json!(null)).await.json();
    assert_eq!(again["metadata"]["resourceVersion"], terminating["metadata"]["resourceVersion"]);
    let rejected = server.post(MAPS, map("one", "1")).await.json();
    assert!(rejected["message"].as_str().unwrap().starts_with("object is being deleted"), "{rejected}");
    let more = json!({"metadata": {"finalizers": ["example.test/x", "example.test/y"]}});
    assert_eq!(server.merge(&object_url, more).await.code, 422);
    assert_eq!(server.merge(&object_url, json!({"metadata": {"finalizers": null}})).await.code, 200);
    assert_eq!(server.get(&object_url).await.code, 404);
}

#[tokio::test]
async fn dry_run_of_all_verbs_stores_nothing() {
    let server = Server::start().await;
    let created = server.post(&format!("{MAPS}?dryRun=All"), map("one", "1")).await;
    assert_eq!((created.code, created.json()["metadata"].get("resourceVersion")), (201, None));
    assert_eq!(server.get(&format!("{MAPS}/one")).await.code, 404);
    server.post(MAPS, map("one", "1")).await;
    let before = server.get(&format!("{MAPS}/one")).await.body;
    assert_eq!(server.post(&format!("{MAPS}?dryRun=All"), map("one", "1")).await.code, 409);
    assert_eq!(server.put(&format!("{MAPS}/one?dryRun=All"), map("one", "2")).await.json()["data"]["k"], "2");
    assert_eq!(server.delete(&format!("{MAPS}/one?dryRun=All"), json!(null)).await.code, 200);
    assert_eq!(
        server.delete(&format!("{MAPS}?dryRun=All"), json!(null)).await.json()["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );
    assert_eq!(server.get(&format!("{MAPS}/one")).await.body, before);
}

#[tokio::test]
async fn concurrent_patches_are_all_applied() {
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    let object_url = format!("{MAPS}/one");
    let patches = (0..50).map(|i| server.merge(&object_url, json!({"data": {format!("k{i}"): "x"}})));
    let replies = futures_util::future::join_all(patches).await;
    assert!(replies.iter().all(|reply| reply.code == 200));
    assert_eq!(server.get(&object_url).await.json()["data"].as_object().unwrap().len(), 51);
}

#[tokio::test]
async fn generate_name_returns_unique_names_with_prefix() {
    let server = Server::start().await;
    let body = json!({"metadata": {"generateName": "gen-"}});
    let name = |reply: super::Reply| reply.json()["metadata"]["name"].as_str().unwrap().to_owned();
    let (first, second) = (name(server.post(MAPS, body.clone()).await), name(server.post(MAPS, body).await));
    assert_ne!(first, second);
    assert!(first.starts_with("gen-") && first.len() == 9, "{first}");
}

#[tokio::test]
async fn invalid_request_returns_status_with_code_and_reason() {
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    let json_type = [("content-type", "application/json")];
    let deep = format!("{}1{}", "{\"a\":".repeat(200), "}".repeat(200));
    let large = format!("{{\"data\":{{\"k\":\"{}\"}}}}", "x".repeat(3 << 20));
    let object_url = "/api/v1/namespaces/a/configmaps/one";
    for (method, url, body, code, reason) in [
        ("GET", "/api/v1/namespaces/a/configmaps/none", "", 404, "NotFound"),
        ("GET", "/api/v1/namespaces/a/nosuch", "", 404, "NotFound"),
        ("GET", "/api/v1/configmaps/one", "", 404, "NotFound"),
        // The namespace `b` exists, but only its own path serves it.
        ("GET", "/api/v1/namespaces/a/namespaces/b", "", 404, "NotFound"),
        ("DELETE", "/api/v1/namespaces/a/namespaces/b", "", 404, "NotFound"),
        ("GET", "/api/v1/namespaces/a/namespaces", "", 404, "NotFound"),
        ("GET", "/api/v1/namespaces/a/configmaps/one/status", "", 404, "NotFound"),
        ("GET", "/api/v2/x", "", 404, "NotFound"),
        ("GET", "/api/v1/namespaces/a//configmaps", "", 400, "BadRequest"),
        ("GET", "/api/v1/namespaces/a%2fb/configmaps", "", 400, "BadRequest"),
        ("POST", object_url, "{}", 405, "MethodNotAllowed"),
        ("PUT", MAPS, "{}", 405, "MethodNotAllowed"),
        ("POST", "/api/v1/configmaps", "{}", 405, "MethodNotAllowed"),
        ("DELETE", "/api/v1/namespaces", "", 405, "MethodNotAllowed"),
        ("POST", "/version", "", 405, "MethodNotAllowed"),
        ("POST", MAPS, "", 400, "BadRequest"),
        ("POST", MAPS, "{", 400, "BadRequest"),
        ("POST", MAPS, "[]", 400, "BadRequest"),
        ("POST", MAPS, &deep, 400, "BadRequest"),
        ("POST", MAPS, r#"{"kind":"Secret","apiVersion":"v1"}"#, 400, "BadRequest"),
        ("POST", MAPS, r#"{"metadata":{"name":"x","namespace":"b"}}"#, 400, "BadRequest"),
        ("POST", MAPS, r#"{"metadata":{"name":"x"},"data":{"k":1}}"#, 400, "BadRequest"),
        ("POST", MAPS, &large, 413, "RequestEntityTooLarge"),
        ("POST", MAPS, "null", 422, "Invalid"),
        ("POST", MAPS, r#"{"metadata":{"name":"Bad_Name"}}"#, 422, "Invalid"),
        ("POST", MAPS, r#"{"metadata":{"name":"one"}}"#, 409, "AlreadyExists"),
        ("POST", "/api/v1/namespaces/none/configmaps", r#"{"metadata":{"name":"x"}}"#, 404, "NotFound"),
        ("PUT", "/api/v1/namespaces/a/configmaps/none", r#"{"metadata":{"name":"none"}}"#, 404, "NotFound"),
        ("PUT", object_url, r#"{"metadata":{"name":"other"}}"#, 400, "BadRequest"),
        ("PUT", object_url, r#"{"metadata":{"name":"one","uid":"other"}}"#, 409, "Conflict"),
        ("PUT", object_url, r#"{"metadata":{"name":"one","resourceVersion":"99999"}}"#, 409, "Conflict"),
        ("PATCH", object_url, "{}", 415, "UnsupportedMediaType"),
        ("DELETE", object_url, r#"{"preconditions":{"uid":"other"}}"#, 409, "Conflict"),
        ("DELETE", object_url, r#"{"propagationPolicy":"Sideways"}"#, 422, "Invalid"),
        ("DELETE", "/api/v1/namespaces/default", "", 404, "NotFound"),
        ("GET", "/api/v1/namespaces/a/configmaps?limit=x", "", 400, "BadRequest"),
        ("GET", "/api/v1/namespaces/a/configmaps?continue=x", "", 400, "BadRequest"),
        ("GET", "/api/v1/namespaces/a/configmaps?resourceVersion=x", "", 400, "BadRequest"),
        ("GET", "/api/v1/namespaces/a/configmaps?fieldSelector=data.k%3Dx", "", 400, "BadRequest"),
        ("GET", "/api/v1/namespaces/a/configmaps?resourceVersionMatch=Exact", "", 422, "Invalid"),
    ] {
        let reply = server.send(method, url, &json_type, body.to_owned()).await;
        let shown = body.get(..60).unwrap_or(body);
        assert_eq!(
            (reply.code, &reply.json()["reason"]),
            (code, &json!(reason)),
            "{method} {url} {shown}: {:?}",
            reply.json()
        );
        assert_eq!(reply.json()["kind"], "Status");
    }
    assert_eq!(
        server.get("/apis/none.example.com/v1/things").await.header("content-type"),
        "text/plain; charset=utf-8"
    );
    let code_with_header = |name: &'static str, value: &'static str| {
        let server = &server;
        async move { server.send("GET", object_url, &[(name, value)], "").await.code }
    };
    assert_eq!(code_with_header("accept", "application/xml").await, 406);
    assert_eq!(code_with_header("authorization", "Bearer bad").await, 401);
    assert_eq!(code_with_header("impersonate-user", "root").await, 200);
    assert_eq!(code_with_header("impersonate-group", "team").await, 400);
}

#[tokio::test]
async fn cancelled_request_is_audited() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("audit.log");
    let audit = audit_log(&file);
    let server = Server::start_with_audit(|clock| Auth::allow_all(clock), audit).await;
    // The request waits for a future revision.
    let request = server.open("GET", "/api/v1/namespaces?resourceVersion=100000&left", &[], "".into());
    assert!(tokio::time::timeout(Duration::from_millis(50), request).await.is_err());
    let completed = server.get("/api/v1/namespaces?stayed").await;
    assert_eq!(completed.code, 200);
    server.http_state.audit.close();
    let lines = std::fs::read_to_string(file).unwrap();
    let lines_with = |what: &str| lines.lines().filter(|line| line.contains(what)).collect::<Vec<_>>();
    assert_eq!(lines_with("?stayed").len(), 1, "{lines}");
    let aborted = lines_with("&left");
    assert!(aborted.len() == 1 && aborted[0].contains("the client disconnected"), "{lines}");
}

#[tokio::test]
async fn responses_are_yaml_table_or_head_as_requested() {
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    let object_url = format!("{MAPS}/one");
    let yaml = server.send("GET", &object_url, &[("accept", "application/yaml")], "").await;
    assert_eq!(yaml.header("content-type"), "application/yaml");
    assert!(yaml.body.starts_with(b"apiVersion: v1"), "{yaml:?}");
    let table = server
        .send("GET", MAPS, &[("accept", "application/json;as=Table;v=v1;g=meta.example.test")], "")
        .await
        .json();
    assert_eq!((&table["kind"], &table["rows"][0]["cells"][0]), (&json!("Table"), &json!("one")));
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let head = server.send("HEAD", &object_url, &[], "").await;
    assert_eq!((head.code, head.body.len()), (200, 0));
    assert_eq!(head.header("content-length"), server.get(&object_url).await.body.len().to_string());
    let written = server
        .send(
            "POST",
            MAPS,
            &[("content-type", "application/yaml")],
            "metadata: {name: two}\ndata: {k: v}\nextra: 1\n",
        )
        .await;
    assert_eq!((written.code, written.header("warning")), (201, r#"299 - "unknown field \"extra\"""#));
    let strict = server
        .post(&format!("{MAPS}?fieldValidation=Strict"), json!({"metadata": {"name": "x"}, "extra": 1}))
        .await;
    assert_eq!(strict.code, 400);
}

#[tokio::test]
async fn create_with_resource_version_fails_unless_dry_run() {
    let server = Server::start().await;
    let body = json!({"metadata": {"name": "v", "resourceVersion": "7"}});
    let dry = server.post(&format!("{MAPS}?dryRun=All"), body.clone()).await;
    assert_eq!((dry.code, &dry.json()["metadata"]["resourceVersion"]), (201, &json!("7")), "{dry:?}");
    let rejected = server.post(MAPS, body).await;
    assert_eq!(rejected.code, 500, "{rejected:?}");
    let invalid = json!({"metadata": {"name": "V_", "resourceVersion": "7"}});
    assert_eq!(server.post(MAPS, invalid).await.code, 422, "validation precedes the version");
    for accepted in ["0", "word"] {
        let body = json!({"metadata": {"name": format!("v-{accepted}"), "resourceVersion": accepted}});
        assert_eq!(server.post(MAPS, body).await.code, 201, "{accepted}");
    }
}

#[tokio::test]
async fn update_with_malformed_resource_version_returns_500() {
    let server = Server::start().await;
    server.post(MAPS, map("one", "1")).await;
    let object_url = format!("{MAPS}/one");
    let body = json!({"metadata": {"name": "one", "resourceVersion": "word"}});
    for reply in [server.put(&object_url, body.clone()).await, server.merge(&object_url, body).await] {
        let status = reply.json();
        assert_eq!((reply.code, status.get("reason")), (500, None), "{status}");
        assert_eq!(status["message"], "strconv.ParseUint: parsing \"word\": invalid syntax");
    }
}
