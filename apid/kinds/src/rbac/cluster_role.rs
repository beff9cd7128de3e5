//! ClusterRole: rules for the cluster or for namespaces of RoleBindings; may aggregate other roles.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;
use serde_json::Value;

use super::{GROUP, rule};
use crate::{Context, Kind, NameRule, Strategy, labels};

pub(super) const KIND: Kind = Kind {
    group: GROUP,
    name_rule: NameRule::PathSegment,
    create_on_update: true,
    strategy: &ClusterRole,
    ..Kind::cluster_scoped("rbac/v1.ClusterRole", "clusterroles")
};

struct ClusterRole;

impl Strategy for ClusterRole {
    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = rule::validate(object, false);
        if let Some(aggregation) = object.get("aggregationRule").filter(|a| a.is_object()) {
            errors.extend(validate_aggregation(aggregation));
        }
        errors
    }
}

fn validate_aggregation(aggregation: &Value) -> FieldErrors {
    let path = FieldPath::new("aggregationRule.clusterRoleSelectors");
    let selectors = aggregation.get("clusterRoleSelectors").and_then(Value::as_array);
    let selectors = selectors.map_or(&[][..], Vec::as_slice);
    if selectors.is_empty() {
        let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
        return FieldError::required(&path, detail).into();
    }
    let mut errors = FieldErrors::new();
    for (i, selector) in selectors.iter().enumerate() {
        let path = path.index(i);
        let found = labels::validate_selector(selector, &path);
        let is_valid = found.is_empty();
        errors.extend(found);
        if !is_valid {
            errors.push(FieldError::invalid(&path, Value::Null, "invalid label selector."));
        }
    }
    errors
}
