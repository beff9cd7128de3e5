//! Authentication and authorization webhooks over TLS with client certificates.
//!
//! Responses are correct, slow, failing or invalid (requirements A-TWH, A-AZW, and A-AZC for webhooks).

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use serving::body::{self, Body};
use serving::certs::{Authority, ensure_serving_pair};
use serving::listener::Listener;
use serving::server::{ConnectionInfo, ServerOptions, serve};
use serving::tls::{ServingTls, TlsFiles};
use tempfile::TempDir;
use tests::harness::{Client, ControlPlane, DEADLINE, Options, eventually};

/// A webhook response: status code and body. `None` means that the webhook never responds.
pub(crate) type WebhookResponse = Option<(u16, Value)>;

type Requests = Vec<(String, Value)>;

/// A webhook server in the test process.
pub(crate) struct WebhookServer {
    dir: TempDir,
    port: u16,
    /// Paths and bodies of the requests since the last `take`; `None` after `stop_recording`.
    received: Arc<Mutex<Option<Requests>>>,
}

impl WebhookServer {
    /// Starts the server. It responds with the result of `respond`, or with 401 without a client certificate.
    pub(crate) async fn start(
        respond: impl Fn(&str, &Value) -> WebhookResponse + Send + Sync + 'static,
    ) -> WebhookServer {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        let pair =
            ensure_serving_pair(dir.path(), &["127.0.0.1".to_owned()], Timestamp::now()).expect("a pair");
        let (cert, key) = (at("callers.crt"), at("callers.key"));
        let made = Authority::ensure(&cert, &key, "callers", Timestamp::now()).expect("an authority");
        let caller =
            made.client("me", &[], Duration::from_secs(3600), Timestamp::now()).expect("a certificate");
        std::fs::write(at("me.crt"), caller.cert).expect("a file");
        std::fs::write(at("me.key"), caller.key).expect("a file");
        let tls = TlsFiles { cert: pair.cert, key: pair.key, client_cas: Vec::new() };
        let tls = ServingTls::load(tls).expect("TLS");
        let listener = Listener::tcp(Ipv4Addr::LOCALHOST.into(), 0).await.expect("a port");
        let port = listener.address().expect("an address").port();
        let received = Arc::new(Mutex::new(Some(Vec::new())));
        let (log, respond) = (Arc::clone(&received), Arc::new(respond));
        let handler = move |request: Request<Incoming>, connection: Arc<ConnectionInfo>| {
            let (log, respond) = (Arc::clone(&log), Arc::clone(&respond));
            async move {
                let path = request.uri().path().to_owned();
                let post = request.method() == "POST";
                let body = body::read(request.into_body(), 1 << 20, Duration::from_secs(60)).await;
                // The client process may have been killed.
                let Ok(body) = body else {
                    return Response::builder().status(400).body(Body::empty()).expect("a response");
                };
                let review: Value = serde_json::from_slice(&body).expect("JSON");
                if let Some(log) = &mut *log.lock() {
                    log.push((path.clone(), review.clone()));
                }
                if !post || connection.client_fingerprint.is_none() {
                    return Response::builder().status(401).body(Body::empty()).expect("a response");
                }
                match respond(&path, &review) {
                    Some((code, body)) => {
                        let body = body.as_str().map_or_else(|| body.to_string(), str::to_owned);
                        Response::builder().status(code).body(Body::from(body)).expect("a response")
                    }
                    None => std::future::pending().await,
                }
            }
        };
        let options = ServerOptions::default();
        tokio::spawn(serve(listener, Some(tls), Arc::new(handler), options, std::future::pending::<()>()));
        WebhookServer { dir, port, received }
    }

