//! ClusterRoleBinding: grants a ClusterRole in the whole cluster.

use super::GROUP;
use super::binding::{self, BindingRules};
use crate::{BuiltInKind, NameRule, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    group: GROUP,
    rules: WriteRules { name_rule: NameRule::PathSegment, create_on_update: true, ..WriteRules::BUILT_IN },
    columns: binding::COLUMNS,
    cells: binding::cells,
    strategy: &BindingRules { roles: &["ClusterRole"], namespaced: false },
    ..BuiltInKind::cluster_scoped("rbac/v1.ClusterRoleBinding", "clusterrolebindings")
};
