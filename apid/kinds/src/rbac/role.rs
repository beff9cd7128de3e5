//! Role: rules for one namespace.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use super::{GROUP, rule};
use crate::{Context, Kind, NameRule, Strategy};

pub(super) const KIND: Kind = Kind {
    group: GROUP,
    name_rule: NameRule::PathSegment,
    create_on_update: true,
    strategy: &Role,
    ..Kind::namespaced("rbac/v1.Role", "roles")
};

struct Role;

impl Strategy for Role {
    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        rule::validate(object, true)
    }
}