    /// Writes a kubeconfig file for a path of the server.
    pub(crate) fn config(&self, path: &str, fields: &str) -> PathBuf {
        let name = if path.is_empty() { "root" } else { path };
        let file = self.dir.path().join(format!("{name}.yaml"));
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: here\n\
             clusters: [{{name: it, cluster: {{server: 'https://127.0.0.1:{}/{path}', {fields}}}}}]\n\
             users: [{{name: me, user: {{client-certificate: me.crt, client-key: me.key}}}}]\n\
             contexts: [{{name: here, context: {{cluster: it, user: me}}}}]\n",
            self.port
        );
        std::fs::write(&file, text).expect("the client configuration");
        file
    }

    pub(crate) fn take(&self) -> Vec<(String, Value)> {
        self.received.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The number of requests since the last `take`.
    pub(crate) fn count(&self) -> usize {
        self.received.lock().as_ref().map_or(0, Vec::len)
    }

    /// Stops recording requests, for runs with millions of them.
    pub(crate) fn stop_recording(&self) {
        *self.received.lock() = None;
    }
}

/// A 200 response with the API version and kind of the review.
pub(crate) fn review_response(review: &Value, status: Value) -> WebhookResponse {
    Some((200, json!({"apiVersion": review["apiVersion"], "kind": review["kind"], "status": status})))
}

fn by_token(
    respond: fn(&str, &Value) -> WebhookResponse,
) -> impl Fn(&str, &Value) -> WebhookResponse + Send + Sync {
    move |_, review| respond(review["spec"]["token"].as_str().unwrap_or_default(), review)
}

/// The webhook response for each test token.
fn tokens(token: &str, review: &Value) -> WebhookResponse {
    let jane = json!({"username": "jane"});
    let accepted = |more: Value| {
        let mut status = json!({"authenticated": true, "user": jane});
        status.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        review_response(review, status)
    };
    match token {
        "full" => accepted(json!({"audiences": ["b", "c"], "error": "ignored", "user": {
            "username": "jane", "uid": "u1", "groups": ["team"], "extra": {"k.test/x": ["v", "w"]}}})),
        "plain" => accepted(json!({})),
        "renamed" => accepted(json!({})).map(|(code, mut body)| {
            body["spec"] = json!({"token": "else", "audiences": ["else"]});
            (code, body)
        }),
        "elsewhere" => accepted(json!({"audiences": ["c"]})),
        "reason" => review_response(review, json!({"authenticated": false, "error": "it was stolen"})),
        "failing" => Some((500, json!({}))),
        _ => review_response(review, json!({"authenticated": false})),
    }
}

async fn self_review(client: &Client) -> (u16, Value) {
    let url = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let answer = client.post(url, &body).await;
    (answer.status, answer.json())
}

fn with_tokens(service: &WebhookServer, more: &[&str]) -> Options {
    let config = service.config("tokens", "certificate-authority: ca.crt");
    let flag = format!("--authentication-token-webhook-config-file={}", config.display());
    more.iter().fold(Options::kubernetes().flag(&flag), |options, flag| options.flag(flag))
}

#[tokio::test(flavor = "multi_thread")]
async fn token_webhook_authenticates_and_response_is_cached() {
    let service = WebhookServer::start(by_token(tokens)).await;
    let plane =
        ControlPlane::start(with_tokens(&service, &["--api-audiences=a,b", "--metrics-address=127.0.0.1:0"]))
            .await;
    service.take();
    let (code, review) = self_review(&plane.token("full")).await;
    assert_eq!(code, 201, "{review}");
    let want = json!({"username": "jane", "uid": "u1", "groups": ["team", "system:authenticated"],
                      "extra": {"k.test/x": ["v", "w"]}});
    assert_eq!(review["status"]["userInfo"], want);
    let received = service.take();
    let want = json!({"apiVersion": "authentication.k8s.io/v1beta1", "kind": "TokenReview", "metadata": {},
                      "spec": {"token": "full", "audiences": ["a", "b"]}});
    assert_eq!(received, [("/tokens".to_owned(), want)]);
    for _ in 0..10 {
        assert_eq!(self_review(&plane.token("full")).await.0, 201);
    }
    assert_eq!(service.take().len(), 0, "cache hits send no review");
    for (token, want) in [("plain", 201), ("renamed", 201), ("elsewhere", 401), ("reason", 401)] {
        let (code, body) = self_review(&plane.token(token)).await;
        assert_eq!(code, want, "{token}: {body}");
        assert_eq!(service.take().len(), 1, "{token}");
        if code == 401 {
            assert_eq!(body["message"], "Unauthorized");
        }
    }
    assert!(plane.log().contains("it was stolen"), "the log contains the error of the webhook");
    for _ in 0..2 {
        assert_eq!(self_review(&plane.token("failing")).await.0, 401);
        assert_eq!(service.take().len(), 5, "a failing webhook is retried, and the failure is not cached");
    }
    assert_eq!(
        self_review(&plane.user("alice")).await.1["status"]["userInfo"]["username"],
        "alice",
        "other authenticators still work"
    );
    let metrics = plane.authd_get("/metrics").await;
    assert!(metrics.contains("authd_token_webhook_requests_total{result=\"success\"} 4"), "{metrics}");
}

