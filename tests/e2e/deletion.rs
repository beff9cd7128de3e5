//! Deletion with all controllers running: dependents, invalid owners, namespaces, kubectl output.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::harness::{AuditLog, Client, ControlPlane, Options, eventually};

use crate::e2e::kubectl::{Kubectl, installed};

const MAPS: &str = "/api/v1/namespaces/a/configmaps";

/// Time after the deletion of a namespace in which the namespace controller ends its final sweep.
const FINAL_SWEEP: Duration = Duration::from_millis(1500);

async fn with_namespaces(options: Options) -> ControlPlane {
    let plane = ControlPlane::start(options).await;
    for name in ["a", "b"] {
        plane.admin().post("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await.expect(201);
    }
    plane
}

async fn make(client: &Client, path: &str, name: &str, metadata: Value) -> Value {
    let mut body = json!({"metadata": metadata});
    body["metadata"]["name"] = name.into();
    client.post(path, &body).await.expect(201)
}

/// An owner reference to a stored object.
fn owner(kind: &str, object: &Value, blocks: bool) -> Value {
    let metadata = &object["metadata"];
    json!([{
        "apiVersion": "v1", "kind": kind, "name": metadata["name"], "uid": metadata["uid"], "blockOwnerDeletion": blocks,
    }])
}

async fn delete(client: &Client, path: &str, options: Value) -> Value {
    let headers = [("content-type", "application/json")];
    client.request("DELETE", path, &headers, options.to_string().as_bytes()).await.expect(200)
}

#[tokio::test]
async fn foreground_deletion_waits_for_blocking_dependents_across_crash() {
    let mut plane = with_namespaces(Options::default()).await;
    let admin = plane.admin();
    let boss = make(&admin, MAPS, "boss", json!({})).await;
    let blocked_map = |blocks| json!({"ownerReferences": owner("ConfigMap", &boss, blocks), "finalizers": ["example.com/hold"]});
    make(&admin, MAPS, "blocking", blocked_map(true)).await;
    make(&admin, MAPS, "beside", blocked_map(false)).await;
    let response = delete(&admin, &format!("{MAPS}/boss"), json!({"propagationPolicy": "Foreground"})).await;
    assert_eq!(response["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    eventually("the blocking dependent is terminating", || async {
        let blocking = admin.get(&format!("{MAPS}/blocking")).await.expect(200);
        blocking["metadata"]["deletionTimestamp"].is_string().then_some(())
    })
    .await;
    plane.kill();
    plane.launch().await;
    let admin = plane.admin();
    admin.get(&format!("{MAPS}/boss")).await.expect(200);
    let release = json!({"metadata": {"finalizers": null}});
    let merge = "application/merge-patch+json";
    admin.patch(&format!("{MAPS}/blocking"), merge, &release).await.expect(200);
    admin.wait_until_deleted(&format!("{MAPS}/boss")).await;
    // A dependent without `blockOwnerDeletion` does not block, and the garbage collector deletes it too.
    eventually("the other dependent is terminating", || async {
        let beside = admin.get(&format!("{MAPS}/beside")).await.expect(200);
        beside["metadata"]["deletionTimestamp"].is_string().then_some(())
    })
    .await;
    // Foreground deletion of a cycle completes.
    let one = make(&admin, MAPS, "one", json!({})).await;
    let two = make(&admin, MAPS, "two", json!({"ownerReferences": owner("ConfigMap", &one, true)})).await;
    let circle = json!({"metadata": {"ownerReferences": owner("ConfigMap", &two, true)}});
    admin.patch(&format!("{MAPS}/one"), merge, &circle).await.expect(200);
    delete(&admin, &format!("{MAPS}/one"), json!({"propagationPolicy": "Foreground"})).await;
    admin.wait_until_deleted(&format!("{MAPS}/one")).await;
    admin.wait_until_deleted(&format!("{MAPS}/two")).await;
}

/// The events of a namespace about invalid owner references.
async fn invalid_owner_events(client: &Client, namespace: &str) -> Vec<Value> {
    let path =
        format!("/api/v1/namespaces/{namespace}/events?fieldSelector=reason%3DOwnerRefInvalidNamespace");
    client.get(&path).await.expect(200)["items"].as_array().cloned().unwrap_or_default()
}

#[tokio::test]
async fn invalid_owner_reference_emits_warning_event() {
    let plane = with_namespaces(Options::default()).await;
    let admin = plane.admin();
    let boss = make(&admin, "/api/v1/namespaces/b/configmaps", "boss", json!({})).await;
    let owners = json!({"ownerReferences": owner("ConfigMap", &boss, true)});

    // An owner in a different namespace counts as absent.
    let child = make(&admin, MAPS, "child", owners.clone()).await;
    admin.wait_until_deleted(&format!("{MAPS}/child")).await;
    let events =
        eventually("the event", || async { invalid_owner_events(&admin, "a").await.first().cloned() }).await;
    let uid = boss["metadata"]["uid"].as_str().expect("a uid");
    let text = format!(
        "ownerRef [v1/ConfigMap, namespace: a, name: boss, uid: {uid}] does not exist in namespace \"a\""
    );
    assert_eq!(events["message"], text.as_str());
    assert_eq!(events["type"], "Warning");
    assert_eq!(events["involvedObject"]["uid"], child["metadata"]["uid"]);

    // A cluster-scoped object cannot have a namespaced owner. The object stays after the owner is deleted,
    // and does not block the deletion.
    let roles = format!("{}/clusterroles", plane.api("rbac.authorization", "v1"));
    make(&admin, &roles, "everywhere", owners).await;
    eventually("the event", || async { invalid_owner_events(&admin, "default").await.first().cloned() })
        .await;
    delete(&admin, "/api/v1/namespaces/b/configmaps/boss", json!({"propagationPolicy": "Foreground"})).await;
    admin.wait_until_deleted("/api/v1/namespaces/b/configmaps/boss").await;

    // An owner of an unknown kind keeps its dependents; a dependent whose owner uid does not exist is
    // deleted.
    let mut unknown = owner("ConfigMap", &boss, false);
    unknown[0]["apiVersion"] = "example.com/v1".into();
    make(&admin, MAPS, "unknown", json!({"ownerReferences": unknown})).await;
    make(&admin, MAPS, "late", json!({"ownerReferences": owner("ConfigMap", &boss, false)})).await;
    admin.wait_until_deleted(&format!("{MAPS}/late")).await;
    admin.get(&format!("{MAPS}/unknown")).await.expect(200);
    admin.get(&format!("{roles}/everywhere")).await.expect(200);
}

#[tokio::test]
async fn garbage_collector_has_audit_identity_and_disable_flag() {
    for (flag, writer) in [
        ("--v=0", "system:kube-controller-manager"),
        ("--use-service-account-credentials", "system:serviceaccount:svc-system:generic-garbage-collector"),
    ] {
        let audit = AuditLog::new();
        let options = Options::default().flag(&audit.flag()).flag(flag);
        let plane = with_namespaces(options).await;
        let admin = plane.admin();
        let boss = make(&admin, MAPS, "boss", json!({})).await;
        make(&admin, MAPS, "child", json!({"ownerReferences": owner("ConfigMap", &boss, false)})).await;
        admin.delete(&format!("{MAPS}/boss")).await.expect(200);
        admin.wait_until_deleted(&format!("{MAPS}/child")).await;
        let is_deletion = |event: &Value| event["verb"] == "delete" && event["objectRef"]["name"] == "child";
        audit.event("the deletion of the child", is_deletion).await;
        let deletions = audit.events().into_iter().filter(is_deletion);
        let users: Vec<_> = deletions.map(|event| event["user"]["username"].clone()).collect();
        assert_eq!(users, [writer]);
    }

    let plane = with_namespaces(Options::default().flag("--enable-garbage-collector=false")).await;
    let admin = plane.admin();
    let boss = make(&admin, MAPS, "boss", json!({})).await;
    make(&admin, MAPS, "child", json!({"ownerReferences": owner("ConfigMap", &boss, false)})).await;
    delete(&admin, &format!("{MAPS}/boss"), json!({"propagationPolicy": "Foreground"})).await;
    // The creation and complete deletion of a namespace give a running garbage collector enough time to act.
    admin.post("/api/v1/namespaces", &json!({"metadata": {"name": "c"}})).await.expect(201);
    admin.delete("/api/v1/namespaces/c").await.expect(200);
    admin.wait_until_deleted("/api/v1/namespaces/c").await;
    admin.get(&format!("{MAPS}/boss")).await.expect(200);
    admin.get(&format!("{MAPS}/child")).await.expect(200);
}

#[tokio::test]
async fn unsafe_delete_ignoring_read_errors_requires_own_verb() {
    let audit = AuditLog::new();
    let options = Options::default()
        .flag("--feature-gates=AllowUnsafeMalformedObjectDeletion=true")
        .flag(&audit.flag());
    let plane = with_namespaces(options).await;
    let (admin, alice) = (plane.admin(), plane.user("alice"));
    let roles = format!("{}/namespaces/a/roles", plane.api("rbac.authorization", "v1"));
    let rule = |verbs: &[&str]| json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}]);
    plane.grant("a", "r", "User/alice", &rule(&["delete"])).await;
    make(&admin, MAPS, "x", json!({})).await;
    let path = format!("{MAPS}/x");
    let body = json!({"ignoreStoreReadErrorWithClusterBreakingPotential": true}).to_string();
    let headers = [("content-type", "application/json")];
    let rejected = alice.request("DELETE", &path, &headers, body.as_bytes()).await.expect(403);
    let text = rejected["message"].as_str().expect("a message");
    assert!(text.contains("cannot unsafe-delete-ignore-read-errors resource \"configmaps\""), "{text}");
    admin.get(&path).await.expect(200);
    let patch = json!({"rules": rule(&["delete", "unsafe-delete-ignore-read-errors"])});
    admin.patch(&format!("{roles}/r"), "application/merge-patch+json", &patch).await.expect(200);
    alice.request("DELETE", &path, &headers, body.as_bytes()).await.expect(200);
    admin.get(&path).await.expect(404);
    let key = format!("{}/unsafe-delete-ignore-read-error", plane.names().group("apiserver"));
    let is_annotated = |event: &Value| {
        event["verb"] == "delete" && event["annotations"][&key] == "" && event["user"]["username"] == "alice"
    };
    audit.event("the audit annotation", is_annotated).await;
}

