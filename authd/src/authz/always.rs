//! The authorizers AlwaysAllow and AlwaysDeny, for tests (requirements A-MODE-1 to A-MODE-4).

use apimachinery::decision::{Decision, Verdict};
use apimachinery::user::UserInfo;
use async_trait::async_trait;

use super::entry::Entry;
use super::escalation::full_access_rules;
use super::{Authorizer, AuthzOutcome, AuthzRequest, Rules, Settings};
use crate::config_error::ConfigError;
use crate::mirror::{AtLeast, MirrorNotReady};

struct ConstantAuthorizer {
    verdict: Verdict,
    reason: &'static str,
}

pub(super) fn allow(_: &Settings, _: &Entry) -> Result<Box<dyn Authorizer>, ConfigError> {
    Ok(Box::new(ConstantAuthorizer { verdict: Verdict::Allow, reason: "" }))
}

/// Builds AlwaysDeny, which has no opinion, as in Kubernetes: a later authorizer may allow.
pub(super) fn deny(_: &Settings, _: &Entry) -> Result<Box<dyn Authorizer>, ConfigError> {
    Ok(Box::new(ConstantAuthorizer { verdict: Verdict::NoOpinion, reason: "Everything is forbidden." }))
}

#[async_trait]
impl Authorizer for ConstantAuthorizer {
    async fn authorize(&self, _: AuthzRequest<'_>) -> Result<AuthzOutcome, MirrorNotReady> {
        let decision =
            Decision { verdict: self.verdict, reason: self.reason.to_owned(), ..Decision::default() };
        Ok(AuthzOutcome { decision, any_name: true, ..AuthzOutcome::default() })
    }

    fn rules(&self, _: &UserInfo, _: &str, _: AtLeast<'_>) -> Result<Rules, MirrorNotReady> {
        if self.verdict != Verdict::Allow {
            return Ok(Rules::default());
        }
        Ok(Rules { rules: full_access_rules(), ..Rules::default() })
    }
}
