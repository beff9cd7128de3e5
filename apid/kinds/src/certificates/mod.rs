//! The group `certificates`: who gets one.

use crate::Kind;

mod certificate_signing_request;

/// Its kinds, in discovery's order.
pub(crate) const KINDS: &[Kind] = &[certificate_signing_request::KIND];
