//! Role: rules for one namespace.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use super::{GROUP, rule};
use crate::{Context, Kind, NameRule, STANDARD_VERBS, Storage, Strategy};

pub(super) const KIND: Kind = Kind {
    group: GROUP,
    versions: &["v1"],
    kind: "Role",
    resource: "roles",
    singular: "role",
    short_names: &[],
    categories: &[],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "rbac/v1.Role",
    strategy: &Role,
};

struct Role;

impl Strategy for Role {
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn create_on_update(&self) -> bool {
        true
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        rule::validate(object, true)
    }
}
