//! Authorization modes by flag (A-MODE): supported modes, their order, and the ABAC policy file.

use std::process::Stdio;

use serde_json::json;
use tests::harness::{ControlPlane, Options};

fn mode(mode: &str) -> Options {
    Options { mode: mode.to_owned(), ..Options::kubernetes() }
}

/// Writes an ABAC policy file with the given specs.
fn policies(specs: &[&str]) -> tempfile::NamedTempFile {
    let line = |spec: &&str| {
        format!(r#"{{"apiVersion":"abac.authorization.k8s.io/v1beta1","kind":"Policy","spec":{spec}}}"#)
    };
    let text = format!("# ABAC policies\n\n{}\n", specs.iter().map(line).collect::<Vec<_>>().join("\n"));
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), text).expect("the policy file");
    file
}

fn with_policies(modes: &str, file: &tempfile::NamedTempFile) -> Options {
    mode(modes).flag(&format!("--authorization-policy-file={}", file.path().display()))
}

#[tokio::test]
async fn always_allow_mode_permits_every_request() {
    // Without the flag anonymous requests are rejected, including the readiness checks of the harness.
    let plane = ControlPlane::start(mode("AlwaysAllow").flag("--anonymous-auth=true")).await;
    let maps = "/api/v1/namespaces/default/configmaps";
    for (client, name) in [(plane.user("carol"), "m"), (plane.anonymous(), "n")] {
        client.post(maps, &json!({"metadata": {"name": name}})).await.expect(201);
        client.delete(&format!("{maps}/{name}")).await.expect(200);
    }
}

#[tokio::test]
async fn rbac_mode_and_node_mode_authorize_their_own_users() {
    for (modes, node, bound) in [("RBAC", 403, 200), ("Node,RBAC", 200, 200)] {
        let plane = ControlPlane::start(mode(modes)).await;
        let admin = plane.admin();
        let group = "rbac.authorization.k8s.io";
        let rules = json!([{"apiGroups": [""], "resources": ["services"], "verbs": ["list"]}]);
        let roles = format!("/apis/{group}/v1/clusterroles");
        admin.post(&roles, &json!({"metadata": {"name": "services"}, "rules": rules})).await.expect(201);
        let binding = json!({
            "metadata": {"name": "services"}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "services"},
            "subjects": [{"kind": "User", "apiGroup": group, "name": "alice"}],
        });
        admin.post(&roles.replace("clusterroles", "clusterrolebindings"), &binding).await.expect(201);
        let agent = plane.certificate("system:node:n1", &["system:nodes"]);
        agent.get("/api/v1/services").await.expect(node);
        plane.user("alice").get("/api/v1/services").await.expect(bound);
        plane.user("bob").get("/api/v1/services").await.expect(403);
        assert!(!plane.log().contains("is not built"), "{}", plane.log());
    }
}

#[tokio::test]
async fn abac_policy_file_authorizes_by_user_group_and_path() {
    let file = policies(&[
        r#"{"user":"alice","namespace":"a","resource":"configmaps","readonly":true}"#,
        r#"{"group":"team-b","namespace":"*","resource":"configmaps"}"#,
        r#"{"user":"carol","nonResourcePath":"/version"}"#,
        r#"{"group":"system:unauthenticated","nonResourcePath":"/readyz","readonly":true}"#,
    ]);
    let plane = ControlPlane::start(with_policies("ABAC", &file)).await;
    let admin = plane.admin();
    for name in ["a", "b"] {
        admin.post("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await.expect(201);
    }
    let maps = |namespace: &str| format!("/api/v1/namespaces/{namespace}/configmaps");
    let map = json!({"metadata": {"name": "m"}});
    for (user, in_a, write_a, in_b) in
        [("alice", 200, 403, 403), ("bob", 200, 201, 200), ("carol", 403, 403, 403)]
    {
        let client = plane.user(user);
        client.get(&maps("a")).await.expect(in_a);
        client.post(&maps("a"), &map).await.expect(write_a);
        client.get(&maps("b")).await.expect(in_b);
    }
    plane.user("carol").get("/version").await.expect(200);
    plane.user("alice").get("/version").await.expect(403);
}

/// Migration from ABAC to RBAC: with both modes active, an allow of either one is enough.
#[tokio::test]
async fn rbac_and_abac_modes_allow_if_either_allows() {
    let file = policies(&[r#"{"user":"alice","namespace":"*","resource":"configmaps"}"#]);
    let plane = ControlPlane::start(with_policies("RBAC,ABAC", &file)).await;
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": {"name": "bob"}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "view"},
        "subjects": [{"kind": "User", "apiGroup": group, "name": "bob"}],
    });
    plane.admin().post(&format!("/apis/{group}/v1/clusterrolebindings"), &binding).await.expect(201);
    for (user, maps, pods) in [("alice", 200, 403), ("bob", 200, 200), ("carol", 403, 403)] {
        plane.user(user).get("/api/v1/namespaces/default/configmaps").await.expect(maps);
        plane.user(user).get("/api/v1/namespaces/default/pods").await.expect(pods);
    }
}

/// authd exits with code 64 and names the fault in the modes or in the ABAC policy file.
#[tokio::test]
async fn invalid_authorization_mode_or_policy_file_fails_startup() {
    let bad = policies(&[r#"{"user":"alice"}"#, r#"{"usr":"bob"}"#]);
    let file = format!("--authorization-policy-file={}", bad.path().display());
    for (modes, flag, expected) in [
        ("ABAC", None, "--authorization-policy-file"),
        ("RBAC,ABAC", Some(file.as_str()), "line 4"),
        ("RBAC", Some(file.as_str()), "--authorization-policy-file"),
        ("RBAC,RBAC", None, "`RBAC` is duplicated"),
        ("Foo", None, "unknown mode `Foo`"),
    ] {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut command = std::process::Command::new(tests::harness::program("authd"));
        command.arg("--socket").arg(dir.path().join("s")).args(["--authorization-mode", modes]).args(flag);
        command.args(["--names", "kubernetes"]).stdin(Stdio::null());
        let output = command.output().expect("authd runs");
        let said =
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(64), "{modes} {flag:?}: {said}");
        assert!(said.contains(expected), "{modes} {flag:?}: {said}");
    }
}
