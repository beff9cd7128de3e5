//! RoleBinding: grants a role in its own namespace.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use super::{GROUP, binding};
use crate::{Context, Kind, NameRule, Strategy};

pub(super) const KIND: Kind = Kind {
    group: GROUP,
    name_rule: NameRule::PathSegment,
    create_on_update: true,
    columns: binding::COLUMNS,
    cells: binding::cells,
    strategy: &RoleBinding,
    ..Kind::namespaced("rbac/v1.RoleBinding", "rolebindings")
};

struct RoleBinding;

impl Strategy for RoleBinding {
    fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        binding::default(object, ctx);
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        binding::validate(object, &["Role", "ClusterRole"], true, ctx)
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        binding::validate_update(new, old)
    }
}
