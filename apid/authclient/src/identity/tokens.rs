//! Service-account tokens: authd holds the keys and signs the tokens.

use apimachinery::status::Status;
use authproto::auth::{
    IssueTokenRequest, IssuedToken, KeysRequest, KeysResponse, issue_token_response::Outcome,
};

use crate::Auth;
use crate::transport::authd_api::{AuthdError, from_failure};

impl Auth {
    /// Issues a service-account token.
    ///
    /// The caller must check that the ServiceAccount and the bound object exist.
    ///
    /// # Errors
    ///
    /// 500 when no signing key is configured, 503 when authd does not respond.
    pub async fn issue_token(&self, request: IssueTokenRequest) -> Result<IssuedToken, Status> {
        match self.authd_api.issue_token(request).await?.outcome {
            Some(Outcome::Token(token)) => Ok(token),
            Some(Outcome::Failure(failure)) => {
                tracing::error!(
                    reason = failure.detail,
                    "authd issued no service-account token; the request fails"
                );
                Err(from_failure(&failure))
            }
            None => Err(AuthdError::Malformed.into()),
        }
    }

    /// Returns the keys that verify service-account tokens, and the discovery document of the issuer.
    ///
    /// `address`: host and port of this server.
    ///
    /// # Errors
    ///
    /// 503 when authd does not respond.
    pub async fn keys(&self, address: &str) -> Result<KeysResponse, Status> {
        Ok(self.authd_api.keys(KeysRequest { address: address.to_owned() }).await?)
    }
}
