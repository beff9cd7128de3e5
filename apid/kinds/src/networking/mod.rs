//! API group `networking`: ingresses, network policies and service addresses.

use crate::BuiltInKind;

mod ingress;
mod ingress_class;
mod ingress_rules;
mod ip_address;
mod network_policy;
mod service_cidr;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] = &[
    ingress_class::KIND,
    ingress::KIND,
    ip_address::KIND,
    ip_address::V1BETA1,
    network_policy::KIND,
    service_cidr::KIND,
    service_cidr::V1BETA1,
];
