//! API group `scheduling`: priority classes.

use crate::BuiltInKind;

mod priority_class;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] = &[priority_class::KIND];
