//! The connection to authd: the decision stream, the policy mirror and their state.

pub(super) mod authd_api;
pub(super) mod connection;
pub(super) mod mirror;
pub(super) mod outage_log;
pub(super) mod peer;
#[cfg(any(test, debug_assertions))]
pub(super) mod scripted;
pub(super) mod servers;
pub(super) mod stream;
