//! API group `certificates`: certificate signing requests and trust bundles.

use crate::BuiltInKind;

mod certificate_signing_request;
mod certificate_signing_request_rules;
mod cluster_trust_bundle;
pub(crate) mod pem;

pub use certificate_signing_request_rules::USAGES;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] =
    &[certificate_signing_request::KIND, cluster_trust_bundle::KIND, cluster_trust_bundle::V1ALPHA1];
