//! ClusterRoleBinding: grants a ClusterRole in the whole cluster.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use super::{GROUP, binding};
use crate::{Context, Kind, NameRule, STANDARD_VERBS, Storage, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: GROUP,
    versions: &["v1"],
    kind: "ClusterRoleBinding",
    resource: "clusterrolebindings",
    singular: "clusterrolebinding",
    short_names: &[],
    categories: &[],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "rbac/v1.ClusterRoleBinding",
    strategy: &ClusterRoleBinding,
};

struct ClusterRoleBinding;

impl Strategy for ClusterRoleBinding {
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
        binding::validate(object, &["ClusterRole"], false, ctx)
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        binding::validate_update(new, old)
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&binding::TABLE)
    }
}
