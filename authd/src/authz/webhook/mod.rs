//! The webhook authorizer: a remote service decides (requirements A-AZW, A-AZC).
//!
//! # Contract
//!
//! A request is sent as a SubjectAccessReview. Allows and other responses are cached with separate TTLs.
//! Failures are not cached; after a failure the failure policy decides. A decision carries its remaining TTL,
//! so that apid does not cache it longer. `allowed` together with `denied` is a denial.
//! The rules of a webhook cannot be listed.
//!
//! # Invariants
//!
//! INVARIANT (whole key): two requests share a cached decision only if user, ordered groups, extra, and every
//! attribute with its selectors are equal.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::attributes::{Attributes, ParsedSelector};
use apimachinery::clock::Clock;
use apimachinery::decision::{Decision, Verdict};
use apimachinery::object::{Map, Value};
use apimachinery::user::UserInfo;
use async_trait::async_trait;

use super::access_review::spec;
use super::entry::{Entry, OnFailure, WebhookSettings};
use super::metrics::WebhookMetrics;
use super::{Authorizer, AuthzOutcome, AuthzRequest, Rules, Settings};
use crate::config_error::ConfigError;
use crate::mirror::{AtLeast, MirrorNotReady};
use crate::single_flight_cache::SingleFlightCache;
use crate::webhook::{FieldTypeError, Webhook, read_field, sanitize_remote_text};

/// A webhook authorizer with its cached responses.
struct RemoteAuthorizer {
    name: String,
    settings: WebhookSettings,
    api_version: String,
    webhook: Webhook,
    responses: SingleFlightCache<Arc<ReviewKey>, WebhookResult>,
    clock: Arc<dyn Clock>,
    metrics: WebhookMetrics,
}

/// The cache key of a response: everything that a review contains.
#[derive(PartialEq, Eq, Hash)]
struct ReviewKey {
    user: UserInfo,
    attributes: Attributes,
}

/// The decision of the webhook, or why its call failed.
type WebhookResult = Result<Arc<Decision>, Arc<str>>;

pub(super) fn build(settings: &Settings, entry: &Entry) -> Result<Box<dyn Authorizer>, ConfigError> {
    let Some(webhook_settings) = &entry.webhook else {
        return Err(ConfigError::flag("--authorization-webhook-config-file", "required by mode Webhook"));
    };
    let webhook = Webhook::open(&webhook_settings.client_config, webhook_settings.timeout, &settings.context)
        .map_err(|error| ConfigError::Webhook { name: entry.name.clone(), problem: error.to_string() })?;
    Ok(Box::new(from_webhook(webhook, &entry.name, webhook_settings, settings)))
}

fn from_webhook(
    webhook: Webhook,
    name: &str,
    webhook_settings: &WebhookSettings,
    settings: &Settings,
) -> RemoteAuthorizer {
    let Settings { context, metrics, .. } = settings;
    let longest_ttl = webhook_settings.authorized_ttl.max(webhook_settings.unauthorized_ttl);
    RemoteAuthorizer {
        name: name.to_owned(),
        api_version: format!(
            "{}/{}",
            context.names.group("authorization"),
            webhook_settings.version.as_str()
        ),
        settings: webhook_settings.clone(),
        webhook,
        responses: SingleFlightCache::new(longest_ttl, |key| key.bytes(), Arc::clone(&context.clock)),
        clock: Arc::clone(&context.clock),
        metrics: metrics.webhooks().clone(),
    }
}

#[async_trait]
impl Authorizer for RemoteAuthorizer {
    async fn authorize(&self, request: AuthzRequest<'_>) -> Result<AuthzOutcome, MirrorNotReady> {
        let key = Arc::new(ReviewKey { user: request.user.clone(), attributes: request.attributes.clone() });
        let (response, remaining_ttl) = self.responses.get(&key, || self.fetch(&key)).await;
        let (decision, ttl) = match response {
            Ok(decision) => (Arc::unwrap_or_clone(decision), remaining_ttl),
            Err(problem) => {
                let verdict = self.settings.on_failure.verdict();
                let evaluation_error = problem.to_string();
                (Decision { verdict, evaluation_error, ..Decision::default() }, Duration::ZERO)
            }
        };
        Ok(AuthzOutcome { decision, ttl: Some(ttl), ..AuthzOutcome::default() })
    }

    fn rules(&self, _: &UserInfo, _: &str, _: AtLeast<'_>) -> Result<Rules, MirrorNotReady> {
        let problem = "webhook authorizer does not support user rule resolution".to_owned();
        Ok(Rules { incomplete: true, problems: vec![problem], ..Rules::default() })
    }
}

impl RemoteAuthorizer {
    async fn fetch(&self, key: &ReviewKey) -> (WebhookResult, Duration) {
        let started = self.clock.monotonic();
        let spec = spec(&key.user, &key.attributes, self.settings.version);
        let review_result = self.webhook.review(&self.api_version, "SubjectAccessReview", spec).await;
        let seconds = self.clock.monotonic().saturating_sub(started).as_secs_f64();
        let (response, result): (WebhookResult, _) = match review_result.map(|status| read(&status)) {
            Ok(Ok(decision)) => (Ok(Arc::new(decision)), "success"),
            Ok(Err(problem)) => (Err(format!("webhook `{}`: {problem}", self.name).into()), "error"),
            Err(failure) => {
                let result = failure.result();
                (Err(format!("webhook `{}`: {}", self.name, failure.problem).into()), result)
            }
        };
        if let Err(problem) = &response {
            tracing::warn!(mode = self.name, %problem, "authorization webhook failed; applying the failure policy");
        }
        let fails_open = response.is_err() && self.settings.on_failure == OnFailure::NoOpinion;
        self.metrics.observe_call(&self.name, result, seconds, fails_open);
        let ttl = match &response {
            Ok(decision) if decision.allowed() => self.settings.authorized_ttl,
            Ok(_) => self.settings.unauthorized_ttl,
            Err(_) => Duration::ZERO,
        };
        (response, ttl)
    }
}

/// Decodes the status of a SubjectAccessReview.
///
/// # Errors
///
/// A field has the wrong type.
fn read(status: &Map<String, Value>) -> Result<Decision, FieldTypeError> {
    let boolean = |name| read_field(status, name, Value::as_bool).map(Option::unwrap_or_default);
    let text = |name| {
        read_field(status, name, Value::as_str).map(|text| text.map(sanitize_remote_text).unwrap_or_default())
    };
    let (allowed, denied) = (boolean("allowed")?, boolean("denied")?);
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
        let list_bytes = |list: &[String]| list.iter().map(|text| text.len() + 24).sum::<usize>();
        let selector_bytes = |selector: &ParsedSelector| match selector {
            ParsedSelector::Unparsable(text) => text.len(),
            ParsedSelector::Requirements(requirements) => requirements
                .iter()
                .map(|requirement| requirement.key.len() + list_bytes(&requirement.values) + 48)
                .sum(),
        };
        let texts =
            [&a.verb, &a.group, &a.version, &a.resource, &a.subresource, &a.namespace, &a.name, &a.path];
        size_of::<ReviewKey>()
            + texts.iter().map(|text| text.len()).sum::<usize>()
            + selector_bytes(&a.field_selector)
            + selector_bytes(&a.label_selector)
            + user.name.len()
            + user.uid.len()
            + list_bytes(&user.groups)
            + user.extra.iter().map(|(key, values)| key.len() + list_bytes(values) + 48).sum::<usize>()
    }
}

#[cfg(test)]
mod tests;
