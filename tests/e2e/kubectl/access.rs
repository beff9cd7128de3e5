//! RBAC with kubectl: roles, bindings, `auth can-i`, `auth whoami` and `auth reconcile`.

use tests::harness::ControlPlane;

use super::{Kubectl, with_each_release};

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_auth_can_i_follows_role_bindings() {
    with_each_release(auth_can_i).await;
}

fn auth_can_i(plane: &ControlPlane, admin: &Kubectl) {
    let alice = admin.user(plane, "alice");
    // kubectl 1.27 uses only alpha and beta versions of SelfSubjectReview.
    if alice.release() == "1.27" {
        assert!(alice.must_fail("auth whoami").contains("selfsubjectreviews API is not enabled"));
    } else {
        let whoami = alice.ok("auth whoami", "");
        for word in ["alice", "alice-uid", "[team-a system:authenticated]"] {
            assert!(whoami.contains(word), "{whoami}");
        }
    }
    assert!(alice.must_fail("get configmaps -n default").contains("Forbidden"));
    assert!(alice.must_fail("auth can-i get configmaps -n default").contains("no"));
    admin.ok("create role reader -n default --verb=get,list,watch --resource=configmaps,pods/log", "");
    admin.ok("create rolebinding readers -n default --role=reader --user=alice", "");
    assert!(alice.ok("auth can-i get configmaps -n default", "").contains("yes"));
    assert!(alice.ok("auth can-i get pods -n default --subresource=log", "").contains("yes"));
    assert!(alice.must_fail("auth can-i get pods -n default").contains("no"));
    alice.ok("get configmaps -n default", "");

    let rules = alice.ok("auth can-i --list -n default", "");
    let rows: Vec<Vec<&str>> = rules.lines().map(|line| line.split_whitespace().collect()).collect();
    for row in [
        vec!["Resources", "Non-Resource", "URLs", "Resource", "Names", "Verbs"],
        vec!["configmaps", "[]", "[]", "[get", "list", "watch]"],
        vec!["pods/log", "[]", "[]", "[get", "list", "watch]"],
        vec!["selfsubjectreviews.authentication.k8s.io", "[]", "[]", "[create]"],
        vec!["[/version]", "[]", "[get]"],
    ] {
        assert!(rows.contains(&row), "{row:?} in\n{rules}");
    }

    admin.ok("set subject rolebinding/readers -n default --user=bob", "");
    admin.user(plane, "bob").ok("get configmaps -n default", "");
    admin.ok("delete rolebinding readers -n default", "");
    assert!(alice.must_fail("get configmaps -n default").contains("Forbidden"));
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_diff_of_default_policy_manifests_is_empty() {
    with_each_release(diff_of_default_policy).await;
}

fn diff_of_default_policy(_: &ControlPlane, kubectl: &Kubectl) {
    const MANIFESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../policies/bootstrap/policy");
    let result = kubectl.run(&format!("diff -f {MANIFESTS}"), "");
    assert_eq!((result.status.code(), result.out.as_str()), (Some(0), ""), "{result}");

    kubectl.ok("set subject clusterrolebinding/system:monitoring --user=alice", "");
    let result = kubectl.run(&format!("diff -f {MANIFESTS}"), "");
    assert_eq!(result.status.code(), Some(1), "{result}");
    assert!(result.out.contains("-  name: alice"), "{result}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_auth_reconcile_updates_cluster_role() {
    with_each_release(auth_reconcile).await;
}

fn auth_reconcile(_: &ControlPlane, kubectl: &Kubectl) {
    let role = |verbs: &str| {
        format!(
            "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {{name: counters}}\n\
             rules: [{{apiGroups: [''], resources: [nodes], verbs: [{verbs}]}}]\n"
        )
    };
    let verbs =
        |kubectl: &Kubectl| kubectl.ok("get clusterrole counters -o 'jsonpath={.rules[*].verbs}'", "");
    assert!(kubectl.ok("auth reconcile -f -", &role("get")).contains("reconciled"));
    assert_eq!(verbs(kubectl), r#"["get"]"#);
    kubectl.ok("auth reconcile -f -", &role("get, list"));
    assert!(verbs(kubectl).contains("list"), "{}", verbs(kubectl));
    kubectl.ok("auth reconcile --remove-extra-permissions -f -", &role("list"));
    assert!(!verbs(kubectl).contains("get"), "{}", verbs(kubectl));
}
