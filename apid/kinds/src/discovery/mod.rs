//! API group `discovery`: endpoint slices.

use crate::BuiltInKind;

mod endpoint_slice;
mod endpoint_slice_rules;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] = &[endpoint_slice::KIND];
