//! API group `policy`: pod disruption budgets.

use crate::BuiltInKind;

mod pod_disruption_budget;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] = &[pod_disruption_budget::KIND];
