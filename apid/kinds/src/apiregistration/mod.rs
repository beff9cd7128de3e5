//! API group `apiregistration`: servers of API groups.

use crate::BuiltInKind;

mod api_service;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[BuiltInKind] = &[api_service::KIND];
