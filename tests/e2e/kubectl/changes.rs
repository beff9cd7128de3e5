//! kubectl commands on single objects: patch, rollout, edit, nodes, wait and watch.

use serde_json::{Value, json};
use tests::harness::ControlPlane;

use super::{Kubectl, with_each_release};

/// The Deployment `web` with these containers, as JSON text.
pub(super) fn deployment(containers: &Value) -> String {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": containers}},
        },
    })
    .to_string()
}

/// A field of the Deployment `web` by JSONPath.
pub(super) fn field(kubectl: &Kubectl, path: &str) -> String {
    kubectl.ok(&format!("get deployment web -n default -o jsonpath={{{path}}}"), "")
}

const IMAGES: &str = ".spec.template.spec.containers[*].image";

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_patch_label_annotate_and_edit() {
    with_each_release(patch_label_annotate_and_edit).await;
}

fn patch_label_annotate_and_edit(_: &ControlPlane, kubectl: &Kubectl) {
    let two = json!([{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]);
    kubectl.ok("apply -f -", &deployment(&two));
    let patch = |arguments: &str| kubectl.ok(&format!("patch deployment web -n default {arguments}"), "");

    // A strategic merge patch uses the merge key of containers, a merge patch replaces the list, a JSON patch
    // uses the index.
    let image = |image: &str| json!({"spec": {"template": {"spec": {"containers": [{"name": "b", "image": image}]}}}});
    assert_eq!(patch(&format!("-p '{}'", image("b:2"))), "deployment.apps/web patched\n");
    assert_eq!(field(kubectl, IMAGES), "a:1 b:2");
    assert_eq!(patch(&format!("-p '{}'", image("b:2"))), "deployment.apps/web patched (no change)\n");
    patch(&format!("--type=merge -p '{}'", image("b:3")));
    assert_eq!(field(kubectl, IMAGES), "b:3");
    let operations = json!([
        {"op": "test", "path": "/spec/template/spec/containers/0/image", "value": "b:3"},
        {"op": "add", "path": "/spec/template/spec/containers/-", "value": {"name": "c", "image": "c:1"}},
    ]);
    patch(&format!("--type=json -p '{operations}'"));
    assert_eq!(field(kubectl, IMAGES), "b:3 c:1");
    let failed = json!([{"op": "test", "path": "/spec/replicas", "value": 7}]);
    kubectl.must_fail(&format!("patch deployment web -n default --type=json -p '{failed}'"));
    let wrong = json!({"spec": {"replicas": "many"}});
    kubectl.must_fail(&format!("patch deployment web -n default -p '{wrong}'"));

    // A patch of the status subresource changes only the status.
    patch(
        r#"--type=merge --subresource=status -p {"status":{"readyReplicas":1,"replicas":2},"spec":{"replicas":9}}"#,
    );
    assert_eq!(field(kubectl, ".status.readyReplicas}{.spec.replicas"), "12");
    patch(r#"--type=merge -p {"status":{"readyReplicas":5}}"#);
    assert_eq!(field(kubectl, ".status.readyReplicas"), "1");
    let status: Value =
        serde_json::from_str(&kubectl.ok("get deployment web -n default --subresource=status -o json", ""))
            .expect("JSON");
    assert_eq!(status["status"]["replicas"], 2);

    // Client-side apply records the applied configuration, and removes fields that left the configuration.
    let one = json!([{"name": "a", "image": "a:3"}]);
    kubectl.ok(
        "apply -f -",
        &deployment(&json!([{"name": "b", "image": "b:4"}, {"name": "a", "image": "a:1"}])),
    );
    kubectl.ok("apply -f -", &deployment(&one));
    let mut images: Vec<String> = field(kubectl, IMAGES).split(' ').map(str::to_owned).collect();
    images.sort_unstable();
    assert_eq!(images, ["a:3", "c:1"], "apply keeps the container of another client");

    assert_eq!(kubectl.ok("label deployment web -n default tier=front", ""), "deployment.apps/web labeled\n");
    assert!(kubectl.must_fail("label deployment web -n default tier=back").contains("--overwrite is false"));
    kubectl.ok("label deployment web -n default tier=back --overwrite", "");
    kubectl.ok("annotate deployment web -n default note=x other=y", "");
    assert_eq!(field(kubectl, ".metadata.labels.tier}{.metadata.annotations.note"), "backx");
    kubectl.ok("label deployment web -n default tier-", "");
    kubectl.ok("annotate deployment web -n default note-", "");
    assert_eq!(field(kubectl, ".metadata.labels.tier}{.metadata.annotations.note"), "");
    assert!(
        kubectl.must_fail("label deployment web -n default tier=-bad-").contains("a valid label must be")
    );

    let edited = kubectl.edit("edit deployment web -n default", "sed -i s/a:3/a:4/");
    assert_eq!(edited, "deployment.apps/web edited\n");
    assert!(field(kubectl, IMAGES).contains("a:4"));
    let untouched = kubectl.edit("edit deployment web -n default", "true");
    assert!(!untouched.contains("edited"), "{untouched}");
    let edited = kubectl.edit(
        "edit deployment web -n default --subresource=status",
        "sed -i 's/readyReplicas: 1/readyReplicas: 2/'",
    );
    assert_eq!(edited, "deployment.apps/web edited\n");
    assert_eq!(field(kubectl, ".status.readyReplicas"), "2");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_set_and_rollout() {
    with_each_release(set_and_rollout).await;
}

fn set_and_rollout(_: &ControlPlane, kubectl: &Kubectl) {
    kubectl.ok(
        "create -f -",
        &deployment(&json!([{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}])),
    );
    assert_eq!(
        kubectl.ok("set image deployment/web -n default a=a:2", ""),
        "deployment.apps/web image updated\n"
    );
    assert_eq!(field(kubectl, IMAGES), "a:2 b:1", "containers merge by their name");
    kubectl.ok("set env deployment/web -n default -c a COLOR=blue", "");
    assert_eq!(field(kubectl, ".spec.template.spec.containers[0].env[0].value"), "blue");
    kubectl.ok("set resources deployment/web -n default -c b --limits=memory=128Mi", "");
    assert_eq!(field(kubectl, ".spec.template.spec.containers[1].resources.limits.memory"), "128Mi");
    kubectl.ok("set serviceaccount deployment/web -n default default", "");

    assert_eq!(
        kubectl.ok("rollout restart deployment/web -n default", ""),
        "deployment.apps/web restarted\n"
    );
    let restarted =
        field(kubectl, ".spec.template.metadata.annotations.kubectl\\.kubernetes\\.io/restartedAt");
    assert!(restarted.contains('T'), "{restarted}");
    kubectl.ok("rollout pause deployment/web -n default", "");
    assert_eq!(field(kubectl, ".spec.paused"), "true");
    kubectl.ok("rollout resume deployment/web -n default", "");
    assert!(kubectl.must_fail("rollout undo deployment/web -n default").contains("no rollout history found"));
    let waiting = kubectl.must_fail("rollout status deployment/web -n default --timeout=1s");
    assert!(waiting.contains("Waiting for deployment"), "{waiting}");

    // The rollout history consists of the ReplicaSets that the Deployment owns.
    let mut set: Value =
        serde_json::from_str(&deployment(&json!([{"name": "a", "image": "a:0"}]))).expect("JSON");
    set["kind"] = json!("ReplicaSet");
    set["metadata"] = json!({
        "name": "web-1", "namespace": "default", "labels": {"app": "web"},
        "annotations": {"deployment.kubernetes.io/revision": "1", "kubernetes.io/change-cause": "first loaf"},
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "controller": true,
                             "uid": field(kubectl, ".metadata.uid")}],
    });
    kubectl.ok("create -f -", &set.to_string());
    let history = kubectl.ok("rollout history deployment/web -n default", "");
    assert!(history.contains("REVISION") && history.contains("first loaf"), "{history}");
    assert!(kubectl.ok("rollout history deployment/web -n default --revision=1", "").contains("a:0"));

    // The status completes the rollout.
    let seen = field(kubectl, ".metadata.generation");
    let status = json!({"status": {
        "observedGeneration": seen.parse::<i64>().expect("a number"),
        "replicas": 5, "updatedReplicas": 5, "readyReplicas": 5, "availableReplicas": 5,
        "conditions": [{"type": "Available", "status": "True", "reason": "Baked", "message": "all are there"}],
    }});
    kubectl
        .ok(&format!("patch deployment web -n default --subresource=status --type=merge -p '{status}'"), "");
    let done = kubectl.ok("rollout status deployment/web -n default --timeout=30s", "");
    assert!(done.contains("successfully rolled out"), "{done}");
    kubectl.ok("wait --for=condition=Available deployment/web -n default --timeout=30s", "");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_cordon_taint_and_drain_nodes() {
    with_each_release(cordon_taint_and_drain).await;
}

fn cordon_taint_and_drain(_: &ControlPlane, kubectl: &Kubectl) {
    kubectl.ok(
        "create -f -",
        &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "oven"}}).to_string(),
    );
    let unschedulable = || kubectl.ok("get node oven -o jsonpath={.spec.unschedulable}", "");
    assert_eq!(kubectl.ok("cordon oven", ""), "node/oven cordoned\n");
    assert_eq!(unschedulable(), "true");
    assert!(kubectl.ok("get nodes", "").contains("SchedulingDisabled"));
    assert_eq!(kubectl.ok("uncordon oven", ""), "node/oven uncordoned\n");
    assert_eq!(unschedulable(), "");
    assert_eq!(kubectl.ok("taint node oven hot=yes:NoExecute", ""), "node/oven tainted\n");
    assert!(kubectl.ok("get node oven -o jsonpath={.spec.taints[*].key}", "").contains("hot"));
    assert_eq!(kubectl.ok("taint node oven hot-", ""), "node/oven untainted\n");
    assert!(!kubectl.ok("get node oven -o jsonpath={.spec.taints[*].key}", "").contains("hot"));
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "loaf", "namespace": "default"},
        "spec": {"nodeName": "oven", "containers": [{"name": "a", "image": "a:1"}]},
    });
    kubectl.ok("create -f -", &pod.to_string());
    for how in ["client", "server"] {
        let rejected = kubectl.must_fail(&format!("drain oven --dry-run={how}"));
        assert!(rejected.contains("default/loaf"), "drain rejects a pod without a controller: {rejected}");
    }
    let drained = kubectl.ok("drain oven --dry-run=client --force", "");
    assert!(drained.contains("default/loaf") && drained.contains("node/oven drained (dry run)"), "{drained}");
    assert_eq!(unschedulable(), "");
    kubectl.ok("get pod loaf -n default", "");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_watch_and_wait() {
    with_each_release(watch_and_wait).await;
}

