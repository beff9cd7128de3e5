//! The spec of TokenReviews and TokenExplanations: the token and the requested audiences.
//!
//! # Contract
//!
//! Without requested audiences the token must be valid for the API server.

use apimachinery::object::Object;
use apimachinery::status::Status;

use super::strings;
use crate::authn::{AuthenticatorUnion, Credentials};

/// A valid spec.
pub(super) struct TokenSpec<'a> {
    /// The token to review; never empty.
    pub(super) token: &'a str,
    /// The requested audiences; may be empty.
    pub(super) audiences: Vec<String>,
}

impl<'a> TokenSpec<'a> {
    /// Reads the spec of an object.
    ///
    /// # Errors
    ///
    /// A Status 400 with the message `missing_token_message` if the spec has no token.
    pub(super) fn read(object: &'a Object, missing_token_message: &str) -> Result<Self, Status> {
        let token = object.str_at(&["spec", "token"]).unwrap_or_default();
        if token.is_empty() {
            return Err(Status::bad_request(missing_token_message));
        }
        Ok(TokenSpec { token, audiences: strings(object.at(&["spec", "audiences"])) })
    }

    /// Returns the token as the only credential, for the requested audiences or those of the API server.
    pub(super) fn credentials<'c>(&'c self, authn: &'c AuthenticatorUnion) -> Credentials<'c> {
        let audiences = if self.audiences.is_empty() { authn.api_audiences() } else { &self.audiences };
        Credentials { token: self.token, audiences, ..Credentials::default() }
    }
}
