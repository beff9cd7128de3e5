//! The group `node`: how nodes run pods.

use crate::Kind;

mod runtime_class;

/// Its kinds, in discovery's order.
pub(crate) const KINDS: &[Kind] = &[runtime_class::KIND];
