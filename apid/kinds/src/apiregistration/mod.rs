//! The group `apiregistration`: who serves which group.

use crate::Kind;

mod api_service;

/// Its kinds, in discovery's order.
pub(crate) const KINDS: &[Kind] = &[api_service::KIND];
