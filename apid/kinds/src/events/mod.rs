//! API group `events`: events in their newer form.

use crate::Kind;

mod event;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[Kind] = &[event::KIND];
