//! API group `autoscaling`: horizontal pod autoscalers.

use crate::BuiltInKind;

mod horizontal_pod_autoscaler;
mod horizontal_pod_autoscaler_rules;
mod horizontal_pod_autoscaler_v1;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] =
    &[horizontal_pod_autoscaler::KIND, horizontal_pod_autoscaler_v1::KIND];
