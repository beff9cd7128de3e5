//! RoleBinding: grants a role in its own namespace.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use super::{GROUP, binding};
use crate::{Context, Kind, NameRule, STANDARD_VERBS, Storage, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: GROUP,
    versions: &["v1"],
    kind: "RoleBinding",
    resource: "rolebindings",
    singular: "rolebinding",
    short_names: &[],
    categories: &[],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "rbac/v1.RoleBinding",
    strategy: &RoleBinding,
};

struct RoleBinding;

impl Strategy for RoleBinding {
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn create_on_update(&self) -> bool {
        true
    }

    fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        binding::default(object, ctx);
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        binding::validate(object, &["Role", "ClusterRole"], true, ctx)
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        binding::validate_update(new, old)
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&binding::TABLE)
    }
}
