//! kubectl commands that read server information: discovery, versions, raw paths, events.

use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options};

use super::{Kubectl, RELEASES, installed, with_each_release};

/// The words of each line.
fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_api_resources_and_api_versions() {
    with_each_release(api_resources_and_api_versions).await;
}

fn api_resources_and_api_versions(plane: &ControlPlane, kubectl: &Kubectl) {
    let text = kubectl.ok("api-resources", "");
    let all = rows(&text);
    for row in [
        &["NAME", "SHORTNAMES", "APIVERSION", "NAMESPACED", "KIND"][..],
        &["pods", "po", "v1", "true", "Pod"],
        &["nodes", "no", "v1", "false", "Node"],
        &["secrets", "v1", "true", "Secret"],
        &["deployments", "deploy", "apps/v1", "true", "Deployment"],
        &["horizontalpodautoscalers", "hpa", "autoscaling/v2", "true", "HorizontalPodAutoscaler"],
        &[
            "customresourcedefinitions",
            "crd,crds",
            "apiextensions.k8s.io/v1",
            "false",
            "CustomResourceDefinition",
        ],
        &["selfsubjectaccessreviews", "authorization.k8s.io/v1", "false", "SelfSubjectAccessReview"],
        &["storageclasses", "sc", "storage.k8s.io/v1", "false", "StorageClass"],
    ] {
        assert!(all.iter().any(|found| found == row), "{row:?} in\n{text}");
    }
    let wide = kubectl.ok("api-resources -o wide", "");
    let every_verb = "create,delete,deletecollection,get,list,patch,update,watch";
    for row in [
        &["pods", "po", "v1", "true", "Pod", every_verb, "all"][..],
        &["configmaps", "cm", "v1", "true", "ConfigMap", every_verb],
        &["namespaces", "ns", "v1", "false", "Namespace", "create,delete,get,list,patch,update,watch"],
        &["bindings", "v1", "true", "Binding", "create"],
        &["tokenreviews", "authentication.k8s.io/v1", "false", "TokenReview", "create"],
    ] {
        assert!(rows(&wide).iter().any(|found| found == row), "{row:?} in\n{wide}");
    }
    let count = |line: &str| kubectl.ok(line, "").lines().count();
    let (namespaced, of_the_cluster) = (
        count("api-resources --namespaced=true --no-headers"),
        count("api-resources --namespaced=false --no-headers"),
    );
    assert_eq!(namespaced + of_the_cluster + 1, text.lines().count());
    assert!(namespaced > 25 && of_the_cluster > 25, "{namespaced} and {of_the_cluster}");
    let apps = kubectl.ok("api-resources --api-group=apps -o name", "");
    let mut apps: Vec<&str> = apps.lines().collect();
    apps.sort_unstable();
    assert_eq!(
        apps,
        [
            "controllerrevisions.apps",
            "daemonsets.apps",
            "deployments.apps",
            "replicasets.apps",
            "statefulsets.apps"
        ]
    );
    // All authenticated users can read discovery.
    assert_eq!(api_resources_as_user(plane, kubectl), text);

    let versions = kubectl.ok("api-versions", "");
    for version in
        ["v1", "apps/v1", "batch/v1", "rbac.authorization.k8s.io/v1", "autoscaling/v2", "policy/v1"]
    {
        assert!(versions.lines().any(|line| line == version), "{version} in\n{versions}");
    }
    let sorted: Vec<&str> = {
        let mut lines: Vec<&str> = versions.lines().collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(versions.lines().collect::<Vec<_>>(), sorted);
}

fn api_resources_as_user(plane: &ControlPlane, kubectl: &Kubectl) -> String {
    kubectl.user(plane, "carol").ok("api-resources", "")
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_version_cluster_info_and_raw_paths() {
    with_each_release(version_cluster_info_and_raw_paths).await;
}

fn version_cluster_info_and_raw_paths(plane: &ControlPlane, kubectl: &Kubectl) {
    let version: Value = serde_json::from_str(&kubectl.ok("version -o json", "")).expect("JSON");
    assert_eq!(version["serverVersion"]["major"], "1");
    assert_eq!(version["serverVersion"]["minor"], "33");
    assert!(kubectl.ok("cluster-info", "").contains(&plane.url()));

    assert_eq!(kubectl.ok("get --raw /healthz", ""), "ok");
    assert!(kubectl.ok("get --raw '/readyz?verbose'", "").contains("readyz check passed"));
    let namespace: Value =
        serde_json::from_str(&kubectl.ok("get --raw /api/v1/namespaces/default", "")).expect("JSON");
    assert_eq!(namespace["metadata"]["name"], "default");
    assert!(kubectl.must_fail("get --raw /apis/nothing/v1").contains("NotFound"));
    let made = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "raw"}}).to_string();
    kubectl.ok("create --raw /api/v1/namespaces/default/configmaps -f -", &made);
    kubectl.ok("replace --raw /api/v1/namespaces/default/configmaps/raw -f -", &made);
    kubectl.ok("delete --raw /api/v1/namespaces/default/configmaps/raw", "");
    assert!(kubectl.must_fail("get configmap raw -n default").contains("NotFound"));

    assert!(kubectl.must_fail("get nothing").contains("the server doesn't have a resource type \"nothing\""));
    assert!(kubectl.must_fail("get pod absent -n default").contains("(NotFound): pods \"absent\" not found"));
    assert!(kubectl.must_fail("top nodes").contains("Metrics API not available"));
    let empty = kubectl.run("get pods -n default", "");
    assert!(
        empty.status.success() && empty.err.contains("No resources found in default namespace"),
        "{empty}"
    );

    let dump = kubectl.home().join("dump");
    kubectl.ok(&format!("cluster-info dump --output-directory={}", dump.display()), "");
    assert!(dump.join("nodes.json").exists() && dump.join("kube-system/pods.json").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_shows_events() {
    with_each_release(list_events).await;
}

fn list_events(_: &ControlPlane, kubectl: &Kubectl) {
    kubectl.ok("create configmap oven -n default", "");
    let uid = kubectl.ok("get configmap oven -n default -o jsonpath={.metadata.uid}", "");
    let event = |name: &str, kind: &str, reason: &str, object: &str, hour: u32| {
        json!({
            "apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"},
            "involvedObject": {"apiVersion": "v1", "kind": "ConfigMap", "namespace": "default", "name": object, "uid": if object == "oven" { uid.as_str() } else { "" }},
            "type": kind, "reason": reason, "message": format!("{object} was {reason}"), "count": 1,
            "firstTimestamp": format!("2026-01-05T{hour:02}:00:00Z"), "lastTimestamp": format!("2026-01-05T{hour:02}:00:00Z"),
            "source": {"component": "tests"},
        })
        .to_string()
    };
    kubectl.ok("create -f -", &event("second", "Warning", "Heated", "oven", 5));
    kubectl.ok("create -f -", &event("first", "Normal", "Lit", "oven", 4));
    kubectl.ok("create -f -", &event("other", "Normal", "Wiped", "table", 6));

    let reasons = |line: &str| -> Vec<String> {
        let text = kubectl.ok(line, "");
        rows(&text)
            .into_iter()
            .flat_map(|row| row.into_iter().rfind(|word| ["Lit", "Heated", "Wiped"].contains(word)))
            .map(str::to_owned)
            .collect()
    };
    assert_eq!(reasons("events -n default"), ["Lit", "Heated", "Wiped"], "events are sorted by time");
    assert_eq!(reasons("events -n default --for configmap/oven"), ["Lit", "Heated"]);
    assert_eq!(reasons("events -n default --types Warning"), ["Heated"]);
    assert_eq!(reasons("get events -n default --field-selector involvedObject.name=table"), ["Wiped"]);
    assert_eq!(reasons("get events -n default --sort-by=.lastTimestamp"), ["Lit", "Heated", "Wiped"]);
    let described = kubectl.ok("describe configmap oven -n default", "");
    assert!(described.contains("oven was Lit") && !described.contains("table was"), "{described}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_finds_and_explains_enabled_explanations() {
    for release in RELEASES {
        let Some(program) = installed(release) else { continue };
        let flag = "--runtime-config=explain.k8s.io/v1alpha1";
        let plane = ControlPlane::start(Options::kubernetes().flag(flag)).await;
        let kubectl = Kubectl::new(program, release, &plane, "admin");
        let session = move || {
            let names = kubectl.ok("api-resources --api-group=explain.k8s.io -o name", "");
            let mut names: Vec<&str> = names.lines().collect();
            names.sort_unstable();
            assert_eq!(names, ["accessexplanations.explain.k8s.io", "tokenexplanations.explain.k8s.io"]);
            let text = kubectl.ok("explain accessexplanations.spec", "");
            assert!(text.contains("resourceAttributes"), "{text}");
            drop(plane);
        };
        tokio::task::spawn_blocking(session).await.expect(release);
    }
}
