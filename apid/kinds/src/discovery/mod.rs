//! API group `discovery`: endpoint slices.

use crate::Kind;

mod endpoint_slice;
mod endpoint_slice_rules;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[Kind] = &[endpoint_slice::KIND];
