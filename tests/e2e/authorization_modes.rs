//! Authorization modes by flag (A-MODE): modes and their combination.

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
        let rules = json!([{"apiGroups": [""], "resources": ["services"], "verbs": ["list"]}]);
        plane.grant("", "services", "User/alice", &rules).await;
        let agent = plane.certificate("system:node:n1", &["system:nodes"]);
        agent.get("/api/v1/services").await.expect(node);
        plane.user("alice").get("/api/v1/services").await.expect(bound);
        plane.user("bob").get("/api/v1/services").await.expect(403);
        assert!(!plane.log().contains("is not built"), "{}", plane.log());
    }
}

/// Migration from ABAC to RBAC: with both modes active, an allow of either one is enough.
#[tokio::test]
async fn rbac_and_abac_modes_allow_if_either_allows() {
    let file = policies(&[r#"{"user":"alice","namespace":"*","resource":"configmaps"}"#]);
    let plane = ControlPlane::start(with_policies("RBAC,ABAC", &file)).await;
    plane.bind("", "bob", "ClusterRole/view", "User/bob").await;
    for (user, maps, pods) in [("alice", 200, 403), ("bob", 200, 200), ("carol", 403, 403)] {
        plane.user(user).get("/api/v1/namespaces/default/configmaps").await.expect(maps);
        plane.user(user).get("/api/v1/namespaces/default/pods").await.expect(pods);
    }
}
