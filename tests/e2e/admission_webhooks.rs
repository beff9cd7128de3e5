//! Admission webhooks end to end: golden reviews, patches, reinvocation, faulty answers, dry run and freshness.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use apimachinery::names::Preset;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::{Request, Response};
use hyper::body::Incoming;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use serving::body::{self, Body};
use serving::certs::ensure_serving_pair;
use serving::listener::Listener;
use serving::server::{ConnectionInfo, ServerOptions, serve};
use serving::tls::{ServingTls, TlsFiles};
use tempfile::TempDir;
use tests::harness::{AuditLog, ControlPlane, Options};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PODS: &str = "/api/v1/namespaces/default/pods";

/// An answer: status and body. None means no answer.
type Answer = Option<(u16, String)>;

/// A webhook with TLS in the test process.
pub(super) struct Hook {
    dir: TempDir,
    port: u16,
    received: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Hook {
    /// Starts a webhook. It responds with the result of `answer` for the path and the field `request` of the
    /// review, and with the `apiVersion` of the review.
    pub(super) async fn start(answer: impl Fn(&str, &Value) -> Answer + Send + Sync + 'static) -> Hook {
        let dir = tempfile::tempdir().expect("a folder");
        let hosts = ["127.0.0.1".to_owned(), "hook.default.svc".to_owned()];
        let pair = ensure_serving_pair(dir.path(), &hosts, Timestamp::now()).expect("a pair");
        let files = TlsFiles { cert: pair.cert, key: pair.key, client_cas: Vec::new() };
        let tls = ServingTls::load(files).expect("TLS");
        let listener = Listener::tcp(Ipv4Addr::LOCALHOST.into(), 0).await.expect("a port");
        let port = listener.address().expect("an address").port();
        let received = Arc::new(Mutex::new(Vec::new()));
        let (log, answer) = (Arc::clone(&received), Arc::new(answer));
        let handler = move |request: Request<Incoming>, _: Arc<ConnectionInfo>| {
            let (log, answer) = (Arc::clone(&log), Arc::clone(&answer));
            async move {
                let path = request.uri().path().to_owned();
                let body = body::read(request.into_body(), 4 << 20, Duration::from_secs(60)).await;
                let review: Value = serde_json::from_slice(&body.expect("a body")).expect("JSON");
                log.lock().push((path.clone(), review.clone()));
                let mut asked = review["request"].clone();
                asked["apiVersion"] = review["apiVersion"].clone();
                match answer(&path, &asked) {
                    Some((status, body)) => {
                        Response::builder().status(status).body(Body::from(body)).expect("a response")
                    }
                    None => std::future::pending().await,
                }
            }
        };
        let options = ServerOptions::default();
        tokio::spawn(serve(listener, Some(tls), Arc::new(handler), options, std::future::pending::<()>()));
        Hook { dir, port, received }
    }

    pub(super) fn take(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut *self.received.lock())
    }

    /// The entry of a webhook configuration for creations and updates of ConfigMaps. `changed` replaces
    /// fields of the entry.
    pub(super) fn webhook(&self, path: &str, changed: Value) -> Value {
        let ca = STANDARD.encode(std::fs::read(self.dir.path().join("ca.crt")).expect("the CA"));
        let mut webhook = json!({
            "name": format!("{path}.hook.test"),
            "clientConfig": {"url": format!("https://127.0.0.1:{}/{path}", self.port), "caBundle": ca},
            "sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 2,
            "rules": [{
                "operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"],
                "resources": ["configmaps"],
            }],
        });
        for (field, value) in changed.as_object().expect("an object") {
            webhook[field] = value.clone();
        }
        webhook
    }
}

/// A response with a review that allows a request; `more` replaces fields of `response`.
fn review(request: &Value, more: Value) -> Answer {
    let mut response = json!({"uid": request["uid"], "allowed": true});
    for (field, value) in more.as_object().expect("an object") {
        response[field] = value.clone();
    }
    let review =
        json!({"apiVersion": request["apiVersion"], "kind": "AdmissionReview", "response": response});
    Some((200, review.to_string()))
}

