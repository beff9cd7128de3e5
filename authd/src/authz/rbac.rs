//! The RBAC authorizer: roles and bindings (requirements A-RBAC).
//!
//! # Invariants
//!
//! INVARIANT (exact dependencies): an allow through a ClusterRoleBinding depends on cluster-wide roles and
//! bindings only.
//! Every other decision on a namespaced request also depends on the Roles and RoleBindings of its namespace.

use apimachinery::decision::{Decision, Verdict};
use apimachinery::user::UserInfo;
use async_trait::async_trait;
use authproto::auth::Dependencies;

use super::entry::Entry;
use super::{Authorizer, AuthzOutcome, AuthzRequest, Rules, Settings};
use crate::config_error::ConfigError;
use crate::mirror::{AtLeast, MirrorNotReady};
use crate::rules::{Explanation, RbacDecision, RulesLimit, UserRules};

/// The maximum number of rules in a list of the rules of a user.
const MAX_RULES: usize = 10_000;
/// The maximum size in memory of a list of the rules of a user, in bytes.
const MAX_RULE_BYTES: usize = 4 * 1024 * 1024;
const LIST_LIMIT: RulesLimit = RulesLimit::new(MAX_RULES, MAX_RULE_BYTES);

struct Rbac;

pub(super) fn build(_: &Settings, _: &Entry) -> Result<Box<dyn Authorizer>, ConfigError> {
    Ok(Box::new(Rbac))
}

#[async_trait]
impl Authorizer for Rbac {
    async fn authorize(&self, request: AuthzRequest<'_>) -> Result<AuthzOutcome, MirrorNotReady> {
        let AuthzRequest { user, attributes, at_least } = request;
        let rbac_decision = at_least.policy()?.decide(user, attributes);
        let (verdict, reason, any_name, cluster_wide) = match rbac_decision {
            RbacDecision::Allowed { reason, cluster_wide, any_name } => {
                (Verdict::Allow, reason, any_name, cluster_wide)
            }
            RbacDecision::NotAllowed { reason, any_name } => {
                tracing::debug!(
                    user = user.name,
                    verb = attributes.verb,
                    group = attributes.group,
                    resource = attributes.resource,
                    subresource = attributes.subresource,
                    namespace = attributes.namespace,
                    name = attributes.name,
                    path = attributes.path,
                    reason,
                    "RBAC: no rule allows the request"
                );
                (Verdict::NoOpinion, reason, any_name, false)
            }
        };
        let namespaced = attributes.resource_request && !attributes.namespace.is_empty() && !cluster_wide;
        let depends_on = Dependencies {
            rbac_cluster: true,
            rbac_namespace: namespaced.then(|| attributes.namespace.clone()).into_iter().collect(),
            ..Dependencies::default()
        };
        let decision = Decision { verdict, reason, evaluation_error: String::new() };
        Ok(AuthzOutcome { decision, depends_on, any_name, ..AuthzOutcome::default() })
    }

    fn rules(
        &self,
        user: &UserInfo,
        namespace: &str,
        at_least: AtLeast<'_>,
    ) -> Result<Rules, MirrorNotReady> {
        let UserRules { rules, mut problems, is_truncated } =
            at_least.policy()?.rules_of(user, namespace, LIST_LIMIT);
        if is_truncated {
            problems.push(format!(
                "the list ends at the limit of {MAX_RULES} rules and {MAX_RULE_BYTES} bytes; further rules are left out"
            ));
        }
        let rules = rules.iter().map(|rule| (**rule).clone()).collect();
        Ok(Rules { rules, incomplete: is_truncated, problems })
    }

    fn explain(&self, request: AuthzRequest<'_>) -> Result<Explanation, MirrorNotReady> {
        let AuthzRequest { user, attributes, at_least } = request;
        Ok(at_least.policy()?.explain(user, attributes))
    }
}
