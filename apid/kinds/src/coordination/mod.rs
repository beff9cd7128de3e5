//! The group `coordination`: how processes agree.

use crate::Kind;

mod lease;

/// Its kinds, in discovery's order.
pub(crate) const KINDS: &[Kind] = &[lease::KIND];