/// apid re-authenticates a watch when the cached webhook response expires.
///
/// The watch ends with 401 when the webhook rejects the token.
#[tokio::test(flavor = "multi_thread")]
async fn watch_ends_with_401_when_token_webhook_rejects_token() {
    let revoked = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&revoked);
    let service = WebhookServer::start(move |_, review| {
        let user = json!({"username": "jane", "groups": ["system:masters"]});
        review_response(review, json!({"authenticated": !now.load(Ordering::SeqCst), "user": user}))
    })
    .await;
    let plane =
        ControlPlane::start(with_tokens(&service, &["--authentication-token-webhook-cache-ttl=1s"])).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let mut watch = plane.token("opaque").watch(&format!("{maps}?watch=1")).await;
    service.take();
    let mut made = 0;
    eventually("the webhook repeatedly reviews the token of the idle watch", || async {
        (service.count() > 2).then_some(())
    })
    .await;
    while made < 50 {
        made += 1;
        let map = json!({"metadata": {"name": format!("m{made}")}});
        plane.admin().post(maps, &map).await.expect(201);
        let mut event = watch.next().await.expect("the watch goes on");
        while event["object"]["metadata"]["name"] == "kube-root-ca.crt" {
            event = watch.next().await.expect("the watch goes on");
        }
        assert_eq!(event["object"]["metadata"]["name"], format!("m{made}"));
    }
    revoked.store(true, Ordering::SeqCst);
    let end = async {
        let mut last = Value::Null;
        while let Some(event) = watch.next().await {
            last = event;
        }
        last
    };
    let last = tokio::time::timeout(DEADLINE, end).await.expect("the stream ends");
    assert_eq!((&last["type"], &last["object"]["code"]), (&json!("ERROR"), &json!(401)), "{last}");
}

/// The webhook response for a user, selected by its name.
fn users(_: &str, review: &Value) -> WebhookResponse {
    match review["spec"]["user"].as_str().unwrap_or_default() {
        // The readiness checks of the harness are anonymous.
        name if name.starts_with("allowed") || name == "system:anonymous" => {
            review_response(review, json!({"allowed": true, "reason": "it is so"}))
        }
        name if name.starts_with("denied") => {
            review_response(review, json!({"denied": true, "reason": "never"}))
        }
        "both" => review_response(review, json!({"allowed": true, "denied": true})),
        "failing" => Some((500, json!({}))),
        "garbage" => Some((200, "garbage".into())),
        name if name.starts_with("slow") => None,
        _ => review_response(review, json!({"allowed": false})),
    }
}

/// A client of the group `reviewed` with its own certificate, whose credential id the webhook receives.
fn client(plane: &ControlPlane, user: &str) -> Client {
    plane.certificate(user, &["reviewed"])
}

async fn nodes(client: &Client) -> u16 {
    client.get("/api/v1/nodes").await.status
}

