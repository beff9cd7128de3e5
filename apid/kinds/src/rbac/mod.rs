//! API group `rbac.authorization`: roles and role bindings.

use crate::BuiltInKind;

mod binding;
mod cluster_role;
mod cluster_role_binding;
mod role;
mod role_binding;
mod rule;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] =
    &[cluster_role_binding::KIND, cluster_role::KIND, role_binding::KIND, role::KIND];

/// Stem of the group.
const GROUP: &str = "rbac.authorization";