pub(super) fn patch(request: &Value, operations: Value) -> Answer {
    review(request, json!({"patchType": "JSONPatch", "patch": STANDARD.encode(operations.to_string())}))
}

fn denial(request: &Value, message: &str) -> Answer {
    review(request, json!({"allowed": false, "status": {"message": message, "code": 403, "reason": "Mine"}}))
}

pub(super) async fn configure(plane: &ControlPlane, kind: &str, webhooks: Value) {
    let path = format!("{}/{kind}webhookconfigurations", plane.api("admissionregistration", "v1"));
    let admin = plane.admin();
    let _ = admin.delete(&format!("{path}/c")).await;
    admin.post(&path, &json!({"metadata": {"name": "c"}, "webhooks": webhooks})).await.expect(201);
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}})
}

#[tokio::test]
async fn admission_review_has_every_field() {
    for preset in [Preset::Kubernetes, Preset::Svc] {
        check_review(preset).await;
    }
}

async fn check_review(preset: Preset) {
    let hook = Hook::start(|_, request| review(request, json!({"warnings": ["careful"]}))).await;
    let plane = ControlPlane::start(Options { preset, ..Options::default() }).await;
    let admin = plane.admin();
    configure(&plane, "validating", json!([hook.webhook("all", json!({
        "rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["configmaps"]}],
    }))]))
    .await;
    let created = admin.post(MAPS, &map("m")).await;
    assert_eq!(created.header("warning"), "299 - \"careful\"");
    let stored = created.expect(201);
    let (path, sent) = hook.take().pop().expect("a review");
    assert_eq!(path, "/all");
    let uid = sent["request"]["uid"].as_str().expect("a uid");
    let kind = json!({"group": "", "version": "v1", "kind": "ConfigMap"});
    let resource = json!({"group": "", "version": "v1", "resource": "configmaps"});
    let user = &sent["request"]["userInfo"];
    assert_eq!(user["username"], "admin");
    let groups = user["groups"].as_array().expect("groups");
    assert!(
        groups.contains(&json!("system:masters")) && groups.contains(&json!("system:authenticated")),
        "{user}"
    );
    let mut object = stored.clone();
    object["metadata"].as_object_mut().expect("metadata").remove("resourceVersion");
    assert_eq!(
        sent,
        json!({
            "kind": "AdmissionReview", "apiVersion": format!("{}/v1", plane.names().group("admission")),
            "request": {
                "uid": uid, "kind": kind, "resource": resource, "requestKind": kind,
                "requestResource": resource, "name": "m", "namespace": "default", "operation": "CREATE",
                "userInfo": user, "object": object, "oldObject": null, "dryRun": false,
                "options": {"kind": "CreateOptions", "apiVersion": format!("{}/v1", plane.names().meta_group())},
            },
        })
    );
    admin.delete(&format!("{MAPS}/m?dryRun=All")).await.expect(200);
    let (_, sent) = hook.take().pop().expect("a review");
    let request = &sent["request"];
    assert_eq!((&request["operation"], &request["dryRun"]), (&json!("DELETE"), &json!(true)));
    assert_eq!((&request["object"], &request["oldObject"]), (&Value::Null, &stored));
    assert_eq!(request["options"]["kind"], "DeleteOptions");
}

