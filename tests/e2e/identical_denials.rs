//! Property: the 403 of a user who may not create SubjectAccessReviews does not depend on the policy.
//!
//! The rules and bindings of the policy change at random. Callers without the right to create SubjectAccessReviews send
//! the same requests after each change. Each denial equals the denial under the empty policy: status, headers and body.
//! `POLICIES` sets the number of policies (default 300), `SEED` repeats a run.

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options, Session, TestResponse, request_body};

use super::fresh_policy::{env_number, seed};

const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "patch", "delete", "*"];
const READ_VERBS: [&str; 3] = ["get", "list", "watch"];
const RESOURCES: [&str; 7] =
    ["pods", "pods/log", "configmaps", "deployments", "deployments/scale", "clusterroles", "*"];
const NAMES: [&str; 3] = ["web", "db", "other"];
const PATHS: [&str; 4] = ["/metrics", "/metrics/*", "/debug/*", "*"];
/// The users that bindings name: two users without review permission, and a reviewer whose denials are explained.
const SUBJECTS: [(&str, &str); 5] = [
    ("User", "alice"),
    ("Group", "system:authenticated"),
    ("Group", "system:unauthenticated"),
    ("User", "bob"),
    ("User", "nobody"),
];

/// A denial, without the response headers that differ between any two responses.
#[derive(Debug, PartialEq, Eq)]
struct Denial {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Denial {
    /// The denial in a response: a 403, or a review that denies access to the caller. None for any other response.
    fn from_response(response: &TestResponse) -> Option<Self> {
        let is_denial = match response.status {
            403 => true,
            201 => response.json()["status"]["allowed"] == false,
            _ => false,
        };
        let headers =
            response.headers.iter().filter(|(name, _)| !["audit-id", "date"].contains(&name.as_str()));
        is_denial.then(|| Denial {
            status: response.status,
            headers: headers.map(|(name, value)| (name.to_string(), format!("{value:?}"))).collect(),
            body: response.text(),
        })
    }
}

/// One request of a caller.
struct TestRequest {
    method: &'static str,
    path: String,
    body: Value,
}

/// Requests on named and unnamed resources, subresources, other users, own access and paths.
///
/// An allowed watch fails at once, because its resourceVersion is invalid.
fn requests(plane: &ControlPlane) -> Vec<TestRequest> {
    let mut list = Vec::new();
    for (method, path) in [
        ("GET", "/api/v1/namespaces/a/configmaps".to_owned()),
        ("GET", "/api/v1/namespaces/a/configmaps/web".to_owned()),
        ("GET", "/api/v1/namespaces/b/pods?watch=true&resourceVersion=invalid".to_owned()),
        ("GET", "/api/v1/pods".to_owned()),
        ("GET", "/api/v1/namespaces/a/pods/web/log".to_owned()),
        ("DELETE", "/apis/apps/v1/namespaces/a/deployments/web".to_owned()),
        ("GET", "/apis/apps/v1/namespaces/a/deployments/web/scale".to_owned()),
        ("GET", format!("{}/clusterroles/view", plane.api("rbac.authorization", "v1"))),
        ("GET", "/metrics".to_owned()),
        ("GET", "/debug/pprof".to_owned()),
    ] {
        list.push(TestRequest { method, path, body: Value::Null });
    }
    let attributes = json!({"verb": "delete", "group": "apps", "resource": "deployments", "namespace": "a", "name": "web"});
    let own = json!({"spec": {"resourceAttributes": attributes}});
    let other = json!({"spec": {"resourceAttributes": attributes, "user": "bob"}});
    let (authorization, explain) = (plane.api("authorization", "v1"), plane.api("explain", "v1alpha1"));
    for (path, body) in [
        ("/api/v1/namespaces/a/configmaps?dryRun=All".to_owned(), json!({"metadata": {"name": "web"}})),
        (format!("{authorization}/selfsubjectaccessreviews"), own),
        (format!("{authorization}/subjectaccessreviews"), other.clone()),
        (format!("{explain}/accessexplanations"), other),
        (format!("{explain}/tokenexplanations"), json!({"spec": {"token": "bob-token"}})),
    ] {
        list.push(TestRequest { method: "POST", path, body });
    }
    list
}

/// A caller with a connection, and the denial of each request under the empty policy.
struct Caller {
    session: Session,
    denials: Vec<Denial>,
}

impl Caller {
    async fn send(&mut self, request: &TestRequest) -> TestResponse {
        let body = request_body(&request.body);
        self.session.request(request.method, &request.path, &body).await.expect("a response")
    }

