//! Several apids on one etcd: reads, writes, policy and identities of one server hold for the next request to another.
//!
//! Each trial writes through one server and at once asks another. `ROUNDS` sets the number of trials of the loops about
//! policy (default 100).

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::harness::{Cluster, Options, Session, TestResponse, eventually, request_body};

use super::fresh_policy::env_number;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

fn rounds() -> u64 {
    env_number("ROUNDS", 100)
}

/// A connection that expects codes.
struct Connection(Session);

impl Connection {
    async fn send(&mut self, method: &str, path: &str, body: &Value) -> TestResponse {
        self.0.request(method, path, &request_body(body)).await.expect("a response")
    }

    async fn expect(&mut self, status: u16, method: &str, path: &str, body: &Value) -> Value {
        let response = self.send(method, path, body).await;
        assert_eq!(response.status, status, "{method} {path}: {}", response.text());
        response.json()
    }

    async fn get(&mut self, status: u16, path: &str) -> Value {
        self.expect(status, "GET", path, &Value::Null).await
    }

    async fn delete(&mut self, status: u16, path: &str) -> Value {
        self.expect(status, "DELETE", path, &Value::Null).await
    }
}

/// A connection to a server as a user of the token file.
async fn connect(cluster: &Cluster, server: usize, user: &str) -> Connection {
    Connection(cluster.server(server).user(user).connect().await.expect("a connection"))
}

fn map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"key": value}})
}

fn version(object: &Value) -> String {
    object["metadata"]["resourceVersion"].as_str().expect("a version").to_owned()
}