/// Deletes a namespace and recreates it after the deletion.
async fn replace_namespace(admin: &Client, name: &str) {
    let path = format!("/api/v1/namespaces/{name}");
    admin.delete(&path).await.expect(200);
    let body = json!({"metadata": {"name": name}});
    let create_namespace =
        || async { (admin.post("/api/v1/namespaces", &body).await.status == 201).then_some(()) };
    eventually("the namespace is recreated", create_namespace).await;
}

#[tokio::test]
async fn recreated_namespace_is_independent_of_deleted_one() {
    let plane = with_namespaces(Options::default()).await;
    let admin = plane.admin();
    // The new namespace keeps its objects, even after an update of the namespace.
    replace_namespace(&admin, "a").await;
    let deleted_at = tokio::time::Instant::now();
    make(&admin, MAPS, "own", json!({})).await;
    let merge = [("content-type", "application/merge-patch+json")];
    let label = json!({"metadata": {"labels": {"tier": "new"}}}).to_string();
    admin.request("PATCH", "/api/v1/namespaces/a", &merge, label.as_bytes()).await.expect(200);
    // The namespace controller also deletes a recreated namespace that is deleted immediately.
    for _ in 0..3 {
        replace_namespace(&admin, "b").await;
    }
    admin.delete("/api/v1/namespaces/b").await.expect(200);
    admin.wait_until_deleted("/api/v1/namespaces/b").await;
    // No event shows the end of the final sweep of namespace `a`, because the sweep deletes nothing.
    tokio::time::sleep_until(deleted_at + FINAL_SWEEP).await;
    admin.get(&format!("{MAPS}/own")).await.expect(200);
}

