//! The webhook authorizer: a remote service decides (requirements A-AZW, A-AZC).
//!
//! # Contract
//!
//! A request is sent as a SubjectAccessReview. Allows are cached with one TTL and other responses with
//! another. Failures are not cached; the failure policy decides them. A decision carries its remaining TTL,
//! so that apid caches it no longer. `allowed` together with `denied` is a denial. The rules of such a
//! service cannot be listed.
//!
//! # Invariants
//!
//! INVARIANT (whole key): two requests share a cached decision only if user, ordered groups, extra, and every
//! attribute with its selectors are equal.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use apimachinery::attributes::{Attributes, ParsedSelector};
use apimachinery::decision::{Decision, Verdict};
use apimachinery::object::{Map, Value};
use apimachinery::user::UserInfo;
use async_trait::async_trait;

use super::access_review::spec;
use super::entry::{Entry, OnFailure, Webhook as WebhookSettings};
use super::{Answer, Authorizer, AuthzRequest, Rules, Settings};
use crate::metrics::WebhookMetrics;
use crate::mirror::{Mirror, MirrorNotReady};
use crate::single_flight_cache::SingleFlightCache;
use crate::webhook::{Webhook, WebhookContext, field, words};

/// State that all webhooks of the process share.
#[derive(Clone, Debug)]
pub struct Webhooks {
    /// Names, clock and random source.
    pub ground: WebhookContext,
    metrics: Arc<OnceLock<WebhookMetrics>>,
}

impl Webhooks {
    /// Creates the state without metrics.
    pub fn new(ground: WebhookContext) -> Self {
        Webhooks { ground, metrics: Arc::default() }
    }

    /// Sets the metrics.
    pub fn set_metrics(&self, metrics: WebhookMetrics) {
        // The process has one registry, so a second call never happens.
        let _ = self.metrics.set(metrics);
    }
}

/// The service and its cached responses.
struct RemoteAuthorizer {
    name: String,
    how: WebhookSettings,
    api_version: String,
    webhook: Webhook,
    said: SingleFlightCache<Arc<ReviewKey>, WebhookResult>,
    webhooks: Webhooks,
}

#[derive(PartialEq, Eq, Hash)]
struct ReviewKey {
    user: UserInfo,
    attributes: Attributes,
}

/// A decision, or the failure.
type WebhookResult = Result<Arc<Decision>, Arc<str>>;

pub(super) fn build(
    settings: &Settings,
    entry: &Entry,
    _: &Arc<Mirror>,
) -> Result<Box<dyn Authorizer>, String> {
    let Some(how) = &entry.webhook else {
        return Err("mode Webhook: --authorization-webhook-config-file is missing".to_owned());
    };
    let webhook = Webhook::open(&how.client_config, how.timeout, &settings.webhooks.ground)
        .map_err(|problem| format!("webhook `{}`: {problem}", entry.name))?;
    Ok(Box::new(over(webhook, &entry.name, how, &settings.webhooks)))
}

fn over(webhook: Webhook, name: &str, how: &WebhookSettings, webhooks: &Webhooks) -> RemoteAuthorizer {
    let WebhookContext { names, clock, .. } = &webhooks.ground;
    let longest = how.authorized_ttl.max(how.unauthorized_ttl);
    RemoteAuthorizer {
        name: name.to_owned(),
        api_version: format!("{}/{}", names.group("authorization"), how.version.as_str()),
        how: how.clone(),
        webhook,
        said: SingleFlightCache::new(longest, |asked| asked.bytes(), Arc::clone(clock)),
        webhooks: webhooks.clone(),
    }
}

#[async_trait]
impl Authorizer for RemoteAuthorizer {
    async fn authorize(&self, question: AuthzRequest<'_>) -> Result<Answer, MirrorNotReady> {
        let asked =
            Arc::new(ReviewKey { user: question.user.clone(), attributes: question.attributes.clone() });
        let (said, left) = self.said.get(&asked, || self.ask(&asked)).await;
        let (decision, ttl) = match said {
            Ok(decision) => (Arc::unwrap_or_clone(decision), left),
            Err(problem) => {
                let verdict = self.how.on_failure.verdict();
                let evaluation_error = problem.to_string();
                (Decision { verdict, evaluation_error, ..Decision::default() }, Duration::ZERO)
            }
        };
        Ok(Answer { decision, ttl: Some(ttl), ..Answer::default() })
    }

