//! API group `apiextensions`: user-defined kinds.

use crate::Kind;

mod custom_resource_definition;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[Kind] = &[custom_resource_definition::KIND];
