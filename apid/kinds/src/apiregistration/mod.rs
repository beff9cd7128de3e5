//! API group `apiregistration`: servers of API groups.

use crate::Kind;

mod api_service;

/// Kinds of the group, in discovery order.
pub(crate) const KINDS: &[Kind] = &[api_service::KIND];
