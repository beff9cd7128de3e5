//! Authorization attributes of requests, as an authorization webhook receives them.
//!
//! Requirements A-AZD-9 to 22 and 49 to 51, A-REV-11, A-REV-20.

use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, Options};

use crate::e2e::webhooks::{WebhookResponse, WebhookServer, review_response};

/// Allows every user except `mallory`.
fn allow_all_but_mallory(_: &str, review: &Value) -> WebhookResponse {
    match review["spec"]["user"].as_str() {
        Some("mallory") => review_response(review, json!({"denied": true, "reason": "not you"})),
        _ => review_response(review, json!({"allowed": true})),
    }
}

async fn start(service: &WebhookServer) -> ControlPlane {
    let config = service.config("decide", "certificate-authority: ca.crt");
    let options = Options { mode: "Webhook".to_owned(), ..Options::kubernetes() }
        .flag(&format!("--authorization-webhook-config-file={}", config.display()))
        .flag("--authorization-webhook-version=v1");
    ControlPlane::start(options).await
}

/// The reviews of one user since the last call.
fn reviews_of(service: &WebhookServer, user: &str) -> Vec<Value> {
    let reviews = service.take().into_iter().map(|(_, review)| review["spec"].clone());
    reviews.filter(|spec| spec["user"] == user).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_receives_authorization_attributes_of_each_request() {
    let service = WebhookServer::start(allow_all_but_mallory).await;
    let plane = start(&service).await;
    let alice = plane.user("alice");
    alice.post("/api/v1/namespaces", &json!({"metadata": {"name": "a"}})).await.expect(201);
    let core = |more: Value| {
        let mut attributes = json!({"version": "v1"});
        attributes.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        json!({"resourceAttributes": attributes})
    };
    let path = |path: &str, verb: &str| json!({"nonResourceAttributes": {"path": path, "verb": verb}});
    let pod = |verb: &str| core(json!({"verb": verb, "resource": "pods", "namespace": "a", "name": "p"}));
    let pods = |verb: &str| core(json!({"verb": verb, "resource": "pods", "namespace": "a"}));
    let fields = json!({"requirements": [{"key": "spec.nodeName", "operator": "In", "values": ["n1"]}]});
    let labels = json!({"requirements": [{"key": "app", "operator": "NotIn", "values": ["x", "y"]}]});
    let mut selected = pods("list");
    selected["resourceAttributes"]["fieldSelector"] = fields;
    selected["resourceAttributes"]["labelSelector"] = labels;
    let mut named = pods("list");
    named["resourceAttributes"]["name"] = "p".into();
    named["resourceAttributes"]["fieldSelector"] =
        json!({"requirements": [{"key": "metadata.name", "operator": "In", "values": ["p"]}]});
    for (method, url, want) in [
        ("GET", "/api/v1/namespaces/a/pods/p", pod("get")),
        (
            "HEAD",
            "/api/v1/namespaces/a/pods/other",
            core(json!({"verb": "get", "resource": "pods", "namespace": "a", "name": "other"})),
        ),
        ("PUT", "/api/v1/namespaces/a/pods/p", pod("update")),
        ("PATCH", "/api/v1/namespaces/a/pods/p", pod("patch")),
        ("DELETE", "/api/v1/namespaces/a/pods/p", pod("delete")),
        ("GET", "/api/v1/namespaces/a/pods", pods("list")),
        ("GET", "/api/v1/namespaces/a/pods?watch=1&timeoutSeconds=1", pods("watch")),
        ("POST", "/api/v1/namespaces/a/pods", pods("create")),
        ("DELETE", "/api/v1/namespaces/a/pods", pods("deletecollection")),
        (
            "GET",
            "/api/v1/namespaces/a/pods/p/log",
            core(
                json!({"verb": "get", "resource": "pods", "subresource": "log", "namespace": "a", "name": "p"}),
            ),
        ),
        (
            "GET",
            "/api/v1/namespaces/a/pods?fieldSelector=spec.nodeName%3Dn1&labelSelector=app+notin+(x,y)",
            selected,
        ),
        ("GET", "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dp", named),
        (
            "GET",
            "/apis/apps/v1/namespaces/a/deployments",
            core(json!({"verb": "list", "group": "apps", "resource": "deployments", "namespace": "a"})),
        ),
        (
            "GET",
            "/api/v1/namespaces/a",
            core(json!({"verb": "get", "resource": "namespaces", "namespace": "a", "name": "a"})),
        ),
        ("GET", "/api/v1/namespaces", core(json!({"verb": "list", "resource": "namespaces"}))),
        ("GET", "/api/v1/nodes/n", core(json!({"verb": "get", "resource": "nodes", "name": "n"}))),
        ("GET", "/healthz/ping", path("/healthz/ping", "get")),
        ("GET", "/version", path("/version", "get")),
        ("GET", "/api", path("/api", "get")),
        ("GET", "/api/v1", path("/api/v1", "get")),
        ("GET", "/apis", path("/apis", "get")),
        ("GET", "/apis/apps", path("/apis/apps", "get")),
        ("POST", "/foo", path("/foo", "post")),
    ] {
        service.take();
        alice.request(method, url, &[], b"").await;
        let reviews = reviews_of(&service, "alice");
        let Some(first) = reviews.first() else {
            panic!("the webhook received no review for {method} {url}")
        };
        assert_eq!(first["groups"], json!(["team-a", "system:authenticated"]), "{method} {url}");
        for kind in ["resourceAttributes", "nonResourceAttributes"] {
            assert_eq!(first[kind], want[kind], "{method} {url}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn webhook_denial_is_reported_in_access_reviews() {
    let service = WebhookServer::start(allow_all_but_mallory).await;
    let plane = start(&service).await;
    let mallory = plane.certificate("mallory", &[]);
    let refused = mallory.get("/api/v1/nodes").await;
    assert_eq!(refused.status, 403);
    let reviews = plane.api("authorization", "v1");
    let review = async |client: &Client, review: &str, spec: Value| {
        client.post(&format!("{reviews}/{review}"), &json!({"spec": spec})).await.expect(201)["status"]
            .clone()
    };
    let nodes = json!({"verb": "list", "resource": "nodes"});
    let status = review(
        &plane.admin(),
        "subjectaccessreviews",
        json!({"user": "mallory", "resourceAttributes": nodes}),
    )
    .await;
    assert_eq!(status, json!({"allowed": false, "denied": true, "reason": "not you"}));
    let status =
        review(&plane.user("alice"), "selfsubjectaccessreviews", json!({"resourceAttributes": nodes})).await;
    assert_eq!((&status["allowed"], status.get("denied")), (&json!(true), None));
    let rules =
        review(&plane.user("alice"), "selfsubjectrulesreviews", json!({"namespace": "default"})).await;
    assert_eq!(rules["incomplete"], true, "the rules of a webhook cannot be listed: {rules}");
    assert!(rules["evaluationError"].as_str().is_some_and(|text| text.contains("webhook")), "{rules}");

    // The review of a service-account token carries the credential id of the token.
    let accounts = "/api/v1/namespaces/default/serviceaccounts/default";
    tests::harness::eventually("the default service account exists", || async {
        (plane.admin().get(accounts).await.status == 200).then_some(())
    })
    .await;
    let issued = plane.admin().post(&format!("{accounts}/token"), &json!({"spec": {}})).await.expect(201);
    service.take();
    plane.token(issued["status"]["token"].as_str().expect("a token")).get("/api/v1/nodes").await.expect(200);
    let reviews = reviews_of(&service, "system:serviceaccount:default:default");
    let extra = &reviews.first().expect("a review")["extra"];
    let id = extra["authentication.kubernetes.io/credential-id"][0].as_str().expect("an id");
    assert!(id.starts_with("JTI="), "{extra}");
}
