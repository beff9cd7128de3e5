//! The group `apiextensions`: kinds that users define.

use crate::Kind;

mod custom_resource_definition;

/// Its kinds, in discovery's order.
pub(crate) const KINDS: &[Kind] = &[custom_resource_definition::KIND];
