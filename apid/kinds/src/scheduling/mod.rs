//! API group `scheduling`: priority classes.

use crate::Kind;

mod priority_class;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[Kind] = &[priority_class::KIND];