/// Grants the group `reviewed` list and watch on nodes.
async fn grant(plane: &ControlPlane) {
    let rules = json!([{"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "watch"]}]);
    plane.grant("", "look", "Group/reviewed", &rules).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn authorization_webhook_decides_and_rbac_decides_no_opinion() {
    let service = WebhookServer::start(users).await;
    let config = service.config("decide", "certificate-authority: ca.crt");
    let options = Options { mode: "Webhook,RBAC".to_owned(), ..Options::kubernetes() }
        .flag(&format!("--authorization-webhook-config-file={}", config.display()))
        .flag("--metrics-address=127.0.0.1:0");
    let plane = ControlPlane::start(options).await;
    service.take();
    let allowed = client(&plane, "allowed");
    assert_eq!(nodes(&allowed).await, 200);
    let want = json!({
        "apiVersion": "authorization.k8s.io/v1beta1", "kind": "SubjectAccessReview", "metadata": {},
        "spec": {"user": "allowed", "group": ["reviewed", "system:authenticated"],
                 "resourceAttributes": {"verb": "list", "version": "v1", "resource": "nodes"}},
    });
    let [(path, mut review)] = <[_; 1]>::try_from(service.take()).expect("one review");
    assert!(review["spec"]["extra"].take().is_object() || review["spec"]["extra"].is_null());
    review["spec"].as_object_mut().expect("an object").remove("extra");
    assert_eq!((path.as_str(), review), ("/decide", want));
    for _ in 0..10 {
        assert_eq!(nodes(&allowed).await, 200);
    }
    assert_eq!(service.take().len(), 0, "cache hits send no review");
    let denied = plane.certificate("denied", &["reviewed"]).get("/api/v1/nodes").await;
    assert_eq!(denied.status, 403);
    assert!(
        denied.text().contains("never"),
        "the response contains the reason of the webhook: {}",
        denied.text()
    );
    // authd does not ask a webhook that has just failed whether the user may read the explanation of the
    // denial.
    let before =
        [("none", 403, (1, 1)), ("both", 403, (1, 0)), ("garbage", 403, (1, 0)), ("failing", 403, (5, 0))];
    for (user, want, received) in before {
        service.take();
        assert_eq!(nodes(&client(&plane, user)).await, want, "{user}");
        assert_eq!(reviews_of_request(&service), received, "{user}");
    }
    grant(&plane).await;
    for (user, want) in [("none", 200), ("both", 403), ("garbage", 200), ("failing", 200), ("denied", 403)] {
        assert_eq!(
            nodes(&client(&plane, user)).await,
            want,
            "{user}: RBAC decides after no opinion of the webhook"
        );
    }
    service.take();
    assert_eq!(plane.admin().get("/healthz").await.status, 200);
    assert_eq!(service.take().len(), 0, "the webhook receives no reviews of system:masters");
    assert_eq!(plane.certificate("allowed-path", &[]).get("/version/").await.status / 100, 2);
    let (_, review) = service.take().pop().expect("a review");
    assert_eq!(review["spec"]["nonResourceAttributes"], json!({"path": "/version/", "verb": "get"}));
    let metrics = plane.authd_get("/metrics").await;
    for line in [
        "apiserver_authorization_webhook_evaluations_total{name=\"default\",result=\"success\"}",
        "apiserver_authorization_webhook_evaluations_total{name=\"default\",result=\"error\"}",
        "apiserver_authorization_webhook_duration_seconds_count{name=\"default\",result=\"success\"}",
        "apiserver_authorization_webhook_evaluations_fail_open_total{name=\"default\",result=\"error\"}",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}

/// Takes the received reviews; returns how many concern the request itself, and how many the permission to read
/// the explanation of a denial.
fn reviews_of_request(service: &WebhookServer) -> (usize, usize) {
    let received = service.take();
    let (explanations, own): (Vec<_>, Vec<_>) = received.iter().partition(|(_, review)| {
        let attributes = &review["spec"]["resourceAttributes"];
        attributes["verb"] == "create" && attributes["resource"] == "subjectaccessreviews"
    });
    (own.len(), explanations.len())
}

/// The YAML of a webhook authorizer that only matches requests of one user.
fn authorizer(
    service: &WebhookServer,
    user: &str,
    name: &str,
    timeout: &str,
    policy: &str,
    conditions: &[&str],
) -> String {
    let config = service.config(name, "certificate-authority: ca.crt");
    let mut text = format!(
        "- type: Webhook\n  name: {name}\n  webhook:\n    timeout: {timeout}\n    subjectAccessReviewVersion: v1\n    \
         matchConditionSubjectAccessReviewVersion: v1\n    failurePolicy: {policy}\n    \
         connectionInfo: {{type: KubeConfigFile, kubeConfigFile: '{}'}}\n    matchConditions:\n    \
         - expression: \"request.user == '{user}'\"\n",
        config.display()
    );
    for condition in conditions {
        text.push_str(&format!("    - expression: \"{condition}\"\n"));
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn configured_webhooks_follow_match_conditions_and_failure_policy() {
    const FAILS: &str = "request.nonResourceAttributes.path == '/'";
    const FALSE: &str = "request.uid == 'other'";
    const TRUE: &str = "request.uid == ''";
    let service = WebhookServer::start(users).await;
    // User (selects the response); webhook name; timeout; failure policy; match conditions; status with RBAC
    // rules that allow; whether the webhook is called.
    let cases = [
        ("slow-refused", "slow-deny", "300ms", "Deny", vec![], 403, true),
        ("slow-left", "slow-open", "300ms", "NoOpinion", vec![], 200, true),
        ("garbage", "garbage-deny", "3s", "Deny", vec![], 403, true),
        ("failing", "failing-open", "3s", "NoOpinion", vec![], 200, true),
        ("denied-all", "all-true", "3s", "Deny", vec![TRUE], 403, true),
        ("denied-false", "one-false", "3s", "Deny", vec![TRUE, FALSE], 200, false),
        ("denied-error-deny", "error-deny", "3s", "Deny", vec![FAILS, TRUE], 403, false),
        ("denied-error-open", "error-open", "3s", "NoOpinion", vec![FAILS, TRUE], 200, false),
        ("denied-error-false", "error-false", "3s", "Deny", vec![FAILS, FALSE], 200, false),
        ("allowed-file", "allows", "30s", "Deny", vec![], 200, true),
    ];
    let mut text =
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n".to_owned();
    for (user, name, timeout, policy, conditions, ..) in &cases {
        text.push_str(&authorizer(&service, user, name, timeout, policy, conditions));
    }
    text.push_str("- {type: RBAC, name: rbac}\n");
    let file = service.dir.path().join("authorization.yaml");
    std::fs::write(&file, text).expect("the file");
    let options = Options { mode: String::new(), ..Options::kubernetes() }
        .flag(&format!("--authorization-config={}", file.display()))
        .flag("--metrics-address=127.0.0.1:0");
    let plane = ControlPlane::start(options).await;
    grant(&plane).await;
    for (user, name, _, _, _, want, received) in &cases {
        service.take();
        assert_eq!(nodes(&client(&plane, user)).await, *want, "{name}");
        let called = service.take().iter().any(|(path, _)| *path == format!("/{name}"));
        assert_eq!(called, *received, "{name}");
    }
    let metrics = plane.authd_get("/metrics").await;
    for line in [
        "apiserver_authorization_match_condition_exclusions_total{type=\"Webhook\",name=\"one-false\"}",
        "apiserver_authorization_match_condition_evaluation_errors_total{type=\"Webhook\",name=\"error-open\"} 1",
        "apiserver_authorization_match_condition_evaluation_seconds_count{type=\"Webhook\",name=\"all-true\"}",
        "apiserver_authorization_webhook_evaluations_total{name=\"slow-deny\",result=\"timeout\"}",
        "apiserver_authorization_webhook_evaluations_fail_open_total{name=\"failing-open\",result=\"error\"}",
        "apiserver_authorization_decisions_total{type=\"Webhook\",name=\"allows\",decision=\"allowed\"}",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
}
