//! Redacted `Debug` for messages with secrets. The output shows other fields, and at most the size of a
//! secret.

use std::fmt;

use crate::auth::{AuthenticateRequest, Header, IssuedToken, MirrorSecret};

impl fmt::Debug for AuthenticateRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthenticateRequest")
            .field("certificate_chain", &format_args!("{} certificates", self.certificate_chain.len()))
            .field("bearer_token", &format_args!("{} bytes", self.bearer_token.len()))
            .field("proxy_headers", &self.proxy_headers)
            .field("audiences", &self.audiences)
            .field("path", &self.path)
            .field("unreadable", &self.unreadable)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Header").field("name", &self.name).finish_non_exhaustive()
    }
}

impl fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedToken").field("expires_at_ms", &self.expires_at_ms).finish_non_exhaustive()
    }
}

impl fmt::Debug for MirrorSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MirrorSecret").field("type", &self.r#type).finish_non_exhaustive()
    }
}