#[tokio::test]
async fn terminating_namespace_reports_conditions_and_deletes_pods_first() {
    let plane = with_namespaces(Options::default()).await;
    let admin = plane.admin();
    make(&admin, MAPS, "held", json!({"finalizers": ["example.com/hold"]})).await;
    make(&admin, MAPS, "plain", json!({})).await;
    let pod = json!({
        "metadata": {"name": "p"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": false},
    });
    let pods = "/api/v1/namespaces/a/pods";
    eventually("the default service account", || async {
        (admin.post(pods, &pod).await.status == 201).then_some(())
    })
    .await;
    admin.delete("/api/v1/namespaces/a").await.expect(200);
    let wait_for_condition = |kind: &'static str, status: &'static str, text: &'static str| {
        let admin = &admin;
        async move {
            eventually(text, || async {
                let namespace = admin.get("/api/v1/namespaces/a").await.expect(200);
                let conditions = namespace["status"]["conditions"].as_array().cloned().unwrap_or_default();
                let found = conditions.iter().find(|c| c["type"] == kind)?;
                (found["status"] == status && found["message"] == text).then_some(())
            })
            .await;
        }
    };
    let left = "NamespaceContentRemaining";
    wait_for_condition(left, "True", "Some resources are remaining: pods. has 1 resource instances").await;
    admin.get(&format!("{MAPS}/plain")).await.expect(200);
    let rejected = admin.post(MAPS, &json!({"metadata": {"name": "late"}})).await.expect(403);
    assert_eq!(rejected["details"]["causes"][0]["reason"], "NamespaceTerminating");
    delete(&admin, &format!("{pods}/p"), json!({"gracePeriodSeconds": 0})).await;
    wait_for_condition(left, "True", "Some resources are remaining: configmaps. has 1 resource instances")
        .await;
    let text =
        "Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances";
    wait_for_condition("NamespaceFinalizersRemaining", "True", text).await;
    for (kind, text) in [
        ("NamespaceDeletionDiscoveryFailure", "All resources successfully discovered"),
        ("NamespaceDeletionGroupVersionParsingFailure", "All legacy kube types successfully parsed"),
        (
            "NamespaceDeletionContentFailure",
            "All content successfully deleted, may be waiting on finalization",
        ),
    ] {
        wait_for_condition(kind, "False", text).await;
    }
    admin.wait_until_deleted(&format!("{MAPS}/plain")).await;
    let release = json!({"metadata": {"finalizers": null}});
    admin.patch(&format!("{MAPS}/held"), "application/merge-patch+json", &release).await.expect(200);
    admin.wait_until_deleted("/api/v1/namespaces/a").await;

    // Other controllers can add a namespace finalizer and remove it through the `finalize` subresource.
    let hold = json!({"metadata": {"name": "c"}, "spec": {"finalizers": ["example.com/hold"]}});
    let made = admin.post("/api/v1/namespaces", &hold).await.expect(201);
    assert_eq!(made["spec"]["finalizers"], json!(["example.com/hold", "svc"]));
    admin.delete("/api/v1/namespaces/c").await.expect(200);
    let mut last = eventually("only the other finalizer remains", || async {
        let namespace = admin.get("/api/v1/namespaces/c").await.expect(200);
        (namespace["spec"]["finalizers"] == json!(["example.com/hold"])).then_some(namespace)
    })
    .await;
    last["spec"]["finalizers"] = json!([]);
    admin.put("/api/v1/namespaces/c/finalize", &last).await.expect(200);
    admin.wait_until_deleted("/api/v1/namespaces/c").await;
}

