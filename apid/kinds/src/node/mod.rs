//! API group `node`: runtime classes.

use crate::Kind;

mod runtime_class;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[Kind] = &[runtime_class::KIND];
