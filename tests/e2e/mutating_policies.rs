//! MutatingAdmissionPolicy: changes, order with webhooks, dry runs, managed fields, metrics, and the feature gate.

use apimachinery::names::Preset;
use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options};

use super::admission_webhooks::{Hook, configure, patch};
use super::policy_objects::{apply, create_mutating_policy, with_mutating_policies};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

fn json_patch(expression: &str) -> Value {
    json!({"patchType": "JSONPatch", "jsonPatch": {"expression": expression}})
}

fn map(name: &str, data: Value) -> Value {
    json!({"metadata": {"name": name}, "data": data})
}

#[tokio::test]
async fn policy_changes_writes_and_dry_runs_and_owns_no_field() {
    for preset in [Preset::Svc, Preset::Kubernetes] {
        let options = Options { preset, ..Options::default() };
        let plane = ControlPlane::start(with_mutating_policies(options)).await;
        let admin = plane.admin();
        let label = "Object{metadata: Object.metadata{labels: {'by': request.userInfo.username}}}";
        let add =
            "[JSONPatch{op: 'add', path: '/data/' + jsonpatch.escapeKey('a.b'), value: variables.text}]";
        let variables = json!([{"name": "text", "expression": "object.data.k + '!'"}]);
        let condition = json!([{"name": "has-data", "expression": "has(object.data)"}]);
        let spec = json!({"mutations": [apply(label), json_patch(add)], "variables": variables,
            "matchConditions": condition});
        assert_eq!(
            create_mutating_policy(&plane, "p", spec, json!({})).await,
            "",
            "the policy is in effect without a warning"
        );
        for path in [format!("{MAPS}?dryRun=All"), MAPS.to_owned()] {
            let written = admin.post(&path, &map("m", json!({"k": "v"}))).await.expect(201);
            assert_eq!(written["data"], json!({"k": "v", "a.b": "v!"}));
            assert_eq!(written["metadata"]["labels"], json!({"by": "admin"}));
            let owned = written["metadata"]["managedFields"].to_string();
            assert!(
                owned.contains("f:k") && !owned.contains("f:labels") && !owned.contains("a.b"),
                "{owned}"
            );
        }
        let updated = admin.put(&format!("{MAPS}/m"), &map("m", json!({"k": "w"}))).await.expect(200);
        assert_eq!(updated["data"]["a.b"], "w!");
        let without = admin.post(MAPS, &json!({"metadata": {"name": "n"}})).await.expect(201);
        assert!(without["metadata"].get("labels").is_none(), "the match condition is false");
        let metrics = admin.get("/metrics").await.text();
        for line in [
            "apiserver_mutating_admission_policy_check_total{policy=\"p\",policy_binding=\"p\",error_type=\"no_error\"} 6",
            "apiserver_admission_match_condition_exclusions_total{name=\"p\",kind=\"policy\",type=\"validate\",operation=\"CREATE\"} 1",
        ] {
            assert!(metrics.contains(line), "{line}");
        }
    }
}

#[tokio::test]
async fn policies_run_before_webhooks_and_again_after_their_changes() {
    let hook = Hook::start(|_, request| match request["object"]["data"]["hook"].as_str() {
        Some(_) => patch(request, json!([])),
        None => patch(request, json!([{"op": "add", "path": "/data/hook", "value": "changed"}])),
    })
    .await;
    let plane = ControlPlane::start(with_mutating_policies(Options::kubernetes())).await;
    configure(&plane, "mutating", json!([hook.webhook("change", json!({}))])).await;
    for (name, policy) in [("again", "IfNeeded"), ("once", "Never")] {
        let append = format!(
            "Object{{data: Object.data{{{name}: 'hook' in object.data ? 'after the webhook' : 'before the webhook'}}}}"
        );
        create_mutating_policy(
            &plane,
            name,
            json!({"mutations": [apply(&append)], "reinvocationPolicy": policy}),
            json!({}),
        )
        .await;
    }
    let written = plane.admin().post(MAPS, &map("m", json!({"k": "v"}))).await.expect(201);
    let expected =
        json!({"k": "v", "again": "after the webhook", "once": "before the webhook", "hook": "changed"});
    assert_eq!(written["data"], expected);
    let reviews = hook.take();
    assert_eq!(reviews[0].1["request"]["object"]["data"]["again"], "before the webhook");
}

#[tokio::test]
async fn policy_without_feature_gate_is_stored_with_warning_and_has_no_effect() {
    let plane = ControlPlane::start(Options::default()).await;
    let group = plane.api("admissionregistration", "v1alpha1");
    plane.admin().get(&format!("{group}/mutatingadmissionpolicies")).await.expect(404);
    let names = plane.names();
    let version = format!("--runtime-config={}/v1alpha1=true", names.group("admissionregistration"));
    let plane = ControlPlane::start(Options::default().flag(&version)).await;
    let label = apply("Object{metadata: Object.metadata{labels: {'a': 'b'}}}");
    let warning = create_mutating_policy(&plane, "p", json!({"mutations": [label]}), json!({})).await;
    assert!(warning.contains("--feature-gates=MutatingAdmissionPolicy=true"), "{warning}");
    let written = plane.admin().post(MAPS, &map("m", json!({}))).await.expect(201);
    assert!(written["metadata"].get("labels").is_none());
}
