//! `Authn`: issues service-account tokens, and serves the keys that verify them.

use apimachinery::review::MAX_AUDIENCES;
use authproto::auth::{self, issue_token_response::Outcome};
use tonic::{Request, Response, Status};

use super::{Components, status};
use crate::tokens::service_account::{self as tokens, Bound, Named};

pub(super) struct Service(pub(super) Components);

#[tonic::async_trait]
impl auth::authn_server::Authn for Service {
    async fn issue_token(
        &self,
        request: Request<auth::IssueTokenRequest>,
    ) -> Result<Response<auth::IssueTokenResponse>, Status> {
        let request = request.into_inner();
        if request.audiences.len() > MAX_AUDIENCES {
            return Err(status::incomplete("the request has too many audiences"));
        }
        let named = |object: &auth::ObjectRef| Named { name: object.name.clone(), uid: object.uid.clone() };
        let bound = match &request.bound_object {
            None => None,
            Some(object) => {
                let kind = match object.resource.as_str() {
                    "pods" => Bound::Pod,
                    "secrets" => Bound::Secret,
                    "nodes" => Bound::Node,
                    _ => return Err(status::incomplete("tokens are bound to pods, secrets or nodes")),
                };
                Some((kind, named(object)))
            }
        };
        let wanted = tokens::Request {
            namespace: request.namespace,
            account: Named { name: request.service_account, uid: request.service_account_uid },
            audiences: request.audiences,
            seconds: request.expiration_seconds,
            bound,
            node: request.node.as_ref().map(named),
        };
        let components = &self.0;
        let issued = match &components.issuer {
            Some(issuer) => issuer.issue(wanted, components.rng.uuid(), components.clock.now()),
            None => Err("no key for service-account tokens is configured".to_owned()),
        };
        let outcome = match issued {
            Ok(issued) => Outcome::Token(auth::IssuedToken {
                token: issued.token,
                expires_at_ms: issued.expires.as_millisecond(),
                audiences: issued.audiences,
                expiration_seconds: issued.seconds,
                id: issued.id,
            }),
            Err(reason) => Outcome::Failure(status::not_issued(reason)),
        };
        Ok(Response::new(auth::IssueTokenResponse { outcome: Some(outcome) }))
    }

    async fn keys(
        &self,
        request: Request<auth::KeysRequest>,
    ) -> Result<Response<auth::KeysResponse>, Status> {
        let address = request.into_inner().address;
        let Some(issuer) = &self.0.issuer else { return Ok(Response::new(auth::KeysResponse::default())) };
        let text = |value: serde_json::Value| value.to_string().into_bytes();
        Ok(Response::new(auth::KeysResponse {
            discovery_document: issuer.discovery(&address).map(text).unwrap_or_default(),
            jwks: text(issuer.jwks()),
        }))
    }
}
