//! Service-account tokens: authd signs them and knows the keys.

use apimachinery::status::Status;
use authproto::auth::{
    IssueTokenRequest, IssuedToken, KeysRequest, KeysResponse, issue_token_response::Outcome,
};

use super::Auth;
use super::authority::{Undecided, from_failure};

impl Auth {
    /// A token as the request describes it; that its account and what it is bound to exist is the caller's to know.
    ///
    /// # Errors
    ///
    /// 500 when no key signs tokens, 503 when authd cannot be asked.
    pub async fn issue_token(&self, request: IssueTokenRequest) -> Result<IssuedToken, Status> {
        match self.authority.issue_token(request).await?.outcome {
            Some(Outcome::Token(token)) => Ok(token),
            Some(Outcome::Failure(failure)) => {
                tracing::error!(reason = failure.detail, "a service-account token was not issued");
                Err(from_failure(&failure))
            }
            None => Err(Undecided::Malformed.into()),
        }
    }

    /// The keys that verify tokens, and the discovery document of their issuer. `address`: host and port of this server.
    ///
    /// # Errors
    ///
    /// 503 when authd cannot be asked.
    pub async fn keys(&self, address: &str) -> Result<KeysResponse, Status> {
        Ok(self.authority.keys(KeysRequest { address: address.to_owned() }).await?)
    }
}
