//! The group `discovery`: where services are.

use crate::Kind;

mod endpoint_slice;

/// Its kinds, in discovery's order.
pub(crate) const KINDS: &[Kind] = &[endpoint_slice::KIND];
