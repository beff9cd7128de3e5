//! API group `apiextensions`: user-defined kinds.

use crate::BuiltInKind;

mod custom_resource_definition;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] = &[custom_resource_definition::KIND];
