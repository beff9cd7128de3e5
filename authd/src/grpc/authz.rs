//! `Authz`: lists the rules of a user, and checks writes of roles and bindings for escalation.

use std::future::ready;

use authproto::auth;
use tonic::{Request, Response, Status};

use super::{Components, min_revision, status};
use crate::authz::escalation::{self, Coverage, WrittenObject};

pub(super) struct AuthzService(pub(super) Components);

#[tonic::async_trait]
impl auth::authz_server::Authz for AuthzService {
    async fn rules(
        &self,
        request: Request<auth::RulesRequest>,
    ) -> Result<Response<auth::RulesResponse>, Status> {
        let components = self.0.caller(request.metadata());
        let request = request.into_inner();
        let at_least = min_revision(request.at_least.as_ref());
        let user = request.user.ok_or_else(|| status::incomplete_request("the request has no user"))?.into();
        let list = || {
            let authz = &components.config.current().authz;
            ready(authz.rules(&user, &request.namespace, components.at_least(at_least)))
        };
        let rules =
            components.retry_until_synced(at_least, list).await.map_err(status::mirror_unavailable)?;
        Ok(Response::new(auth::RulesResponse {
            rules: rules.rules.iter().map(auth::PolicyRule::from).collect(),
            incomplete: rules.incomplete,
            evaluation_error: rules.problems.join(", "),
        }))
    }

    async fn covers(
        &self,
        request: Request<auth::CoversRequest>,
    ) -> Result<Response<auth::CoversResponse>, Status> {
        let components = self.0.caller(request.metadata());
        let request = request.into_inner();
        let at_least = min_revision(request.at_least.as_ref());
        let user =
            request.user.clone().ok_or_else(|| status::incomplete_request("the request has no user"))?.into();
        let group = components.names.group("rbac.authorization");
        let written = WrittenObject::from_request(&request).map_err(status::incomplete_request)?;
        let namespace = request.namespace.as_str();
        let check = || async {
            let modes = &components.config.current().authz;
            let policy = components.at_least(at_least);
            escalation::check(modes, &group, &user, written, namespace, policy).await
        };
        let coverage = components.retry_until_synced(at_least, check).await;
        Ok(Response::new(match coverage.map_err(status::mirror_unavailable)? {
            Coverage::Covered => auth::CoversResponse { allowed: true, ..auth::CoversResponse::default() },
            Coverage::RoleNotFound(message) => {
                auth::CoversResponse { role_not_found: true, message, ..auth::CoversResponse::default() }
            }
            Coverage::Lacking(message, missing) => auth::CoversResponse {
                missing: missing.iter().map(auth::PolicyRule::from).collect(),
                message,
                ..auth::CoversResponse::default()
            },
        }))
    }
}
