//! The rules of all nodes: those of the default ClusterRole `system:node`, which has no binding, and reads of
//! endpoints.

use apimachinery::names::Names;

use crate::rules::PolicyRule;
use crate::rules::reconcile::role_spec;
use crate::rules::rule::string_list;

/// The name of the default ClusterRole.
const ROLE: &str = "system:node";

/// Returns the rules that apply to every node.
pub(super) fn node_rules(names: &Names) -> Vec<PolicyRule> {
    let defaults = bootstrap::default_policy(names);
    let role = defaults.cluster_roles.iter().find(|role| role.name() == ROLE);
    let read_endpoints = PolicyRule {
        verbs: string_list(&["get", "list", "watch"]),
        api_groups: string_list(&[""]),
        resources: string_list(&["endpoints"]),
        ..PolicyRule::default()
    };
    role.into_iter().flat_map(|role| role_spec(role, names).rules).chain([read_endpoints]).collect()
}