/// The role `reader` of ConfigMaps, and its binding to alice.
fn role_and_binding() -> (Value, Value) {
    let rules = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list", "watch"]}]);
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": {"name": "reader"}, "subjects": [{"kind": "User", "apiGroup": group, "name": "alice"}],
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "reader"},
    });
    (json!({"metadata": {"name": "reader"}, "rules": rules}), binding)
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_written_by_one_server_are_read_and_changed_by_another_at_once() {
    let Some(cluster) = Cluster::start(2, 1).await else { return };
    let mut servers = [connect(&cluster, 0, "admin").await, connect(&cluster, 1, "admin").await];
    let one = format!("{MAPS}/one");
    for round in 0..rounds() {
        servers.swap(0, 1);
        let [first, second] = &mut servers;
        let created = version(&first.expect(201, "POST", MAPS, &map("one", "1")).await);
        assert_eq!(version(&second.get(200, &one).await), created, "round {round}");
        second.expect(409, "POST", &format!("{MAPS}?dryRun=All"), &map("one", "2")).await;

        let mut next = map("one", "2");
        next["metadata"]["resourceVersion"] = json!(created);
        let updated = version(&second.expect(200, "PUT", &one, &next).await);
        first.expect(409, "PUT", &one, &next).await;
        let patch = json!({"metadata": {"resourceVersion": updated}, "data": {"key": "3"}}).to_string();
        let patched = first.0.merge(&one, patch.as_bytes()).await.expect("a response").expect(200);
        let list = second.get(200, &format!("{MAPS}?fieldSelector=metadata.name=one")).await;
        assert_eq!(list["items"][0]["data"]["key"], "3", "round {round}");
        let exact = format!("{MAPS}?resourceVersionMatch=Exact&resourceVersion={}", version(&patched));
        second.get(200, &exact).await;

        let stale = json!({"preconditions": {"resourceVersion": updated}});
        second.expect(409, "DELETE", &one, &stale).await;
        let newest = json!({"preconditions": {"resourceVersion": version(&patched)}});
        second.expect(200, "DELETE", &one, &newest).await;
        first.get(404, &one).await;
        first.expect(404, "PUT", &format!("{one}?dryRun=All"), &next).await;
        second.expect(201, "POST", MAPS, &map("one", "4")).await;
        first.delete(200, &one).await;
        second.delete(404, &one).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn list_of_one_server_is_continued_by_another() {
    let Some(cluster) = Cluster::start(2, 1).await else { return };
    let mut servers = [connect(&cluster, 0, "admin").await, connect(&cluster, 1, "admin").await];
    for round in 0..50 {
        servers.swap(0, 1);
        let [first, second] = &mut servers;
        let name = |index: usize| format!("page-{round}-{index}");
        for index in 0..3 {
            let mut object = map(&name(index), "x");
            object["metadata"]["labels"] = json!({"round": round.to_string()});
            first.expect(201, "POST", MAPS, &object).await;
        }
        let list = format!("{MAPS}?labelSelector=round={round}&limit=1");
        let (mut path, mut found) = (list.clone(), Vec::new());
        loop {
            let page = second.get(200, &path).await;
            found.extend(
                page["items"].as_array().expect("items").iter().map(|item| item["metadata"]["name"].clone()),
            );
            let Some(token) = page["metadata"]["continue"].as_str() else { break };
            path = format!("{list}&continue={token}");
            // The list has a revision that the next server may not have seen yet.
            std::mem::swap(first, second);
        }
        assert_eq!(found, [name(0), name(1), name(2)], "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn revoked_binding_is_denied_by_the_next_request_to_another_server() {
    let Some(cluster) = Cluster::start(2, 1).await else { return };
    let mut admin = connect(&cluster, 0, "admin").await;
    let mut alice = connect(&cluster, 1, "alice").await;
    let (role, binding) = role_and_binding();
    admin.expect(201, "POST", &format!("{RBAC}/roles"), &role).await;
    let access = json!({"spec": {"user": "alice", "resourceAttributes": {
        "namespace": "default", "verb": "list", "resource": "configmaps"}}});
    let reviews = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let mut reviewer = connect(&cluster, 1, "admin").await;
    for round in 0..rounds() {
        admin.expect(201, "POST", &format!("{RBAC}/rolebindings"), &binding).await;
        alice.get(200, MAPS).await;
        let review = reviewer.expect(201, "POST", reviews, &access).await;
        assert_eq!(review["status"]["allowed"], true, "round {round}");
        admin.delete(200, &format!("{RBAC}/rolebindings/reader")).await;
        if round % 2 == 0 {
            alice.get(403, MAPS).await;
        } else {
            let review = reviewer.expect(201, "POST", reviews, &access).await;
            assert_eq!(review["status"]["allowed"], false, "round {round}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watch_of_another_server_delivers_no_event_after_the_revocation() {
    let Some(cluster) = Cluster::start(2, 1).await else { return };
    let mut admin = connect(&cluster, 0, "admin").await;
    let (role, binding) = role_and_binding();
    admin.expect(201, "POST", &format!("{RBAC}/roles"), &role).await;
    for round in 0..20 {
        admin.expect(201, "POST", &format!("{RBAC}/rolebindings"), &binding).await;
        let watched = format!("{MAPS}?watch=1&labelSelector=round={round}");
        let mut watch = cluster.server(1).user("alice").watch(&watched).await;
        let labelled = |name: &str| json!({"metadata": {"name": format!("{name}-{round}"), "labels": {"round": round.to_string()}}});
        admin.expect(201, "POST", MAPS, &labelled("before")).await;
        let event = watch.next().await.expect("an event of the other server");
        assert_eq!(event["object"]["metadata"]["name"], format!("before-{round}"));
        admin.delete(200, &format!("{RBAC}/rolebindings/reader")).await;
        admin.expect(201, "POST", MAPS, &labelled("after")).await;
        let rest = async {
            while let Some(event) = watch.next().await {
                assert_eq!(event["type"], "ERROR", "round {round}: {event}");
            }
        };
        tokio::time::timeout(Duration::from_secs(20), rest).await.expect("the watch ends");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_service_account_is_rejected_by_the_next_request_to_another_server() {
    let Some(cluster) = Cluster::start(2, 1).await else { return };
    let mut admin = connect(&cluster, 0, "admin").await;
    for round in 0..rounds() / 4 {
        admin.expect(201, "POST", ACCOUNTS, &json!({"metadata": {"name": "robot"}})).await;
        let token = admin.expect(201, "POST", &format!("{ACCOUNTS}/robot/token"), &json!({"spec": {}})).await;
        let token = token["status"]["token"].as_str().expect("a token");
        let client = cluster.server(1).token(token);
        let mut robot = Connection(client.connect().await.expect("a connection"));
        robot.get(403, MAPS).await;
        admin.delete(200, &format!("{ACCOUNTS}/robot")).await;
        let response = robot.send("GET", MAPS, &Value::Null).await;
        assert_eq!(response.status, 401, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn admission_configuration_holds_for_the_next_write_at_another_server() {
    let Some(cluster) = Cluster::start(2, 1).await else { return };
    let mut admin = connect(&cluster, 0, "admin").await;
    let mut other = connect(&cluster, 1, "admin").await;
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]});
    // No server listens at this port, so that the webhook rejects each create.
    let webhook = json!({"metadata": {"name": "reject"}, "webhooks": [{
        "name": "reject.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
        "clientConfig": {"url": "https://127.0.0.1:1/"}, "rules": [rule],
    }]});
    let policy = json!({"metadata": {"name": "reject"}, "spec": {
        "matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "false"}]}});
    let binding = json!({"metadata": {"name": "reject"}, "spec": {"policyName": "reject", "validationActions": ["Deny"]}});
    admin.expect(201, "POST", &format!("{ADMISSION}/validatingadmissionpolicies"), &policy).await;
    let mut name = 0;
    for (resource, object, code) in [
        ("validatingwebhookconfigurations", &webhook, 500),
        ("validatingadmissionpolicybindings", &binding, 422),
    ] {
        for round in 0..rounds() / 4 {
            name += 2;
            admin.expect(201, "POST", &format!("{ADMISSION}/{resource}"), object).await;
            let rejected = other.send("POST", MAPS, &map(&format!("rejected-{name}"), "x")).await;
            assert_eq!(rejected.status, code, "{resource} {round}: {}", rejected.text());
            admin.delete(200, &format!("{ADMISSION}/{resource}/reject")).await;
            other.expect(201, "POST", MAPS, &map(&format!("accepted-{name}"), "x")).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_and_definitions_of_one_server_hold_at_another() {
    let Some(cluster) = Cluster::start(2, 1).await else { return };
    let mut servers = [connect(&cluster, 0, "admin").await, connect(&cluster, 1, "admin").await];
    for round in 0..20 {
        servers.swap(0, 1);
        let [first, second] = &mut servers;
        let name = format!("space-{round}");
        first.expect(201, "POST", "/api/v1/namespaces", &json!({"metadata": {"name": name}})).await;
        let maps = format!("/api/v1/namespaces/{name}/configmaps");
        second.expect(201, "POST", &maps, &map("one", "x")).await;
        first.delete(200, &format!("/api/v1/namespaces/{name}")).await;
        let rejected = second.send("POST", &maps, &map("two", "x")).await;
        assert!([403, 404].contains(&rejected.status), "round {round}: {}", rejected.text());

        let kind = format!("Thing{round}");
        let plural = format!("thing{round}s");
        let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        let definition = json!({
            "metadata": {"name": format!("{plural}.example.com")},
            "spec": {"group": "example.com", "scope": "Cluster", "names": {"kind": kind, "plural": plural},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]},
        });
        first.expect(201, "POST", DEFINITIONS, &definition).await;
        let definer = cluster.server(usize::from(round % 2 == 0)).admin();
        definer.wait_until_established(&format!("{DEFINITIONS}/{plural}.example.com")).await;
        let thing = json!({"apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": "one"}});
        second.expect(201, "POST", &format!("/apis/example.com/v1/{plural}"), &thing).await;
        let resources = second.get(200, "/apis/example.com/v1").await;
        let is_listed = |one: &Value| one["name"] == plural.as_str();
        assert!(resources["resources"].as_array().expect("resources").iter().any(is_listed), "{resources}");
    }
}

/// Sends a request to server 1 after a write through server 0, while etcd cannot reach server 1. Then etcd reaches it again.
async fn request_behind<T>(
    cluster: &Cluster,
    write: impl Future<Output = T>,
    request: impl AsyncFnOnce(T) -> TestResponse,
) -> TestResponse {
    cluster.cut(1, 0);
    let written = write.await;
    let heal = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        cluster.heal();
    };
    tokio::join!(request(written), heal).0
}

#[tokio::test(flavor = "multi_thread")]
async fn request_to_a_server_that_is_behind_waits_for_the_writes_before_it() {
    let Some(cluster) = Cluster::start_with_network(Options::kubernetes(), 2, 1).await else { return };
    let mut first = connect(&cluster, 0, "admin").await;
    let mut second = connect(&cluster, 1, "admin").await;
    let mut alice = connect(&cluster, 1, "alice").await;
    let none = Value::Null;
    let one = format!("{MAPS}/one");

    let write = async { version(&first.expect(201, "POST", MAPS, &map("one", "1")).await) };
    let update = async |created| {
        let mut next = map("one", "2");
        next["metadata"]["resourceVersion"] = json!(created);
        second.send("PUT", &one, &next).await
    };
    request_behind(&cluster, write, update).await.expect(200);
    let write = async {
        first.expect(201, "POST", MAPS, &map("two", "1")).await;
        let page = first.get(200, &format!("{MAPS}?limit=1")).await;
        page["metadata"]["continue"].as_str().expect("a token").to_owned()
    };
    let next_page =
        async |token| second.send("GET", &format!("{MAPS}?limit=1&continue={token}"), &none).await;
    request_behind(&cluster, write, next_page).await.expect(200);
    let read = async |_| second.send("GET", &one, &none).await;
    request_behind(&cluster, first.delete(200, &one), read).await.expect(404);

    let (role, binding) = role_and_binding();
    let bindings = format!("{RBAC}/rolebindings");
    first.expect(201, "POST", &format!("{RBAC}/roles"), &role).await;
    let grant = first.expect(201, "POST", &bindings, &binding);
    request_behind(&cluster, grant, async |_| alice.send("GET", MAPS, &none).await).await.expect(200);
    let reader = format!("{bindings}/reader");
    let revocation = first.delete(200, &reader);
    request_behind(&cluster, revocation, async |_| alice.send("GET", MAPS, &none).await).await.expect(403);

    first.expect(201, "POST", ACCOUNTS, &json!({"metadata": {"name": "robot"}})).await;
    let token = first.expect(201, "POST", &format!("{ACCOUNTS}/robot/token"), &json!({"spec": {}})).await;
    let client = cluster.server(1).token(token["status"]["token"].as_str().expect("a token"));
    let mut robot = Connection(client.connect().await.expect("a connection"));
    robot.get(403, MAPS).await;
    let account = format!("{ACCOUNTS}/robot");
    let deletion = first.delete(200, &account);
    request_behind(&cluster, deletion, async |_| robot.send("GET", MAPS, &none).await).await.expect(401);

    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]});
    let policy = json!({"metadata": {"name": "reject"}, "spec": {
        "matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "false"}]}});
    let binding = json!({"metadata": {"name": "reject"}, "spec": {"policyName": "reject", "validationActions": ["Deny"]}});
    first.expect(201, "POST", &format!("{ADMISSION}/validatingadmissionpolicies"), &policy).await;
    let bindings = format!("{ADMISSION}/validatingadmissionpolicybindings");
    let write = first.expect(201, "POST", &bindings, &binding);
    let create = async |_| second.send("POST", MAPS, &map("three", "1")).await;
    request_behind(&cluster, write, create).await.expect(422);
    let reject = format!("{bindings}/reject");
    let write = first.delete(200, &reject);
    let create = async |_| second.send("POST", MAPS, &map("three", "1")).await;
    request_behind(&cluster, write, create).await.expect(201);

    first.expect(201, "POST", "/api/v1/namespaces", &json!({"metadata": {"name": "space"}})).await;
    let write = first.delete(200, "/api/v1/namespaces/space");
    let create =
        async |_| second.send("POST", "/api/v1/namespaces/space/configmaps", &map("late", "1")).await;
    let rejected = request_behind(&cluster, write, create).await;
    assert!([403, 404].contains(&rejected.status), "{}", rejected.text());
}

/// The `policy-age` line of `/readyz`.
async fn policy_age_line(cluster: &Cluster, server: usize) -> String {
    let text = cluster.server(server).anonymous().get("/readyz?verbose").await.text();
    text.lines().find(|line| line.contains("policy-age")).unwrap_or(&text).to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn server_without_connection_to_etcd_decides_nothing() {
    let Some(cluster) = Cluster::start_with_network(Options::kubernetes(), 2, 1).await else { return };
    let mut admin = connect(&cluster, 0, "admin").await;
    let (role, binding) = role_and_binding();
    admin.expect(201, "POST", &format!("{RBAC}/roles"), &role).await;
    admin.expect(201, "POST", &format!("{RBAC}/rolebindings"), &binding).await;
    let mut alice = connect(&cluster, 1, "alice").await;
    alice.get(200, MAPS).await;
    assert_eq!(policy_age_line(&cluster, 1).await, "[+]policy-age ok");

    cluster.cut(1, 0);
    admin.delete(200, &format!("{RBAC}/rolebindings/reader")).await;
    let begin = Instant::now();
    for path in [MAPS, &format!("{MAPS}?resourceVersion=0"), "/version"] {
        let rejected = alice.get(503, path).await;
        let message = rejected["message"].as_str().expect("a message");
        assert!(message.contains("no request is decided") && !message.contains("127.0.0.1"), "{message}");
    }
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    cluster.server(1).anonymous().get("/livez?exclude=etcd").await.expect(200);
    eventually("the server is not ready", || async {
        policy_age_line(&cluster, 1).await.starts_with("[-]policy-age failed").then_some(())
    })
    .await;

    cluster.heal();
    eventually("the server decides again", || async {
        let status = cluster.server(1).user("alice").get(MAPS).await.status;
        assert_ne!(status, 200, "the binding is revoked");
        (status == 403).then_some(())
    })
    .await;
    let metrics = cluster.server(1).admin().get("/metrics").await.text();
    for series in ["apid_policy_age_seconds ", "apid_newest_revision_waits_total "] {
        assert!(metrics.contains(&format!("\n{series}")), "{series}");
    }
    let errors =
        "apid_newest_revision_read_duration_seconds_count{result=\"error\",storage_cluster_id=\"store\"} ";
    assert!(metrics.contains(errors), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bounded_policy_serves_for_its_age_only() {
    let options = Options::kubernetes().flag("--policy-consistency=bounded");
    let Some(cluster) = Cluster::start_with_network(options, 2, 1).await else { return };
    let mut admin = connect(&cluster, 0, "admin").await;
    let (role, binding) = role_and_binding();
    admin.expect(201, "POST", &format!("{RBAC}/roles"), &role).await;
    admin.expect(201, "POST", &format!("{RBAC}/rolebindings"), &binding).await;
    let any_state = format!("{MAPS}?resourceVersion=0");
    let mut alice = connect(&cluster, 1, "alice").await;
    alice.get(200, MAPS).await;
    for name in 0..rounds() {
        let created = admin.expect(201, "POST", MAPS, &map(&format!("bounded-{name}"), "x")).await;
        let found = alice.get(200, &format!("{MAPS}/bounded-{name}")).await;
        assert_eq!(version(&found), version(&created));
    }

    cluster.cut(1, 0);
    let begin = Instant::now();
    alice.get(200, &any_state).await;
    admin.delete(200, &format!("{RBAC}/rolebindings/reader")).await;
    loop {
        let sent = begin.elapsed();
        let answer = alice.send("GET", &any_state, &Value::Null).await;
        if answer.status == 503 {
            break;
        }
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(sent < Duration::from_secs(11), "a decision on policy of {sent:?} before");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(policy_age_line(&cluster, 1).await.starts_with("[-]policy-age failed"));
    cluster.heal();
    eventually("the server decides again", || async {
        let status = cluster.server(1).user("alice").get(&any_state).await.status;
        assert_ne!(status, 200, "the binding is revoked");
        (status == 403).then_some(())
    })
    .await;
}
