//! The group `rbac.authorization`: who may do what.

use crate::Kind;

mod binding;
mod cluster_role;
mod cluster_role_binding;
mod role;
mod role_binding;
mod rule;

/// Its kinds, in discovery's order.
pub(crate) const KINDS: &[Kind] =
    &[cluster_role_binding::KIND, cluster_role::KIND, role_binding::KIND, role::KIND];

/// Stem of the group.
const GROUP: &str = "rbac.authorization";
