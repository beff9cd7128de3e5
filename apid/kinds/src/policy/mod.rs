//! API group `policy`: pod disruption budgets.

use crate::Kind;

mod pod_disruption_budget;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[Kind] = &[pod_disruption_budget::KIND];
