//! Role: rules for one namespace.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use super::{GROUP, rule};
use crate::{BuiltInKind, Context, NameRule, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    group: GROUP,
    rules: WriteRules { name_rule: NameRule::PathSegment, create_on_update: true, ..WriteRules::BUILT_IN },
    strategy: &Role,
    ..BuiltInKind::namespaced("rbac/v1.Role", "roles")
};

struct Role;

impl Strategy for Role {
    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        rule::validate(object, true)
    }
}
