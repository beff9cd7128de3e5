//! The authorizers AlwaysAllow and AlwaysDeny, for tests (requirements A-MODE-1 to A-MODE-4).

use std::sync::Arc;

use apimachinery::decision::{Decision, Verdict};
use apimachinery::user::UserInfo;
use async_trait::async_trait;

use super::entry::Entry;
use super::{Authorizer, AuthzOutcome, AuthzRequest, Rules, Settings};
use crate::config_error::ConfigError;
use crate::mirror::{Mirror, MirrorNotReady};
use crate::rules::PolicyRule;
use crate::rules::rule::string_list;

struct ConstantAuthorizer {
    verdict: Verdict,
    reason: &'static str,
}

pub(super) fn allow(_: &Settings, _: &Entry, _: &Arc<Mirror>) -> Result<Box<dyn Authorizer>, ConfigError> {
    Ok(Box::new(ConstantAuthorizer { verdict: Verdict::Allow, reason: "" }))
}

/// Builds AlwaysDeny, which has no opinion, as in Kubernetes: a later authorizer may allow.
pub(super) fn deny(_: &Settings, _: &Entry, _: &Arc<Mirror>) -> Result<Box<dyn Authorizer>, ConfigError> {
    Ok(Box::new(ConstantAuthorizer { verdict: Verdict::NoOpinion, reason: "Everything is forbidden." }))
}

#[async_trait]
impl Authorizer for ConstantAuthorizer {
    async fn authorize(&self, _: AuthzRequest<'_>) -> Result<AuthzOutcome, MirrorNotReady> {
        let decision =
            Decision { verdict: self.verdict, reason: self.reason.to_owned(), ..Decision::default() };
        Ok(AuthzOutcome { decision, any_name: true, ..AuthzOutcome::default() })
    }

    fn rules(&self, _: &UserInfo, _: &str, _: u64) -> Result<Rules, MirrorNotReady> {
        if self.verdict != Verdict::Allow {
            return Ok(Rules::default());
        }
        let all = || string_list(&["*"]);
        let resources =
            PolicyRule { verbs: all(), api_groups: all(), resources: all(), ..PolicyRule::default() };
        let paths = PolicyRule { verbs: all(), non_resource_urls: all(), ..PolicyRule::default() };
        Ok(Rules { rules: vec![resources, paths], ..Rules::default() })
    }
}
