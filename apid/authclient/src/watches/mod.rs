//! Re-authorization and re-authentication of open watches.

pub(super) mod authorization;
pub(super) mod reauthentication;
