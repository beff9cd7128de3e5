//! Rules that the RBAC controllers write, and the log of denials (requirements A-DEF-63 and -64, D-SSA-29).
//!
//! `policies/bootstrap` tests the default objects, `authz_matrix.rs` the access that they grant, and `authd/src/rules`
//! the reconciliation.

use serde_json::{Value, json};
use tests::harness::{AuditLog, ControlPlane, Options, eventually};

fn roles(plane: &ControlPlane) -> String {
    plane.api("rbac.authorization", "v1")
}

#[tokio::test(flavor = "multi_thread")]
async fn rbac_denial_is_logged_at_verbosity_5() {
    let mut lines = Vec::new();
    for flag in ["-v=0", "--v=5"] {
        let plane = ControlPlane::start(Options::default().flag(flag)).await;
        plane.user("carol").get("/api/v1/namespaces").await.expect(403);
        lines.push(
            plane
                .log()
                .lines()
                .filter(|line| line.contains("RBAC: no rule allows the request") && line.contains("carol"))
                .count(),
        );
    }
    assert_eq!(lines[0], 0, "level 0 logs no RBAC denial");
    assert!(lines[1] > 0, "level 5 logs RBAC denials: {lines:?}");
}

/// The controller owns the rules of aggregated roles, so it applies them with force (requirement D-SSA-29).
#[tokio::test(flavor = "multi_thread")]
async fn aggregated_rules_are_applied_by_force_as_their_controller() {
    const CONTROLLER: &str = "clusterrole-aggregation-controller";
    let audit = AuditLog::new();
    let plane = ControlPlane::start(Options::default().flag(&audit.flag())).await;
    let (admin, base) = (plane.admin(), roles(&plane));
    let sum = json!({
        "metadata": {"name": "sum"},
        "aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"sum": "yes"}}]},
        "rules": [{"apiGroups": ["example.com"], "resources": ["written"], "verbs": ["get"]}],
    });
    let part = json!({
        "metadata": {"name": "part", "labels": {"sum": "yes"}},
        "rules": [{"apiGroups": ["example.com"], "resources": ["aggregated"], "verbs": ["get"]}],
    });
    let path = format!("{base}/clusterroles/sum");
    // Without a part, the controller first removes the written rules with a merge patch.
    for role in [part, sum] {
        admin.post(&format!("{base}/clusterroles"), &role).await.expect(201);
    }
    let role = eventually("the rules are aggregated", || async {
        let role = admin.get(&path).await.expect(200);
        (role["rules"][0]["resources"] == json!(["aggregated"])).then_some(role)
    })
    .await;
    let owners: Vec<&Value> = role["metadata"]["managedFields"]
        .as_array()
        .expect("managed fields")
        .iter()
        .filter(|entry| entry["fieldsV1"].get("f:rules").is_some())
        .collect();
    let [owner] = owners.as_slice() else { panic!("one owner of the rules: {owners:?}") };
    assert_eq!((&owner["manager"], &owner["operation"]), (&json!(CONTROLLER), &json!("Apply")));
    let is_write = |event: &Value| event["objectRef"]["name"] == "sum" && event["verb"] == "patch";
    let event = audit.event("the write of the controller", is_write).await;
    assert_eq!(event["requestURI"], format!("{path}?fieldManager={CONTROLLER}&force=true"));
    assert_eq!(event["userAgent"], format!("apid/{CONTROLLER}"));

    admin.delete(&format!("{base}/clusterroles/part")).await.expect(200);
    eventually("the rules are removed with the last part", || async {
        admin.get(&path).await.expect(200)["rules"].is_null().then_some(())
    })
    .await;
}