    fn rules(&self, _: &UserInfo, _: &str, _: u64) -> Result<Rules, MirrorNotReady> {
        let problem = "webhook authorizer does not support user rule resolution".to_owned();
        Ok(Rules { incomplete: true, problems: vec![problem], ..Rules::default() })
    }
}

impl RemoteAuthorizer {
    async fn ask(&self, asked: &ReviewKey) -> (WebhookResult, Duration) {
        let clock = &self.webhooks.ground.clock;
        let begun = clock.monotonic();
        let spec = spec(&asked.user, &asked.attributes, self.how.version);
        let reviewed = self.webhook.review(&self.api_version, "SubjectAccessReview", spec).await;
        let seconds = clock.monotonic().saturating_sub(begun).as_secs_f64();
        let (said, result): (WebhookResult, _) = match reviewed.map(|status| read(&status)) {
            Ok(Ok(decision)) => (Ok(Arc::new(decision)), "success"),
            Ok(Err(problem)) => (Err(format!("webhook `{}`: {problem}", self.name).into()), "error"),
            Err(failure) => {
                let result = failure.result();
                (Err(format!("webhook `{}`: {}", self.name, failure.problem).into()), result)
            }
        };
        if let Err(problem) = &said {
            tracing::warn!(mode = self.name, %problem, "authorization webhook failed; applying the failure policy");
        }
        if let Some(metrics) = self.webhooks.metrics.get() {
            let fails_open = said.is_err() && self.how.on_failure == OnFailure::NoOpinion;
            metrics.observe_call(&self.name, result, seconds, fails_open);
        }
        let ttl = match &said {
            Ok(decision) if decision.allowed() => self.how.authorized_ttl,
            Ok(_) => self.how.unauthorized_ttl,
            Err(_) => Duration::ZERO,
        };
        (said, ttl)
    }
}

/// Decodes a status.
///
/// # Errors
///
/// A field has another type.
fn read(status: &Map<String, Value>) -> Result<Decision, String> {
    let flag = |name| field(status, name, Value::as_bool).map(Option::unwrap_or_default);
    let text = |name| field(status, name, Value::as_str).map(|text| text.map(words).unwrap_or_default());
    let (allowed, denied) = (flag("allowed")?, flag("denied")?);
    let (reason, mut evaluation_error) = (text("reason")?, text("evaluationError")?);
    let verdict = match (allowed, denied) {
        (true, true) => {
            evaluation_error = "the webhook both allowed and denied".to_owned();
            Verdict::Deny
        }
        (true, false) => Verdict::Allow,
        (false, true) => Verdict::Deny,
        (false, false) => Verdict::NoOpinion,
    };
    Ok(Decision { verdict, reason, evaluation_error })
}

impl ReviewKey {
    /// The approximate size in memory, in bytes.
    fn bytes(&self) -> usize {
        let ReviewKey { user, attributes: a } = self;
        let list = |list: &[String]| list.iter().map(|text| text.len() + 24).sum::<usize>();
        let selector = |selector: &ParsedSelector| match selector {
            ParsedSelector::Unparsable(text) => text.len(),
            ParsedSelector::Requirements(all) => {
                all.iter().map(|one| one.key.len() + list(&one.values) + 48).sum()
            }
        };
        let texts =
            [&a.verb, &a.group, &a.version, &a.resource, &a.subresource, &a.namespace, &a.name, &a.path];
        size_of::<ReviewKey>()
            + texts.iter().map(|text| text.len()).sum::<usize>()
            + selector(&a.field_selector)
            + selector(&a.label_selector)
            + user.name.len()
            + user.uid.len()
            + list(&user.groups)
            + user.extra.iter().map(|(key, values)| key.len() + list(values) + 48).sum::<usize>()
    }
}

#[cfg(test)]
mod tests;
