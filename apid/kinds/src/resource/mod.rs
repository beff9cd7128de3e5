//! API group `resource`: devices, and claims for them. All kinds are off by default.

use crate::BuiltInKind;

mod claim_rules;
mod conversion;
mod device_class;
mod device_taint_rule;
mod resource_claim;
mod resource_claim_template;
mod resource_slice;
mod rules;
mod slice_rules;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] = &[
    device_class::KIND,
    device_class::V1BETA1,
    device_class::V1ALPHA3,
    device_taint_rule::KIND,
    resource_claim::KIND,
    resource_claim::V1BETA1,
    resource_claim::V1ALPHA3,
    resource_claim_template::KIND,
    resource_claim_template::V1BETA1,
    resource_claim_template::V1ALPHA3,
    resource_slice::KIND,
    resource_slice::V1BETA1,
    resource_slice::V1ALPHA3,
];
