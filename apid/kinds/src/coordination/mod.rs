//! API group `coordination`: leases and candidates for them.

use crate::BuiltInKind;

mod lease;
mod lease_candidate;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] = &[lease_candidate::KIND, lease_candidate::V1ALPHA2, lease::KIND];
