//! API group `node`: runtime classes.

use crate::BuiltInKind;

mod runtime_class;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] = &[runtime_class::KIND];
