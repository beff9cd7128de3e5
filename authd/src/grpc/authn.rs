//! `Authn`: tokens that authd issues. Comes with service-account tokens; until then every call says so.

use authproto::auth;
use tonic::{Request, Response, Status};

use super::status;

pub(super) struct Service;

#[tonic::async_trait]
impl auth::authn_server::Authn for Service {
    async fn issue_token(
        &self,
        _: Request<auth::IssueTokenRequest>,
    ) -> Result<Response<auth::IssueTokenResponse>, Status> {
        Err(status::not_built("issuing tokens"))
    }

    async fn keys(&self, _: Request<auth::KeysRequest>) -> Result<Response<auth::KeysResponse>, Status> {
        Err(status::not_built("publishing keys"))
    }
}