fn watch_and_wait(_: &ControlPlane, kubectl: &Kubectl) {
    // The first output line shows that the watch is open: the list has the existing objects, events follow.
    kubectl.ok("create configmap first -n default --from-literal=a=b", "");
    let mut names = kubectl.start("get configmaps -n default --watch -o name");
    let mut events = kubectl.start("get configmaps -n default --watch --output-watch-events");
    assert_eq!(names.line(), "configmap/first");
    assert_eq!(events.line().split_whitespace().next(), Some("EVENT"));
    let verdict = |line: String| line.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    assert_eq!(verdict(events.line()), "ADDED first");
    kubectl.ok("create configmap second -n default --from-literal=a=b", "");
    assert_eq!(names.line(), "configmap/second");
    assert_eq!(verdict(events.line()), "ADDED second");
    kubectl.ok("label configmap second -n default seen=yes", "");
    assert_eq!(names.line(), "configmap/second");
    assert_eq!(verdict(events.line()), "MODIFIED second");
    kubectl.ok("delete configmap second -n default", "");
    assert_eq!(verdict(events.line()), "DELETED second");
    let mut one =
        kubectl.start("get configmap first -n default -w --watch-only -o jsonpath={.data.a}{\"\\n\"}");
    // The start of a watch without a list is not visible, so the test changes the object until the watch shows
    // a change.
    let seen = std::thread::spawn(move || one.line());
    let mut round = 0;
    while !seen.is_finished() {
        round += 1;
        kubectl.ok(&format!("patch configmap first -n default -p {{\"data\":{{\"a\":\"{round}\"}}}}"), "");
    }
    let value: u32 = seen.join().expect("a line").parse().expect("a round");
    assert!((1..=round).contains(&value), "{value} of {round}");

    // `kubectl wait` with a condition that is already true, one that becomes true, and one that stays false.
    kubectl.ok("create -f -", &deployment(&json!([{"name": "a", "image": "a:1"}])));
    kubectl.ok("wait --for=jsonpath={.spec.replicas}=2 deployment/web -n default --timeout=30s", "");
    let waiting = kubectl.start("wait --for=condition=Available deployment/web -n default --timeout=30s");
    let ready = kubectl
        .start("wait --for=jsonpath={.status.readyReplicas}=2 deployment/web -n default --timeout=30s");
    let status = json!({"status": {
        "replicas": 2, "readyReplicas": 2, "conditions": [{"type": "Available", "status": "True"}],
    }});
    kubectl
        .ok(&format!("patch deployment web -n default --subresource=status --type=merge -p '{status}'"), "");
    assert!(waiting.succeeded() && ready.succeeded());
    let never = kubectl.must_fail("wait --for=condition=Progressing deployment/web -n default --timeout=1s");
    assert!(never.contains("timed out"), "{never}");

    // A finalizer blocks the deletion; its removal completes the deletion and the waiting commands.
    kubectl.ok(
        r#"patch configmap first -n default -p {"metadata":{"finalizers":["bakery.example/count"]}}"#,
        "",
    );
    let mut deleted = kubectl.start("delete configmap first -n default --timeout=30s");
    assert_eq!(deleted.line(), "configmap \"first\" deleted");
    assert!(
        !kubectl
            .ok("get configmap first -n default -o jsonpath={.metadata.deletionTimestamp}", "")
            .is_empty()
    );
    let gone = kubectl.start("wait --for=delete configmap/first -n default --timeout=30s");
    kubectl.ok(r#"patch configmap first -n default --type=merge -p {"metadata":{"finalizers":null}}"#, "");
    assert!(gone.succeeded() && deleted.succeeded());
    assert!(kubectl.must_fail("get configmap first -n default").contains("NotFound"));
    kubectl.ok("create namespace brief", "");
    kubectl.ok("create configmap inside -n brief", "");
    kubectl.ok("delete namespace brief --timeout=30s", "");
    assert!(kubectl.must_fail("get configmap inside -n brief").contains("NotFound"));
}
