//! The group `autoscaling`: how many pods there should be.

use crate::Kind;

mod horizontal_pod_autoscaler;
mod horizontal_pod_autoscaler_v1;

/// Its kinds, in discovery's order.
pub(crate) const KINDS: &[Kind] = &[horizontal_pod_autoscaler::KIND, horizontal_pod_autoscaler_v1::KIND];
