//! RoleBinding: grants a role in its own namespace.

use super::GROUP;
use super::binding::{self, BindingRules};
use crate::{Kind, NameRule};

pub(super) const KIND: Kind = Kind {
    group: GROUP,
    name_rule: NameRule::PathSegment,
    create_on_update: true,
    columns: binding::COLUMNS,
    cells: binding::cells,
    strategy: &BindingRules { roles: &["Role", "ClusterRole"], namespaced: true },
    ..Kind::namespaced("rbac/v1.RoleBinding", "rolebindings")
};
