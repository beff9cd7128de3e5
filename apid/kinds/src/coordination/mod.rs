//! API group `coordination`: leases.

use crate::Kind;

mod lease;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[Kind] = &[lease::KIND];
