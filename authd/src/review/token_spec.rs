//! The spec of TokenReviews and TokenExplanations: the token and the requested audiences.
//!
//! # Contract
//!
//! [`TokenSpec::read`] is the only reader. Without requested audiences the token must be valid for the API server.

use apimachinery::object::Object;
use apimachinery::status::Status;

use super::strings;
use crate::authn::{Credentials, Union};

/// A spec with a token.
pub(super) struct TokenSpec<'a> {
    /// The token.
    pub(super) token: &'a str,
    /// The audiences of the spec; empty without such.
    pub(super) audiences: Vec<String>,
}

impl<'a> TokenSpec<'a> {
    /// Reads the spec of an object.
    ///
    /// # Errors
    ///
    /// 400 with the message `missing` without a token.
    pub(super) fn read(object: &'a Object, missing: &str) -> Result<Self, Status> {
        let token = object.str_at(&["spec", "token"]).unwrap_or_default();
        if token.is_empty() {
            return Err(Status::bad_request(missing));
        }
        Ok(TokenSpec { token, audiences: strings(object.at(&["spec", "audiences"])) })
    }

    /// The token as the only credential, for the requested audiences or those of the API server.
    pub(super) fn credentials<'c>(&'c self, authn: &'c Union) -> Credentials<'c> {
        let audiences = if self.audiences.is_empty() { authn.api_audiences() } else { &self.audiences };
        Credentials { token: self.token, audiences, ..Credentials::default() }
    }
}
