//! API group `certificates`: certificate signing requests.

use crate::Kind;

mod certificate_signing_request;
mod certificate_signing_request_rules;
mod pem;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[Kind] = &[certificate_signing_request::KIND];
