//! `Authn`: issues service-account tokens, and returns their discovery document and verifying keys.

use apimachinery::review::MAX_AUDIENCES;
use authproto::auth::{self, issue_token_response::Outcome};
use tonic::{Request, Response, Status};

use super::{Components, status};
use crate::tokens::service_account::{IssueError, ObjectIdentity, PrivateClaims, TokenParameters};

pub(super) struct AuthnService(pub(super) Components);

#[tonic::async_trait]
impl auth::authn_server::Authn for AuthnService {
    async fn issue_token(
        &self,
        request: Request<auth::IssueTokenRequest>,
    ) -> Result<Response<auth::IssueTokenResponse>, Status> {
        let request = request.into_inner();
        if request.audiences.len() > MAX_AUDIENCES {
            return Err(status::incomplete_request("the request has too many audiences"));
        }
        let object_identity = |object: auth::ObjectRef| ObjectIdentity { name: object.name, uid: object.uid };
        let mut claims = PrivateClaims {
            namespace: request.namespace,
            node: request.node.map(object_identity),
            serviceaccount: ObjectIdentity {
                name: request.service_account,
                uid: request.service_account_uid,
            },
            ..PrivateClaims::default()
        };
        if let Some(object) = request.bound_object {
            let bound = match object.resource.as_str() {
                "pods" => &mut claims.pod,
                "secrets" => &mut claims.secret,
                "nodes" => &mut claims.node,
                _ => return Err(status::incomplete_request("tokens are bound to pods, secrets or nodes")),
            };
            *bound = Some(object_identity(object));
        }
        let (audiences, seconds) = (request.audiences, request.expiration_seconds);
        let parameters = TokenParameters { claims, audiences, seconds };
        let components = &self.0;
        let result = match &components.issuer {
            Some(issuer) => issuer.issue(parameters, components.rng.uuid(), components.clock.now()),
            None => Err(IssueError::NoSigningKey),
        };
        let outcome = match result {
            Ok(issued) => Outcome::Token(auth::IssuedToken {
                token: issued.token,
                expires_at_ms: issued.expires.as_millisecond(),
                audiences: issued.audiences,
                expiration_seconds: issued.seconds,
                id: issued.id,
            }),
            Err(reason) => Outcome::Failure(status::token_not_issued(reason.to_string())),
        };
        Ok(Response::new(auth::IssueTokenResponse { outcome: Some(outcome) }))
    }

    async fn keys(
        &self,
        request: Request<auth::KeysRequest>,
    ) -> Result<Response<auth::KeysResponse>, Status> {
        let address = request.into_inner().address;
        let Some(issuer) = &self.0.issuer else { return Ok(Response::new(auth::KeysResponse::default())) };
        let json_bytes = |value: serde_json::Value| value.to_string().into_bytes();
        Ok(Response::new(auth::KeysResponse {
            discovery_document: issuer.discovery(&address).map(json_bytes).unwrap_or_default(),
            jwks: json_bytes(issuer.jwks()),
        }))
    }
}
