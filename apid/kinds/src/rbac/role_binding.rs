//! RoleBinding: grants a role in its own namespace.

use super::GROUP;
use super::binding::{self, BindingRules};
use crate::{BuiltInKind, NameRule, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    group: GROUP,
    rules: WriteRules { name_rule: NameRule::PathSegment, create_on_update: true, ..WriteRules::BUILT_IN },
    columns: binding::COLUMNS,
    cells: binding::cells,
    strategy: &BindingRules { roles: &["Role", "ClusterRole"], namespaced: true },
    ..BuiltInKind::namespaced("rbac/v1.RoleBinding", "rolebindings")
};
