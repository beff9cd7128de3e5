//! The group `scheduling`: what comes first.

use crate::Kind;

mod priority_class;

/// Its kinds, in discovery's order.
pub(crate) const KINDS: &[Kind] = &[priority_class::KIND];
