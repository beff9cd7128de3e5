//! The authorizers AlwaysAllow and AlwaysDeny, for tests (requirements A-MODE-1 to A-MODE-4).

use std::sync::Arc;

use apimachinery::decision::{Decision, Verdict};
use apimachinery::user::UserInfo;
use async_trait::async_trait;

use super::entry::Entry;
use super::{Answer, Authorizer, AuthzRequest, Rules, Settings};
use crate::mirror::{Mirror, MirrorNotReady};
use crate::rules::PolicyRule;
use crate::rules::rule::words;

struct Always {
    verdict: Verdict,
    reason: &'static str,
}

pub(super) fn allow(_: &Settings, _: &Entry, _: &Arc<Mirror>) -> Result<Box<dyn Authorizer>, String> {
    Ok(Box::new(Always { verdict: Verdict::Allow, reason: "" }))
}

/// Has no opinion instead of denying, as in Kubernetes: a later authorizer may allow.
pub(super) fn deny(_: &Settings, _: &Entry, _: &Arc<Mirror>) -> Result<Box<dyn Authorizer>, String> {
    Ok(Box::new(Always { verdict: Verdict::NoOpinion, reason: "Everything is forbidden." }))
}

#[async_trait]
impl Authorizer for Always {
    async fn authorize(&self, _: AuthzRequest<'_>) -> Result<Answer, MirrorNotReady> {
        let decision =
            Decision { verdict: self.verdict, reason: self.reason.to_owned(), ..Decision::default() };
        Ok(Answer { decision, any_name: true, ..Answer::default() })
    }

    fn rules(&self, _: &UserInfo, _: &str, _: u64) -> Result<Rules, MirrorNotReady> {
        if self.verdict != Verdict::Allow {
            return Ok(Rules::default());
        }
        let star = || words(&["*"]);
        let resources =
            PolicyRule { verbs: star(), api_groups: star(), resources: star(), ..PolicyRule::default() };
        let paths = PolicyRule { verbs: star(), non_resource_urls: star(), ..PolicyRule::default() };
        Ok(Rules { rules: vec![resources, paths], ..Rules::default() })
    }
}