/// Number of objects, 500 by default. `MANY_OBJECTS=5000` sets the size of the requirement.
fn object_count() -> usize {
    std::env::var("MANY_OBJECTS").ok().map_or(500, |n| n.parse().expect("a number"))
}

/// Creates [`object_count`] config maps with 16 concurrent connections.
async fn fill(plane: &ControlPlane, metadata: &Value) {
    let makers = (0..16).map(|maker| {
        let admin = plane.admin();
        async move {
            let mut session = admin.connect().await.expect("a connection");
            for i in (maker..object_count()).step_by(16) {
                let mut body = json!({"metadata": metadata, "data": {"k": "v"}});
                body["metadata"]["name"] = format!("m{i}").into();
                let made =
                    session.request("POST", MAPS, body.to_string().as_bytes()).await.expect("a response");
                assert_eq!(made.status, 201);
            }
        }
    });
    futures_util::future::join_all(makers).await;
}

/// Prints the duration of the deletion, which has no limit.
#[tokio::test]
async fn large_namespace_is_deleted() {
    let plane = with_namespaces(Options::default()).await;
    let admin = plane.admin();
    fill(&plane, &json!({})).await;
    let begun = Instant::now();
    admin.delete("/api/v1/namespaces/a").await.expect(200);
    admin.wait_until_deleted("/api/v1/namespaces/a").await;
    println!("deleted a namespace with {} objects in {:?}", object_count(), begun.elapsed());
    assert_eq!(admin.get(MAPS).await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn large_number_of_dependents_follows_each_propagation_policy() {
    let plane = with_namespaces(Options::default()).await;
    let admin = plane.admin();
    for policy in ["Background", "Foreground", "Orphan"] {
        let path = "/api/v1/namespaces/a/secrets";
        let boss = make(&admin, path, "boss", json!({})).await;
        fill(&plane, &json!({"ownerReferences": owner("Secret", &boss, true)})).await;
        let begun = Instant::now();
        delete(&admin, &format!("{path}/boss"), json!({"propagationPolicy": policy})).await;
        admin.wait_until_deleted(&format!("{path}/boss")).await;
        let left = eventually("the deletion of the last dependent", || async {
            let items = admin.get(MAPS).await.expect(200)["items"].as_array().cloned().unwrap_or_default();
            (policy == "Orphan" || items.is_empty()).then_some(items)
        })
        .await;
        println!("{} dependents, {policy}: {:?}", object_count(), begun.elapsed());
        if policy == "Orphan" {
            assert_eq!(left.len(), object_count());
            assert!(left.iter().all(|item| item["metadata"].get("ownerReferences").is_none()));
        }
        admin.delete(MAPS).await.expect(200);
    }
}

/// Runs a kubectl 1.33 session on a new server.
async fn with_kubectl(session: impl FnOnce(&Kubectl) + Send + 'static) {
    let release = "1.33";
    let Some(program) = installed(release) else { return };
    let plane = ControlPlane::start(Options::kubernetes()).await;
    let kubectl = Kubectl::new(program, release, &plane, "admin");
    let ended = tokio::task::spawn_blocking(move || {
        session(&kubectl);
        drop(plane);
    })
    .await;
    ended.unwrap_or_else(|error| panic!("kubectl {release}: {error}"));
}

#[tokio::test]
async fn kubectl_delete_cascade_foreground_background_and_orphan() {
    with_kubectl(|kubectl| {
        kubectl.ok("create namespace work", "");
        for cascade in ["foreground", "background", "orphan"] {
            kubectl.ok("create configmap boss -n work", "");
            let uid = kubectl.ok("get configmap boss -n work -o jsonpath={.metadata.uid}", "");
            let child = json!({
                "apiVersion": "v1", "kind": "Secret",
                "metadata": {"name": "child", "ownerReferences": [{
                    "apiVersion": "v1", "kind": "ConfigMap", "name": "boss", "uid": uid, "blockOwnerDeletion": true,
                }]},
            });
            kubectl.ok("create -n work -f -", &child.to_string());
            kubectl.ok(&format!("delete configmap boss -n work --cascade={cascade}"), "");
            if cascade == "orphan" {
                let owners = kubectl.ok("get secret child -n work -o jsonpath={.metadata.ownerReferences}", "");
                assert_eq!(owners, "");
            } else {
                kubectl.ok("wait --for=delete secret/child -n work --timeout=30s", "");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn kubectl_force_deletes_pod_and_deletes_namespace() {
    with_kubectl(|kubectl| {
        kubectl.ok("create namespace work", "");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": false},
        });
        kubectl.ok("wait --for=create serviceaccount/default -n work --timeout=30s", "");
        kubectl.ok("create -n work -f -", &pod.to_string());
        kubectl.ok("delete pod p -n work --wait=false", "");
        assert_eq!(kubectl.ok("get pod p -n work -o jsonpath={.metadata.deletionGracePeriodSeconds}", ""), "30");
        kubectl.ok("delete pod p -n work --grace-period=0 --force", "");
        assert!(kubectl.must_fail("get pod p -n work").contains("not found"));

        let maps: Vec<_> = (0..300)
            .map(|i| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": format!("m{i}")}}))
            .collect();
        let list = json!({"apiVersion": "v1", "kind": "List", "items": maps});
        kubectl.ok("create -n work -f -", &list.to_string());
        kubectl.ok("delete namespace work --timeout=60s", "");
        assert!(kubectl.must_fail("get namespace work").contains("not found"));

        // A namespace with a remaining finalizer shows the reason in its conditions.
        kubectl.ok("create namespace held", "");
        let blocked_map = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "held", "finalizers": ["example.com/hold"]},
        });
        kubectl.ok("create -n held -f -", &blocked_map.to_string());
        kubectl.ok("delete namespace held --wait=false", "");
        kubectl.ok("wait --for=condition=NamespaceFinalizersRemaining namespace/held --timeout=30s", "");
        let described = kubectl.ok("describe namespace held", "");
        assert!(described.contains("example.com/hold in 1 resource instances"), "{described}");
        kubectl.ok("patch configmap held -n held --type=merge -p '{\"metadata\":{\"finalizers\":null}}'", "");
        kubectl.ok("wait --for=delete namespace/held --timeout=30s", "");
        assert!(kubectl.must_fail("delete namespace kube-system").contains("this namespace may not be deleted"));
    })
    .await;
}