#[tokio::test]
async fn sidecar_of_a_mutating_webhook_is_seen_by_a_validating_webhook() {
    let hook = Hook::start(|path, request| {
        let containers = request["object"]["spec"]["containers"].as_array().map_or(0, Vec::len);
        match path {
            "/inject" => {
                assert!(request["object"]["metadata"].get("uid").is_none(), "a creation has no uid yet");
                let sidecar = json!({"name": "sidecar", "image": "s:1"});
                patch(request, json!([{"op": "add", "path": "/spec/containers/-", "value": sidecar}]))
            }
            _ if containers == 2 => review(request, json!({})),
            _ => denial(request, "no sidecar"),
        }
    })
    .await;
    let plane = ControlPlane::start(Options::kubernetes()).await;
    let admin = plane.admin();
    let rules = json!({"rules": [{
        "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"],
    }]});
    configure(&plane, "validating", json!([hook.webhook("demand", rules.clone())])).await;
    let pod = json!({
        "metadata": {"name": "p"},
        "spec": {"automountServiceAccountToken": false, "containers": [{"name": "c", "image": "a:1"}]},
    });
    let denied = admin.post(PODS, &pod).await.expect(403);
    assert_eq!(denied["message"], "admission webhook \"demand.hook.test\" denied the request: no sidecar");
    assert_eq!(denied["reason"], "Mine");
    configure(&plane, "mutating", json!([hook.webhook("inject", rules)])).await;
    let created = admin.post(PODS, &pod).await.expect(201);
    let sidecar = &created["spec"]["containers"][1];
    assert_eq!((&sidecar["name"], &sidecar["imagePullPolicy"]), (&json!("sidecar"), &json!("IfNotPresent")));
}

