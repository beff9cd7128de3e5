//! Authentication: credentials, the identity cache, impersonation and service-account tokens.

pub(super) mod authenticate;
pub(super) mod cache;
pub(super) mod credentials;
pub(super) mod dependencies;
pub(super) mod header_credentials;
pub(super) mod impersonation;
pub(super) mod metrics;
pub(super) mod tokens;
