//! The group `networking`: what reaches what.

use crate::Kind;

mod ingress;
mod ingress_class;
mod ip_address;
mod network_policy;
mod service_cidr;

/// Its kinds, in discovery's order.
pub(crate) const KINDS: &[Kind] =
    &[ingress_class::KIND, ingress::KIND, ip_address::KIND, network_policy::KIND, service_cidr::KIND];
