//! ClusterRoleBinding: grants a ClusterRole in the whole cluster.

use super::GROUP;
use super::binding::{self, BindingRules};
use crate::{Kind, NameRule};

pub(super) const KIND: Kind = Kind {
    group: GROUP,
    name_rule: NameRule::PathSegment,
    create_on_update: true,
    columns: binding::COLUMNS,
    cells: binding::cells,
    strategy: &BindingRules { roles: &["ClusterRole"], namespaced: false },
    ..Kind::cluster_scoped("rbac/v1.ClusterRoleBinding", "clusterrolebindings")
};
