//! Objects of admission policies for the tests of validating and of mutating policies.

use serde_json::{Value, json};
use tests::harness::{ControlPlane, Options};

/// Adds the flags that run mutating policies.
pub(super) fn with_mutating_policies(options: Options) -> Options {
    options.flag("--feature-gates=MutatingAdmissionPolicy=true").flag("--runtime-config=api/alpha=true")
}

/// Creates a policy on writes of config maps and deployments, with a binding of the same name.
pub(super) async fn create_mutating_policy(
    plane: &ControlPlane,
    name: &str,
    policy: Value,
    binding: Value,
) -> String {
    let group = plane.api("admissionregistration", "v1alpha1");
    let rule = json!({"apiGroups": ["", "apps"], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"],
        "resources": ["configmaps", "deployments"]});
    let spec = json!({"matchConstraints": {"resourceRules": [rule]}, "reinvocationPolicy": "Never"});
    let policy = json!({"metadata": {"name": name}, "spec": merge(spec, policy)});
    let created = plane.admin().post(&format!("{group}/mutatingadmissionpolicies"), &policy).await;
    created.expect(201);
    let binding = json!({"metadata": {"name": name}, "spec": merge(json!({"policyName": name}), binding)});
    plane.admin().post(&format!("{group}/mutatingadmissionpolicybindings"), &binding).await.expect(201);
    created.header("warning").to_owned()
}

/// A mutation by an apply configuration.
pub(super) fn apply(expression: &str) -> Value {
    json!({"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}})
}

/// Adds the fields of an object to those of another one.
pub(super) fn merge(mut base: Value, more: Value) -> Value {
    for (field, value) in more.as_object().expect("an object") {
        base[field] = value.clone();
    }
    base
}
