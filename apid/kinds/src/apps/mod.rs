//! API group `apps`: workload controllers.

use crate::BuiltInKind;

mod controller_revision;
mod daemon_set;
mod deployment;
mod replica_set;
mod stateful_set;
mod stateful_set_rules;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] =
    &[controller_revision::KIND, daemon_set::KIND, deployment::KIND, replica_set::KIND, stateful_set::KIND];
