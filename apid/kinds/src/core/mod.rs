//! The core group.

use crate::Kind;

mod config_map;
mod event;
mod immutable;
mod namespace;
mod secret;
mod service_account;

/// Its kinds, in discovery's order.
pub(crate) const KINDS: &[Kind] =
    &[config_map::KIND, event::KIND, namespace::KIND, secret::KIND, service_account::KIND];
