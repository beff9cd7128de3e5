//! The group `policy`: what disturbs pods how much.

use crate::Kind;

mod pod_disruption_budget;

/// Its kinds, in discovery's order.
pub(crate) const KINDS: &[Kind] = &[pod_disruption_budget::KIND];