#[tokio::test]
async fn reinvocable_webhook_is_called_again_after_a_later_change() {
    let audit = AuditLog::new();
    let hook = Hook::start(|path, request| {
        let data = &request["object"]["data"];
        match path {
            "/first" => {
                let seen = data["second"].as_str().unwrap_or("none");
                patch(request, json!([{"op": "add", "path": "/data/first", "value": format!("saw {seen}")}]))
            }
            _ => patch(request, json!([{"op": "add", "path": "/data/second", "value": "2"}])),
        }
    })
    .await;
    let plane = ControlPlane::start(Options::kubernetes().flag(&audit.flag())).await;
    let admin = plane.admin();
    for (policy, first, calls) in [("IfNeeded", "saw 2", 3), ("Never", "saw none", 2)] {
        let first_webhook = hook.webhook("first", json!({"reinvocationPolicy": policy}));
        configure(&plane, "mutating", json!([first_webhook, hook.webhook("second", json!({}))])).await;
        hook.take();
        let created = admin.post(MAPS, &map(&policy.to_lowercase())).await.expect(201);
        assert_eq!(created["data"], json!({"a": "b", "first": first, "second": "2"}));
        assert_eq!(hook.take().len(), calls);
        let is_write = |event: &Value| event["objectRef"]["name"] == policy.to_lowercase();
        let event = audit.event("the event of the write", is_write).await;
        let annotations = event["annotations"].as_object().expect("annotations");
        let mutations = annotations.iter().filter_map(|(key, value)| {
            let position = key.strip_prefix("mutation.webhook.admission.k8s.io/")?;
            let value: Value = serde_json::from_str(value.as_str()?).expect("JSON");
            Some((position.to_owned(), value))
        });
        let expected =
            [("round_0_index_0", "first"), ("round_0_index_1", "second"), ("round_1_index_0", "first")];
        let expected = expected.iter().take(calls).map(|(position, webhook)| {
            let webhook = format!("{webhook}.hook.test");
            ((*position).to_owned(), json!({"configuration": "c", "webhook": webhook, "mutated": true}))
        });
        assert_eq!(mutations.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        assert!(!annotations.keys().any(|key| key.starts_with("patch.webhook.")), "the level is Metadata");
    }
}

#[tokio::test]
async fn faulty_webhook_fails_the_write_or_is_ignored() {
    let hook = Hook::start(|path, request| match path {
        "/hang" => None,
        "/garbage" => Some((200, "<html>".to_owned())),
        "/long" => Some((200, "x".repeat(4 << 20))),
        "/uid" => review(request, json!({"uid": "other"})),
        "/error" => Some((500, "oops".to_owned())),
        "/break" => patch(request, json!([{"op": "replace", "path": "/data", "value": 5}])),
        _ => patch(request, json!([{"op": "remove", "path": "/nothing"}])),
    })
    .await;
    let plane = ControlPlane::start(Options::kubernetes()).await;
    let admin = plane.admin();
    for (path, message, is_ignorable) in [
        ("hang", "context deadline exceeded", true),
        ("garbage", "couldn't get version/kind; json parse error", true),
        ("long", "the response is larger than 3145728 bytes", true),
        ("uid", "received invalid webhook response: expected response.uid=", true),
        ("error", "an error on the server (\"oops\") has prevented the request from succeeding", true),
        ("break", "cannot unmarshal number into Go struct field ConfigMap.data", false),
        ("inapplicable", "the server rejected our request due to an error in our request", false),
    ] {
        let object = map(path);
        configure(&plane, "mutating", json!([hook.webhook(path, json!({}))])).await;
        let failed = admin.post(MAPS, &object).await.expect(500);
        let text = failed["message"].as_str().expect("a message");
        assert!(text.starts_with("Internal error occurred: ") && text.contains(message), "{path}: {text}");
        if is_ignorable {
            assert!(text.contains(&format!("failed calling webhook \"{path}.hook.test\": ")), "{text}");
        }
        admin.get(&format!("{MAPS}/{path}")).await.expect(404);
        let ignoring = hook.webhook(path, json!({"failurePolicy": "Ignore"}));
        configure(&plane, "mutating", json!([ignoring])).await;
        let status = if is_ignorable { 201 } else { 500 };
        admin.post(MAPS, &object).await.expect(status);
    }
    let closed = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("https://{}/x", closed.local_addr().expect("an address"));
    drop(closed);
    configure(&plane, "mutating", json!([hook.webhook("gone", json!({"clientConfig": {"url": url}}))])).await;
    let failed = admin.post(MAPS, &map("gone")).await.expect(500);
    assert!(
        failed["message"]
            .as_str()
            .is_some_and(|text| text.contains("failed to call webhook: Post \"https://127.0.0.1:")
                && text.contains("cannot connect")),
        "{failed}"
    );
}

#[tokio::test]
async fn service_of_a_webhook_is_resolved_by_the_file() {
    let hook = Hook::start(|_, request| denial(request, "by service")).await;
    let file = hook.dir.path().join("services.yaml");
    std::fs::write(&file, format!("default/hook:443: https://127.0.0.1:{}\n", hook.port)).expect("a file");
    let flag = format!("--service-resolver-file={}", file.display());
    let plane = ControlPlane::start(Options::kubernetes().flag(&flag)).await;
    let admin = plane.admin();
    let mut webhook = hook.webhook("service", json!({}));
    let client = webhook["clientConfig"].as_object_mut().expect("an object");
    client.remove("url");
    client.insert("service".to_owned(), json!({"namespace": "default", "name": "hook", "path": "/x"}));
    configure(&plane, "validating", json!([webhook])).await;
    let denied = admin.post(MAPS, &map("m")).await.expect(403);
    assert!(denied["message"].as_str().is_some_and(|text| text.ends_with("by service")), "{denied}");
}

#[tokio::test]
async fn write_after_acknowledged_configuration_is_evaluated_with_it() {
    let hook = Hook::start(|_, request| denial(request, "closed")).await;
    let plane = ControlPlane::start(Options::kubernetes()).await;
    let admin = plane.admin();
    let path = format!("{}/validatingwebhookconfigurations", plane.api("admissionregistration", "v1"));
    for round in 0..60 {
        let configuration = json!({"metadata": {"name": "c"}, "webhooks": [hook.webhook("deny", json!({}))]});
        admin.post(&path, &configuration).await.expect(201);
        admin.post(&format!("{MAPS}?dryRun=All"), &map("m")).await.expect(403);
        admin.delete(&format!("{path}/c")).await.expect(200);
        let status = admin.post(&format!("{MAPS}?dryRun=All"), &map("m")).await.status;
        assert_eq!(status, 201, "round {round}");
    }
    let metrics = admin.get("/metrics").await.text();
    let rejections = "apiserver_admission_webhook_rejection_count{name=\"deny.hook.test\",type=\"validating\",\
        operation=\"CREATE\",error_type=\"no_error\",rejection_code=\"403\"} 60";
    assert!(metrics.contains(rejections), "{metrics}");
}

#[tokio::test]
async fn dry_run_reaches_webhook_without_side_effects_and_may_differ_from_the_write() {
    let calls = AtomicUsize::new(0);
    let hook = Hook::start(move |_, request| {
        let value = format!("v{}", calls.fetch_add(1, Ordering::SeqCst));
        patch(request, json!([{"op": "add", "path": "/metadata/labels", "value": {"random": value}}]))
    })
    .await;
    let plane = ControlPlane::start(Options::default()).await;
    let admin = plane.admin();
    let webhook = hook.webhook("label", json!({"sideEffects": "NoneOnDryRun"}));
    configure(&plane, "mutating", json!([webhook])).await;
    let group = plane.api("admissionregistration", "v1");
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]});
    let policy = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "has(object.metadata.labels) && 'random' in object.metadata.labels"}]}});
    let binding =
        json!({"metadata": {"name": "p"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    admin.post(&format!("{group}/validatingadmissionpolicies"), &policy).await.expect(201);
    admin.post(&format!("{group}/validatingadmissionpolicybindings"), &binding).await.expect(201);
    let tried = admin.post(&format!("{MAPS}?dryRun=All"), &map("m")).await.expect(201);
    let written = admin.post(MAPS, &map("m")).await.expect(201);
    let label = |object: &Value| object["metadata"]["labels"]["random"].clone();
    assert_eq!((label(&tried), label(&written)), (json!("v0"), json!("v1")));
    let dry_runs: Vec<Value> =
        hook.take().into_iter().map(|(_, review)| review["request"]["dryRun"].clone()).collect();
    assert_eq!(dry_runs, [json!(true), json!(false)]);
}

#[tokio::test]
async fn webhook_that_exceeds_the_request_timeout_gives_504_and_is_called_for_later_writes() {
    let hook = Hook::start(|_, request| match request["name"].as_str() {
        Some("slow") => None,
        _ => denial(request, "called"),
    })
    .await;
    let plane = ControlPlane::start(Options::kubernetes()).await;
    let admin = plane.admin();
    let webhook = hook.webhook("slow", json!({"failurePolicy": "Ignore", "timeoutSeconds": 20}));
    configure(&plane, "mutating", json!([webhook])).await;
    for _ in 0..6 {
        let failed = admin.post(&format!("{MAPS}?timeout=300ms&dryRun=All"), &map("slow")).await.expect(504);
        assert_eq!(failed["reason"], "Timeout");
    }
    let denied = admin.post(MAPS, &map("quick")).await.expect(403);
    assert_eq!(denied["message"], "admission webhook \"slow.hook.test\" denied the request: called");
}

#[tokio::test]
async fn webhook_sets_the_name_of_a_generated_object() {
    let hook = Hook::start(|_, request| {
        assert!(request["object"]["metadata"].get("name").is_none(), "the name is not generated yet");
        patch(request, json!([{"op": "add", "path": "/metadata/name", "value": "chosen"}]))
    })
    .await;
    let plane = ControlPlane::start(Options::kubernetes()).await;
    let admin = plane.admin();
    configure(&plane, "mutating", json!([hook.webhook("name", json!({}))])).await;
    let object = json!({"metadata": {"generateName": "some-"}});
    let created = admin.post(MAPS, &object).await.expect(201);
    assert_eq!(created["metadata"]["name"], "chosen");
    admin.get(&format!("{MAPS}/chosen")).await.expect(200);
    admin.post(MAPS, &object).await.expect(409);
}
