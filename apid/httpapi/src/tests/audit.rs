//! Audit events of requests for objects: the object reference.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use apimachinery::clock::{Rng, SeededRng};
use bytes::Bytes;
use serde_json::{Value, json};

use super::{MAPS, Server, Settings, audit_log, audit_log_with, map};
use authclient::Auth;

/// A server with an audit log, and the directory of its file.
pub(super) struct AuditedServer {
    pub(super) server: Server,
    directory: tempfile::TempDir,
}

impl AuditedServer {
    pub(super) async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let audit = audit_log(&directory.path().join("audit.log"));
        let server =
            Server::start_with_audit(|clock| Auth::allow_all(clock), audit).await.with_namespaces().await;
        AuditedServer { server, directory }
    }

    /// Returns the events whose URI contains a text, in order of completion.
    pub(super) fn events(self, uri: &str) -> Vec<Value> {
        self.server.http_state.audit.close();
        let lines = std::fs::read_to_string(self.directory.path().join("audit.log")).unwrap();
        let events = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.filter(|event| event["requestURI"].as_str().unwrap().contains(uri)).collect()
    }
}

#[tokio::test]
async fn create_event_references_created_object_by_name_and_uid() {
    let audited = AuditedServer::start().await;
    let url = format!("{MAPS}?audited");
    let named = audited.server.post(&url, map("named", "1")).await.json();
    let generated = json!({"metadata": {"generateName": "g-", "namespace": "a"}});
    let generated = audited.server.post(&url, generated).await.json();
    let events = audited.events("?audited");
    assert_eq!(events.len(), 2, "{events:?}");
    for (object, event) in [named, generated].iter().zip(&events) {
        assert_eq!(
            event["objectRef"],
            json!({
                "resource": "configmaps", "apiVersion": "v1", "namespace": "a",
                "name": object["metadata"]["name"], "uid": object["metadata"]["uid"],
            })
        );
        assert_eq!(event["responseStatus"]["code"], 201);
    }
}

#[tokio::test]
async fn create_event_of_apid_references_created_object() {
    let audited = AuditedServer::start().await;
    audited.server.create_as_apid(json!({"generateName": "g-"})).await;
    let list = audited.server.get(MAPS).await.json();
    let created = &list["items"][0]["metadata"];
    let events = audited.events("/configmaps");
    let event = events.iter().find(|event| event["verb"] == "create").unwrap();
    assert_eq!(event["user"]["username"], "system:apiserver");
    assert_eq!(event["objectRef"]["name"], created["name"]);
    assert_eq!(event["objectRef"]["uid"], created["uid"]);
}

#[tokio::test]
async fn rejected_create_event_references_name_of_request_object() {
    let audited = AuditedServer::start().await;
    audited.server.post(MAPS, map("taken", "1")).await;
    let url = format!("{MAPS}?audited");
    assert_eq!(audited.server.post(&url, map("taken", "2")).await.code, 409);
    assert_eq!(audited.server.post(&url, map("Not_A_Name", "2")).await.code, 422);
    assert_eq!(
        audited.server.post(&url, json!({"metadata": {"generateName": "g-"}, "data": 1})).await.code,
        400
    );
    let events = audited.events("?audited");
    let names: Vec<_> = events.iter().map(|event| &event["objectRef"]["name"]).collect();
    assert_eq!(names, [&json!("taken"), &json!("Not_A_Name"), &Value::Null]);
    assert!(events.iter().all(|event| event["objectRef"].get("uid").is_none()), "{events:?}");
}

#[tokio::test]
async fn update_event_references_uid_and_resource_version_of_request_object() {
    let audited = AuditedServer::start().await;
    let mut object = audited.server.post(MAPS, map("one", "1")).await.json();
    let meta = object["metadata"].clone();
    object["data"]["k"] = json!("2");
    let url = format!("{MAPS}/one?audited");
    assert_eq!(audited.server.put(&url, object).await.code, 200);
    assert_eq!(audited.server.put(&url, map("one", "3")).await.code, 200);
    assert_eq!(audited.server.get(&url).await.code, 200);
    let events = audited.events("?audited");
    let reference = |uid: Option<(&str, &Value)>, version: Option<(&str, &Value)>| {
        let mut all = json!({"resource": "configmaps", "apiVersion": "v1", "namespace": "a", "name": "one"});
        for (field, value) in uid.into_iter().chain(version) {
            all[field] = value.clone();
        }
        all
    };
    let sent = reference(Some(("uid", &meta["uid"])), Some(("resourceVersion", &meta["resourceVersion"])));
    let references: Vec<_> = events.iter().map(|event| event["objectRef"].clone()).collect();
    assert_eq!(references, [sent, reference(None, None), reference(None, None)]);
}

