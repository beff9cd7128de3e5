//! Flow control from outside: the schema of each request, seats, queues, rejections, and what people can see of them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, Options, eventually};

/// Caller, impersonated user and groups, request, and the schema and level of kube-apiserver.
const CLASSIFICATION: &str = include_str!("flow_control/classification.csv");

const SCHEMA_UID: &str = "x-kubernetes-pf-flowschema-uid";
const LEVEL_UID: &str = "x-kubernetes-pf-prioritylevel-uid";

/// Returns the names of the objects of a collection by uid.
async fn names_by_uid(plane: &ControlPlane, resource: &str) -> std::collections::HashMap<String, String> {
    let path = format!("{}/{resource}", plane.api("flowcontrol.apiserver", "v1"));
    let list = plane.admin().get(&path).await.expect(200);
    let text = |item: &Value, field: &str| item["metadata"][field].as_str().unwrap_or_default().to_owned();
    let items = list["items"].as_array().expect("items");
    items.iter().map(|item| (text(item, "uid"), text(item, "name"))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_have_flow_schemas_of_kube_apiserver() {
    let plane = ControlPlane::start(Options::kubernetes()).await;
    let schemas = names_by_uid(&plane, "flowschemas").await;
    let levels = names_by_uid(&plane, "prioritylevelconfigurations").await;
    for row in CLASSIFICATION.lines().skip(1) {
        let [caller, user, groups, method, path, schema, level] =
            row.split(',').collect::<Vec<_>>().try_into().expect("seven cells");
        let client = match caller {
            "anonymous" => plane.anonymous(),
            "system:node:node1" => plane.certificate(caller, &["system:nodes"]),
            user => plane.user(user),
        };
        let mut headers: Vec<(&str, &str)> = Vec::new();
        if !user.is_empty() {
            headers.push(("impersonate-user", user));
            headers.extend(
                groups.split('|').filter(|g| !g.is_empty()).map(|group| ("impersonate-group", group)),
            );
        }
        let answer = client.request(method, path, &headers, b"").await;
        let name = |names: &std::collections::HashMap<String, String>, header: &str| {
            names.get(answer.header(header)).cloned().unwrap_or_default()
        };
        assert_eq!(
            (name(&schemas, SCHEMA_UID).as_str(), name(&levels, LEVEL_UID).as_str()),
            (schema, level),
            "{row}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_have_neutral_names_under_the_svc_preset() {
    let plane = ControlPlane::start(Options::default()).await;
    let schemas = names_by_uid(&plane, "flowschemas").await;
    let answer = plane.user("alice").get("/version").await;
    assert_eq!(schemas.get(answer.header("x-pf-flowschema-uid")).map(String::as_str), Some("global-default"));
    assert!(answer.header(SCHEMA_UID).is_empty());
}

/// The ConfigMaps of a namespace.
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// A list that holds its seat for three seconds: it waits for a version that never comes.
const SLOW_LIST: &str = "/api/v1/namespaces/default/configmaps?resourceVersion=99999999999";
/// Body of the response to a rejected request.
const REJECTED: &str = "Too many requests, please try again later.\n";

/// Creates a level `t` and sends all requests of bob for ConfigMaps there. Bob may edit.
async fn limit_bob(plane: &ControlPlane, limited: Value) {
    let admin = plane.admin();
    let api = plane.api("flowcontrol.apiserver", "v1");
    let level = json!({"metadata": {"name": "t"}, "spec": {"type": "Limited", "limited": limited}});
    admin.post(&format!("{api}/prioritylevelconfigurations"), &level).await.expect(201);
    let schema = json!({"metadata": {"name": "t"}, "spec": {
        "priorityLevelConfiguration": {"name": "t"}, "matchingPrecedence": 50,
        "distinguisherMethod": {"type": "ByUser"},
        "rules": [{
            "subjects": [{"kind": "User", "user": {"name": "bob"}}],
            "resourceRules": [{"verbs": ["*"], "apiGroups": [""], "resources": ["configmaps"], "namespaces": ["*"]}],
        }],
    }});
    admin.post(&format!("{api}/flowschemas"), &schema).await.expect(201);
    plane.bind("", "bob", "ClusterRole/edit", "User/bob").await;
    let uid = |resource: &'static str| async move {
        let names = names_by_uid(plane, resource).await;
        names.into_iter().find_map(|(uid, name)| (name == "t").then_some(uid)).expect("the object t")
    };
    let (schema_uid, header) = (uid("flowschemas").await, plane.names().flow_control_headers().0);
    eventually("the schema of bob is in force", || async {
        let answer = plane.user("bob").get(&format!("{MAPS}?watch=true&timeoutSeconds=1")).await;
        (answer.header(header) == schema_uid).then_some(())
    })
    .await;
}

/// A level that borrows no seats and has one queue.
fn level_with_queue(shares: u32, length: u32) -> Value {
    let queuing = json!({"queues": 1, "handSize": 1, "queueLengthLimit": length});
    json!({
        "nominalConcurrencyShares": shares, "borrowingLimitPercent": 0,
        "limitResponse": {"type": "Queue", "queuing": queuing},
    })
}

fn binding_path(plane: &ControlPlane) -> String {
    format!("{}/clusterrolebindings", plane.api("rbac.authorization", "v1"))
}

fn spawn_get(client: &Client, path: &'static str) -> tokio::task::JoinHandle<(u16, String, Duration)> {
    let client = client.clone();
    tokio::spawn(async move {
        let begun = Instant::now();
        let answer = client.get(path).await;
        (answer.status, answer.text(), begun.elapsed())
    })
}

/// Waits until a level has as many requests that run and wait.
async fn wait_for_load(plane: &ControlPlane, running: usize, waiting: usize) {
    eventually("the level has its requests", || async {
        let dump = plane.admin().get("/debug/api_priority_and_fairness/dump_priority_levels").await.text();
        let row = dump.lines().find(|line| line.starts_with("t,"))?.to_owned();
        let cells: Vec<&str> = row.split(',').map(str::trim).collect();
        (cells[4..6] == [waiting.to_string(), running.to_string()]).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn request_above_limit_of_its_level_gets_429() {
    let plane = ControlPlane::start(Options::default()).await;
    let level = json!({
        "nominalConcurrencyShares": 0, "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"},
    });
    limit_bob(&plane, level).await;
    let bob = plane.user("bob");
    let slow = spawn_get(&bob, SLOW_LIST);
    wait_for_load(&plane, 1, 0).await;
    let rejected = bob.get(MAPS).await;
    assert_eq!((rejected.status, rejected.text().as_str()), (429, REJECTED));
    assert_eq!(rejected.header("retry-after"), "1");
    assert_eq!(rejected.header("content-type"), "text/plain; charset=utf-8");
    plane.admin().get(MAPS).await.expect(200);
    assert_eq!(slow.await.unwrap().0, 504);
    bob.get(MAPS).await.expect(200);
    let metrics = plane.admin().get("/metrics").await.text();
    let rejections = r#"apiserver_flowcontrol_rejected_requests_total{flow_schema="t",priority_level="t",reason="concurrency-limit"} 1"#;
    assert!(metrics.contains(rejections), "{metrics}");
    let log = plane.log();
    let line = log.lines().find(|line| line.contains("priority level rejects requests")).expect("a log line");
    assert!(line.contains("priority_level=\"t\"") && line.contains("busiest_user=\"bob\""), "{line}");
}

#[tokio::test(flavor = "multi_thread")]
async fn request_waits_a_quarter_of_its_timeout_in_the_queue() {
    let plane = ControlPlane::start(Options::default()).await;
    limit_bob(&plane, level_with_queue(0, 1)).await;
    let bob = plane.user("bob");
    let waiting = spawn_get(&bob, "/api/v1/namespaces/default/configmaps?timeout=8s");
    wait_for_load(&plane, 0, 1).await;
    let rejected = bob.get(MAPS).await;
    assert_eq!((rejected.status, rejected.text().as_str()), (429, REJECTED), "the queue is full");
    let dump =
        plane.admin().get("/debug/api_priority_and_fairness/dump_requests?includeRequestDetails=1").await;
    let row = dump.text().lines().find(|line| line.starts_with("t,")).expect("bob's request").to_owned();
    assert!(row.contains("bob,") && row.contains("list,") && row.contains("configmaps,"), "{row}");
    let queues = plane.admin().get("/debug/api_priority_and_fairness/dump_queues").await.text();
    assert!(queues.lines().any(|line| line.starts_with("t,")), "{queues}");
    plane.user("alice").get("/debug/api_priority_and_fairness/dump_queues").await.expect(403);
    let (status, text, time) = waiting.await.unwrap();
    assert_eq!((status, text.as_str()), (429, REJECTED));
    assert!((Duration::from_secs(2)..Duration::from_secs(5)).contains(&time), "{time:?}");
}

/// A request that waited was authorized before it waited; it must not run after its permission was revoked.
#[tokio::test(flavor = "multi_thread")]
async fn permission_revoked_while_a_request_waits_ends_it() {
    let plane = ControlPlane::start(Options::default()).await;
    limit_bob(&plane, level_with_queue(1, 9)).await;
    let bob = plane.user("bob");
    bob.get(MAPS).await.expect(200);
    let slow: Vec<_> = (0..3).map(|_| spawn_get(&bob, SLOW_LIST)).collect();
    wait_for_load(&plane, 3, 0).await;
    let waiting = [spawn_get(&bob, MAPS), spawn_get(&bob, "/api/v1/namespaces/default/configmaps/x")];
    wait_for_load(&plane, 3, 2).await;
    plane.admin().delete(&format!("{}/bob", binding_path(&plane))).await.expect(200);
    for request in waiting {
        let (status, text, time) = request.await.unwrap();
        assert_eq!(status, 403, "{text}");
        assert!(time > Duration::from_secs(1), "it waited: {time:?}");
    }
    for request in slow {
        request.await.unwrap();
    }
}

/// A heavy request waits for a slot of its flow: without a seat, and it is authorized again afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn heavy_request_that_waits_for_a_slot_takes_no_seat_and_is_authorized_again() {
    // A large object that is not sent as it is stored; the first request waits for a version that never comes.
    const SLOW_HEAVY_GET: &str =
        "/api/v1/namespaces/default/configmaps/large?pretty=true&resourceVersion=99999999999";
    const HEAVY_GET: &str = "/api/v1/namespaces/default/configmaps/large?pretty=true";
    let plane = ControlPlane::start(Options::default()).await;
    let level = json!({
        "nominalConcurrencyShares": 3, "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"},
    });
    limit_bob(&plane, level).await;
    let bob = plane.user("bob");
    let large = json!({"metadata": {"name": "large"}, "data": {"text": "x".repeat(100_000)}});
    bob.post(MAPS, &large).await.expect(201);
    // A flow has four slots; the level has eight seats. A waiting request gives its slot back while authd decides again, so
    // that all eight requests can have a seat at the end.
    let slow: Vec<_> = (0..4).map(|_| spawn_get(&bob, SLOW_HEAVY_GET)).collect();
    wait_for_load(&plane, 4, 0).await;
    let waiting: Vec<_> = (0..4).map(|_| spawn_get(&bob, HEAVY_GET)).collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    wait_for_load(&plane, 4, 0).await;
    bob.get(&format!("{MAPS}/small")).await.expect(404);
    plane.admin().delete(&format!("{}/bob", binding_path(&plane))).await.expect(200);
    for request in waiting {
        let (status, text, time) = request.await.unwrap();
        assert_eq!(status, 403, "{text}");
        assert!(time > Duration::from_secs(1), "it waited: {time:?}");
    }
    for request in slow {
        assert_eq!(request.await.unwrap().0, 504);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn level_that_is_removed_while_requests_wait_loses_none() {
    let plane = ControlPlane::start(Options::default()).await;
    limit_bob(&plane, level_with_queue(1, 9)).await;
    let bob = plane.user("bob");
    let slow: Vec<_> = (0..3).map(|_| spawn_get(&bob, SLOW_LIST)).collect();
    wait_for_load(&plane, 3, 0).await;
    let waiting = spawn_get(&bob, MAPS);
    wait_for_load(&plane, 3, 1).await;
    let api = plane.api("flowcontrol.apiserver", "v1");
    for path in ["flowschemas/t", "prioritylevelconfigurations/t"] {
        plane.admin().delete(&format!("{api}/{path}")).await.expect(200);
    }
    eventually("other levels serve bob", || async {
        let begun = Instant::now();
        (bob.get(MAPS).await.status == 200 && begun.elapsed() < Duration::from_millis(500)).then_some(())
    })
    .await;
    assert_eq!(waiting.await.unwrap().0, 200);
    for request in slow {
        request.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_above_inflight_limit_return_429() {
    let options =
        Options::default().flag("--enable-priority-and-fairness=false").flag("--max-requests-inflight=1");
    let plane = ControlPlane::start(options).await;
    plane.bind("", "readers", "ClusterRole/view", "User/alice").await;
    let alice = plane.user("alice");
    let (slow, rejected) = eventually("a request gets 429 beside a slow one", || async {
        let slow = spawn_get(&alice, SLOW_LIST);
        // The slow request ends early if it is the one that gets 429.
        while !slow.is_finished() {
            let answer = alice.get(MAPS).await;
            if answer.status == 429 {
                return Some((slow, answer));
            }
        }
        None
    })
    .await;
    assert_eq!((rejected.text().as_str(), rejected.header("retry-after")), (REJECTED, "1"));
    assert!(rejected.header("x-pf-flowschema-uid").is_empty());
    plane.admin().get(MAPS).await.expect(200);
    slow.await.unwrap();
    alice.get(MAPS).await.expect(200);
}
