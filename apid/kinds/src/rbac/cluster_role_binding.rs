//! ClusterRoleBinding: grants a ClusterRole in the whole cluster.

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
    strategy: &ClusterRoleBinding,
    ..Kind::cluster_scoped("rbac/v1.ClusterRoleBinding", "clusterrolebindings")
};

struct ClusterRoleBinding;

impl Strategy for ClusterRoleBinding {
    fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        binding::default(object, ctx);
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        binding::validate(object, &["ClusterRole"], false, ctx)
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        binding::validate_update(new, old)
    }
}
