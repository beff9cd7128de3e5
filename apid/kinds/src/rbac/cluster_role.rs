//! ClusterRole: rules for the cluster or for namespaces of RoleBindings; may aggregate other roles.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::Value;

use super::{GROUP, rule};
use crate::validation::Field;
use crate::{BuiltInKind, Context, NameRule, Strategy, WriteRules, labels};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    group: GROUP,
    rules: WriteRules { name_rule: NameRule::PathSegment, create_on_update: true, ..WriteRules::BUILT_IN },
    strategy: &ClusterRole,
    ..BuiltInKind::cluster_scoped("rbac/v1.ClusterRole", "clusterroles")
};

struct ClusterRole;

impl Strategy for ClusterRole {
    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = rule::validate(object, false);
        let aggregation = Field::new(object.get("aggregationRule"), "aggregationRule");
        if aggregation.is_present() {
            validate_selectors(&aggregation.child("clusterRoleSelectors"), &mut errors);
        }
        errors
    }
}

fn validate_selectors(selectors: &Field<'_, '_>, errors: &mut FieldErrors) {
    let detail = "at least one clusterRoleSelector required if aggregationRule is non-nil";
    selectors.require_items(detail, errors);
    for selector in selectors.items() {
        if !labels::validate_selector(&selector, errors) {
            errors.push(selector.invalid_value(Value::Null, "invalid label selector."));
        }
    }
}
