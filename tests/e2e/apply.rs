//! `kubectl apply` (client-side and server-side), and upgrades with strategic merge patches as in Helm.

use apimachinery::names::Preset;
use serde_json::{Value, json};
use tests::harness::{Client, ControlPlane, Options};

use crate::e2e::kubectl::{Kubectl, with_each_release};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

fn config_map(data: &Value) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one", "namespace": "default"}, "data": data}).to_string()
}

fn deployment(replicas: Option<u32>, image: &str, port: Option<u16>) -> String {
    let mut container = json!({"name": "app", "image": image});
    if let Some(port) = port {
        container["ports"] = json!([{"containerPort": port}]);
    }
    let mut spec = json!({"selector": {"matchLabels": {"app": "web"}},
        "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}}});
    if let Some(replicas) = replicas {
        spec["replicas"] = json!(replicas);
    }
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "default"}, "spec": spec}).to_string()
}

fn get(kubectl: &Kubectl, arguments: &str) -> Value {
    let text = kubectl.ok(&format!("get {arguments} -n default -o json --show-managed-fields"), "");
    serde_json::from_str(&text).expect("JSON")
}

/// The field managers of the field at this path of `managedFields` (`f:spec`, `f:replicas`).
fn owners(object: &Value, path: &[&str]) -> Vec<String> {
    let entries = object["metadata"]["managedFields"].as_array().expect("owners");
    let owns = |entry: &&Value| path.iter().try_fold(&entry["fieldsV1"], |at, name| at.get(*name)).is_some();
    entries.iter().filter(owns).map(|entry| entry["manager"].as_str().expect("a name").to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_client_side_apply_merges_and_prunes_fields() {
    with_each_release(client_side).await;
}

fn client_side(_: &ControlPlane, kubectl: &Kubectl) {
    let apply = |body: &str| kubectl.ok("apply -f -", body);
    let first = deployment(Some(2), "app:1", Some(80));
    assert_eq!(apply(&first), "deployment.apps/web created\n");
    assert_eq!(apply(&first), "deployment.apps/web unchanged\n");
    let version = get(kubectl, "deployment web")["metadata"]["resourceVersion"].clone();
    assert_eq!(get(kubectl, "deployment web")["metadata"]["resourceVersion"], version);
    kubectl.ok("diff -f -", &first);
    let second = deployment(None, "app:2", None);
    let output = kubectl.must_fail_with_stdin("diff -f -", &second);
    assert!(output.contains("-      - image: app:1") && output.contains("+      - image: app:2"), "{output}");
    assert_eq!(get(kubectl, "deployment web")["metadata"]["resourceVersion"], version, "diff is a dry run");

    // Apply removes fields that left the manifest, and defaulting sets their default values again.
    assert_eq!(apply(&second), "deployment.apps/web configured\n");
    let object = get(kubectl, "deployment web");
    assert_eq!(object["spec"]["replicas"], 1);
    assert_eq!(object["spec"]["template"]["spec"]["containers"][0].get("ports"), None);
    let last = object["metadata"]["annotations"][LAST_APPLIED].as_str().expect("the annotation");
    assert_eq!(
        serde_json::from_str::<Value>(last).expect("JSON")["spec"]["template"]["spec"]["containers"][0]["image"],
        "app:2"
    );
    assert_eq!(owners(&object, &["f:spec", "f:strategy"]), ["kubectl-client-side-apply"]);

    // Apply keeps the fields of other field managers.
    kubectl.ok("label deployment web -n default tier=front", "");
    kubectl.ok("annotate deployment web -n default note=mine", "");
    kubectl.ok("scale deployment web -n default --replicas=4", "");
    kubectl.ok("set image deployment/web -n default app=app:3", "");
    kubectl.ok("set env deployment/web -n default MODE=fast", "");
    kubectl.ok("rollout restart deployment web -n default", "");
    kubectl.edit("edit deployment web -n default", "sed -i s/tier:/level:/");
    let object = get(kubectl, "deployment web");
    let container = &object["spec"]["template"]["spec"]["containers"][0];
    assert_eq!((&container["image"], &container["env"][0]["value"]), (&json!("app:3"), &json!("fast")));
    assert_eq!(object["metadata"]["labels"], json!({"level": "front"}));
    assert!(
        object["spec"]["template"]["metadata"]["annotations"]["kubectl.kubernetes.io/restartedAt"]
            .is_string()
    );
    // The defaulted replica count had no field manager; the count set through scale then has none either.
    assert_eq!(object["spec"]["replicas"], 4);
    assert_eq!(owners(&object, &["f:metadata", "f:annotations", "f:note"]), ["kubectl-annotate"]);
    assert_eq!(owners(&object, &["f:metadata", "f:labels", "f:level"]), ["kubectl-edit"]);
    apply(&second);
    let object = get(kubectl, "deployment web");
    assert_eq!(object["spec"]["replicas"], 4);
    assert_eq!(object["spec"]["template"]["spec"]["containers"][0]["image"], "app:2");
    assert_eq!(object["metadata"]["annotations"]["note"], "mine");

    // The taint list merges by a composite key (key and effect).
    kubectl.ok(
        "create -f -",
        &json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}).to_string(),
    );
    kubectl.ok("taint node n dedicated=web:NoSchedule", "");
    kubectl.ok("taint node n dedicated=web:NoExecute", "");
    kubectl.ok("taint node n dedicated:NoSchedule-", "");
    let node: Value = serde_json::from_str(&kubectl.ok("get node n -o json", "")).expect("JSON");
    let dedicated =
        node["spec"]["taints"].as_array().expect("taints").iter().filter(|t| t["key"] == "dedicated");
    assert_eq!(dedicated.map(|taint| &taint["effect"]).collect::<Vec<_>>(), ["NoExecute"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_server_side_apply_detects_conflicts_and_migrates_managers() {
    with_each_release(server_side).await;
}

fn server_side(_: &ControlPlane, kubectl: &Kubectl) {
    let apply = |manager: &str, body: &Value| {
        kubectl.run(&format!("apply --server-side --field-manager={manager} -f -"), &config_map(body))
    };
    let ok = |manager: &str, body: Value| {
        let ran = apply(manager, &body);
        assert!(ran.status.success(), "{ran}");
        ran.out
    };
    assert_eq!(ok("one", json!({"a": "1", "b": "1"})), "configmap/one serverside-applied\n");
    let version = get(kubectl, "configmap one")["metadata"]["resourceVersion"].clone();
    ok("one", json!({"a": "1", "b": "1"}));
    assert_eq!(get(kubectl, "configmap one")["metadata"]["resourceVersion"], version);

    let rejected = apply("two", &json!({"a": "2"}));
    assert!(!rejected.status.success());
    assert!(rejected.err.contains(r#"conflict with "one": .data.a"#), "{rejected}");
    kubectl.ok(
        "apply --server-side --field-manager=two --force-conflicts -f -",
        &config_map(&json!({"a": "2"})),
    );
    let object = get(kubectl, "configmap one");
    assert_eq!(object["data"], json!({"a": "2", "b": "1"}));
    assert_eq!(owners(&object, &["f:data", "f:a"]), ["two"]);
    ok("one", json!({}));
    assert_eq!(
        get(kubectl, "configmap one")["data"],
        json!({"a": "2"}),
        "the field left the applied configuration and is removed"
    );
    let output = kubectl
        .must_fail_with_stdin("diff --server-side --field-manager=two -f -", &config_map(&json!({"a": "3"})));
    assert!(output.contains("-  a: \"2\"") && output.contains("+  a: \"3\""), "{output}");

    // Migration from client-side to server-side apply does not conflict with kubectl's own field manager.
    kubectl.ok("delete configmap one -n default", "");
    kubectl.ok("apply -f -", &config_map(&json!({"a": "1", "b": "1"})));
    kubectl.ok("apply --server-side -f -", &config_map(&json!({"a": "2"})));
    let object = get(kubectl, "configmap one");
    assert_eq!(owners(&object, &["f:data", "f:a"]), ["kubectl"]);
    assert_eq!(
        object["data"],
        json!({"a": "2"}),
        "server-side apply removes client-side applied fields that are absent from the manifest"
    );
    let last = object["metadata"]["annotations"][LAST_APPLIED].as_str().expect("the last-applied annotation");
    assert_eq!(serde_json::from_str::<Value>(last).expect("JSON")["data"], json!({"a": "2"}));
    // Migration back to client-side apply.
    assert_eq!(kubectl.ok("apply -f -", &config_map(&json!({"b": "3"}))), "configmap/one configured\n");
    assert_eq!(get(kubectl, "configmap one")["data"], json!({"b": "3"}));
}

/// Apply needs `patch` on existing objects, and also `create` on absent objects.
#[tokio::test]
async fn apply_requires_patch_and_create_permissions() {
    for preset in [Preset::Kubernetes, Preset::Svc] {
        let plane = ControlPlane::start(Options { preset, ..Options::kubernetes() }).await;
        let admin = plane.admin();
        let rbac = plane.api("rbac.authorization", "v1");
        let api_version = rbac.trim_start_matches("/apis/").to_owned();
        let maps = "/api/v1/namespaces/default/configmaps";
        let apply = async |client: &Client, name: &str| {
            let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": "v"}});
            client
                .patch(&format!("{maps}/{name}?fieldManager=m"), "application/apply-patch+yaml", &body)
                .await
                .status
        };
        let user = plane.user("alice");
        let role = json!({"apiVersion": api_version, "kind": "Role", "metadata": {"name": "applier"},
            "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch"]}]});
        let roles = format!("{rbac}/namespaces/default/roles");
        admin.post(&roles, &role).await.expect(201);
        let group = api_version.trim_end_matches("/v1");
        let binding = json!({"apiVersion": api_version, "kind": "RoleBinding", "metadata": {"name": "applier"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "applier"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "alice"}]});
        assert_eq!(apply(&user, "one").await, 403);
        admin.post(&format!("{rbac}/namespaces/default/rolebindings"), &binding).await.expect(201);
        assert_eq!(apply(&user, "one").await, 403, "the object does not exist, and the user lacks `create`");
        assert_eq!(apply(&admin, "one").await, 201);
        assert_eq!(apply(&user, "one").await, 200);
        let more = json!({"rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["patch", "create"]}]});
        admin.patch(&format!("{roles}/applier"), "application/merge-patch+json", &more).await.expect(200);
        assert_eq!(apply(&user, "two").await, 201);
    }
}
