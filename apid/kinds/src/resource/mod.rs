//! API group `resource`: devices, and claims for them.

use crate::Kind;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[Kind] = &[];
