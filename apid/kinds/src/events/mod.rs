//! API group `events`: events in their newer form.

use crate::BuiltInKind;

mod event;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] = &[event::KIND];
