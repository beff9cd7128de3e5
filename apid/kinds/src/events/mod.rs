//! The group `events`: what happened to objects, in the newer form.

use crate::Kind;

mod event;

/// Its kinds, in discovery's order.
pub(crate) const KINDS: &[Kind] = &[event::KIND];