#[tokio::test]
async fn rejected_request_event_has_reason_of_rejection() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("audit.log");
    let audit = audit_log(&file);
    let server = Server::start_with_audit(|clock| Auth::allow_except(clock, "/version"), audit).await;
    let bad = [("authorization", "Bearer bad")];
    for _ in 0..2 {
        assert_eq!(server.send("GET", "/livez?unknown", &bad, "").await.code, 401);
    }
    assert_eq!(server.get("/version").await.code, 403);
    server.http_state.audit.close();
    let text = std::fs::read_to_string(file).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let key = |stem: &str, name: &str| format!("{}/{name}", server.api_state.names.group(stem));
    for event in &events[..2] {
        assert_eq!(event["annotations"][key("authentication", "reason")], "a bad token", "{event}");
        assert_eq!(event["responseStatus"]["code"], 401);
    }
    assert_eq!(events[2]["annotations"][key("authorization", "decision")], "forbid");
    assert!(events[2]["responseStatus"]["message"].as_str().unwrap().contains("/version"));
}

/// A random source that panics after the switch is on.
struct FailingRng {
    rng: SeededRng,
    is_failing: AtomicBool,
}

impl Rng for FailingRng {
    fn bits(&self) -> u128 {
        assert!(!self.is_failing.load(Ordering::Relaxed), "no random bits");
        self.rng.bits()
    }
}

#[tokio::test]
async fn panic_of_handler_is_audited_at_its_own_stage() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("audit.log");
    let rng = Arc::new(FailingRng { rng: SeededRng::new(1), is_failing: AtomicBool::new(false) });
    let settings = Settings { rng: rng.clone(), ..Settings::default() };
    let server = Server::with_settings(|clock| Auth::allow_all(clock), audit_log(&file), settings).await;
    let server = server.with_namespaces().await;
    rng.is_failing.store(true, Ordering::Relaxed);
    let headers = [("content-type", "application/json"), ("audit-id", "panicking")];
    assert_eq!(server.send("POST", MAPS, &headers, map("one", "1").to_string()).await.code, 500);
    rng.is_failing.store(false, Ordering::Relaxed);
    server.http_state.audit.close();
    let text = std::fs::read_to_string(file).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let events: Vec<Value> = events.filter(|event| event["auditID"] == "panicking").collect();
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!(events[0]["stage"], "Panic");
    assert_eq!(events[0]["responseStatus"]["message"], "APIServer panic'd: no random bits");
}

#[tokio::test]
async fn shutdown_waits_for_the_last_events_of_streams() {
    let audited = AuditedServer::start().await;
    let url = format!("{MAPS}?watch=1&audited");
    let watch = audited.server.open("GET", &url, &[], Bytes::new()).await;
    let http_state = Arc::clone(&audited.server.http_state);
    let finished = http_state.finish_streams(Duration::from_secs(60));
    assert!(tokio::time::timeout(Duration::from_millis(50), finished).await.is_err(), "the stream is open");
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        drop(watch);
    });
    http_state.finish_streams(Duration::from_secs(60)).await;
    let stages: Vec<_> = audited.events("&audited").iter().map(|event| event["stage"].clone()).collect();
    assert_eq!(stages, ["ResponseStarted", "ResponseComplete"]);
}

#[tokio::test]
async fn event_with_large_objects_is_encoded_on_the_work_pool() {
    let directory = tempfile::tempdir().unwrap();
    let (file, policy) = (directory.path().join("audit.log"), directory.path().join("policy.yaml"));
    let text = "apiVersion: audit.example.test/v1\nkind: Policy\nrules:\n- level: RequestResponse\n";
    std::fs::write(&policy, text).unwrap();
    let audit = audit_log_with(&file, Some(&policy));
    let server =
        Server::start_with_audit(|clock| Auth::allow_all(clock), audit).await.with_namespaces().await;
    let tasks = async |value: &str| {
        let before = server.api.pool().started_tasks();
        assert_eq!(server.post(MAPS, map(&format!("m{}", value.len()), value)).await.code, 201);
        server.api.pool().started_tasks() - before
    };
    assert_eq!(tasks("v").await, 0);
    // The verb of a large write runs on the pool, too.
    assert_eq!(tasks(&"v".repeat(100_000)).await, 2);
    server.http_state.audit.close();
    let text = std::fs::read_to_string(file).unwrap();
    let events: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let large = events.iter().find(|event| event["responseObject"]["metadata"]["name"] == "m100000");
    let large = large.filter(|event| event["stage"] == "ResponseComplete").unwrap();
    assert_eq!(large["requestObject"]["data"]["k"].as_str().unwrap().len(), 100_000);
}