    /// Sends all requests `times` times, so that later responses come from cached decisions. Returns the
    /// numbers of requests and denials.
    async fn check(&mut self, requests: &[TestRequest], times: usize, policy: &str) -> [usize; 2] {
        let mut denials = 0;
        for (index, request) in (0..times).flat_map(|_| requests.iter().enumerate()) {
            let response = self.send(request).await;
            if let Some(denial) = Denial::from_response(&response) {
                assert_eq!(denial, self.denials[index], "{} {}: {policy}", request.method, request.path);
                denials += 1;
            }
        }
        [times * requests.len(), denials]
    }
}

fn choices(rng: &mut SmallRng, from: &[&'static str]) -> Vec<&'static str> {
    let count = rng.random_range(1..=2);
    from.choose_multiple(rng, count).copied().collect()
}

/// A random rule that does not grant the creation of SubjectAccessReviews.
fn random_rule(rng: &mut SmallRng, rbac: &str, is_cluster: bool) -> Value {
    if is_cluster && rng.random_bool(0.3) {
        return json!({"verbs": choices(rng, &VERBS), "nonResourceURLs": choices(rng, &PATHS)});
    }
    let (verbs, groups) = match rng.random_range(0..4) {
        0 => (choices(rng, &READ_VERBS), vec!["*"]),
        1 => (choices(rng, &VERBS), vec![""]),
        2 => (choices(rng, &VERBS), vec!["apps"]),
        _ => (choices(rng, &READ_VERBS), vec!["apps", rbac]),
    };
    let mut rule = json!({"verbs": verbs, "apiGroups": groups, "resources": choices(rng, &RESOURCES)});
    if rng.random_bool(0.4) {
        rule["resourceNames"] = json!(choices(rng, &NAMES));
    }
    rule
}

/// A random change of the policy: the path of an object and a merge patch.
fn random_change(rng: &mut SmallRng, plane: &ControlPlane) -> (String, Value) {
    let rbac = plane.names().group("rbac.authorization");
    let api = plane.api("rbac.authorization", "v1");
    let (folder, kind, is_cluster) = match rng.random_range(0..3) {
        0 => (format!("{api}/namespaces/a"), "role", false),
        1 => (format!("{api}/namespaces/b"), "role", false),
        _ => (api, "clusterrole", true),
    };
    let name = ["r0", "r1"].choose(rng).expect("a role");
    if rng.random_bool(0.6) {
        let rules: Vec<Value> =
            (0..rng.random_range(0..4)).map(|_| random_rule(rng, &rbac, is_cluster)).collect();
        return (format!("{folder}/{kind}s/{name}"), json!({"rules": rules}));
    }
    let count = rng.random_range(0..=3);
    let subjects: Vec<Value> = SUBJECTS
        .choose_multiple(rng, count)
        .map(|(kind, name)| json!({"apiGroup": rbac, "kind": kind, "name": name}))
        .collect();
    (format!("{folder}/{kind}bindings/{name}"), json!({"subjects": subjects}))
}

/// Creates roles without rules, and bindings without subjects.
async fn create_empty_policy(plane: &ControlPlane) {
    let (admin, api) = (plane.admin(), plane.api("rbac.authorization", "v1"));
    let group = plane.names().group("rbac.authorization");
    for namespace in ["a", "b"] {
        admin.post("/api/v1/namespaces", &json!({"metadata": {"name": namespace}})).await.expect(201);
    }
    for (folder, kind) in [
        (format!("{api}/namespaces/a"), "Role"),
        (format!("{api}/namespaces/b"), "Role"),
        (api.clone(), "ClusterRole"),
    ] {
        let collection = format!("{folder}/{}s", kind.to_lowercase());
        let bindings = format!("{folder}/{}bindings", kind.to_lowercase());
        for name in ["r0", "r1"] {
            let role = json!({"metadata": {"name": name}, "rules": []});
            admin.post(&collection, &role).await.expect(201);
            let binding = json!({"metadata": {"name": name}, "subjects": [],
                "roleRef": {"apiGroup": group, "kind": kind, "name": name}});
            admin.post(&bindings, &binding).await.expect(201);
        }
    }
    let reviewer = json!({"metadata": {"name": "reviewer"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": "bob"}],
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "system:auth-delegator"}});
    admin.post(&format!("{api}/clusterrolebindings"), &reviewer).await.expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn forbidden_response_is_independent_of_policy() {
    let (seed, policies) = (seed(), env_number("POLICIES", 300));
    println!("POLICIES={policies}");
    let mut rng = SmallRng::seed_from_u64(seed);
    let plane = ControlPlane::start(Options::default()).await;
    create_empty_policy(&plane).await;
    let requests = requests(&plane);
    let mut callers = Vec::new();
    for client in [plane.user("alice"), plane.anonymous()] {
        let session = client.connect().await.expect("a connection");
        let mut caller = Caller { session, denials: Vec::new() };
        for request in &requests {
            let response = caller.send(request).await;
            let denial = Denial::from_response(&response)
                .unwrap_or_else(|| panic!("{}: {}", request.path, response.text()));
            assert!(!denial.body.contains("nearest"), "{denial:?}");
            caller.denials.push(denial);
        }
        callers.push(caller);
    }
    let mut reviewer = plane.user("bob").connect().await.expect("a connection");
    let mut admin = plane.admin().connect().await.expect("a connection");
    let [alice, anonymous] = callers.as_mut_slice() else { unreachable!("two callers") };
    let (mut sent, mut denials, mut explained) = (0, 0, 0);
    for number in 0..policies {
        let (path, patch) = random_change(&mut rng, &plane);
        let changed = admin.merge(&path, patch.to_string().as_bytes()).await.expect("a response");
        changed.expect(200);
        let policy = format!("seed {seed}, policy {number}: {path} {patch}");
        let times = if number % 8 == 0 { 2 } else { 1 };
        let (of_alice, of_anonymous, of_reviewer) = tokio::join!(
            alice.check(&requests, times, &policy),
            anonymous.check(&requests, times, &policy),
            reviewer.request("DELETE", "/apis/apps/v1/namespaces/a/deployments/web", b""),
        );
        sent += of_alice[0] + of_anonymous[0];
        denials += of_alice[1] + of_anonymous[1];
        explained += usize::from(of_reviewer.expect("a response").headers.contains_key("warning"));
    }
    println!("{sent} requests, {denials} denials, {explained} denials of the reviewer with an explanation");
    assert!(denials < sent, "seed {seed}: no policy allowed a request");
    assert!(explained > 0, "seed {seed}: no policy had a near miss");
}
