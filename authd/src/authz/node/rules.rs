//! The rules of all nodes: those of the default ClusterRole `system:node`, which has no binding, and reads of
//! endpoints.

use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use authproto::auth;

use crate::rules::PolicyRule;

/// The name of the default ClusterRole.
const ROLE: &str = "system:node";

/// Returns the rules that apply to every node.
pub(super) fn node_rules(names: &Names) -> Vec<PolicyRule> {
    let defaults = bootstrap::default_policy(names);
    let role = defaults.cluster_roles.iter().find(|role| role.name() == ROLE);
    let rules = role.and_then(|role: &Object| role.get("rules")).and_then(Value::as_array);
    let read_endpoints = auth::PolicyRule {
        verbs: ["get", "list", "watch"].map(str::to_owned).to_vec(),
        api_groups: vec![String::new()],
        resources: vec!["endpoints".to_owned()],
        ..auth::PolicyRule::default()
    };
    let role_rules = rules.into_iter().flatten().map(rule);
    role_rules.chain([read_endpoints]).map(|rule| PolicyRule::from(&rule)).collect()
}

/// Converts a rule from its API form. Rules of nodes have no non-resource URLs.
fn rule(value: &Value) -> auth::PolicyRule {
    let words = |field: &str| {
        let words = value.get(field).and_then(Value::as_array).into_iter().flatten();
        words.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    auth::PolicyRule {
        verbs: words("verbs"),
        api_groups: words("apiGroups"),
        resources: words("resources"),
        resource_names: words("resourceNames"),
        non_resource_urls: Vec::new(),
    }
}
