//! The token webhook authenticator: a remote service reviews bearer tokens (requirements A-TWH).
//!
//! # Contract
//!
//! A token that earlier authenticators did not accept is sent as a TokenReview. The review has the requested
//! audiences, or else those of the API server. An acceptance is cached for [`TokenWebhookSettings::ttl`];
//! rejections and failures are not cached. A response without audiences is valid for those of the API server;
//! a response with audiences must name a requested one. `status.error` counts only if the token was not
//! accepted, and goes to the log.
//!
//! # Invariants
//!
//! INVARIANT (tokens are not stored): memory contains only a keyed digest of each token with its audiences.
//! INVARIANT (fail closed): each response but a well-formed acceptance with a username is a rejection.
//! INVARIANT (isolation of a hanging service): at most [`MAX_WAITING`] authentications wait for the service,
//! fewer than the limit of concurrent verifications of authd. Further authentications are undecided at once.
//! Cached responses need no wait.

pub mod metrics;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::{Map, Value};
use apimachinery::user::UserInfo;
use async_trait::async_trait;
use aws_lc_rs::hmac;
use tokio::sync::Semaphore;

use super::{AuthenticatedIdentity, Authenticator, AuthnContext, Credentials, Outcome, agnostic_audiences};
use crate::config_error::ConfigError;
use crate::mirror::MirrorNotReady;
use crate::single_flight_cache::SingleFlightCache;
use crate::webhook::{
    FieldTypeError, TOTAL_TIMEOUT, Version, Webhook, WebhookContext, read_field, sanitize_remote_text,
    string_array,
};
use metrics::TokenWebhookMetrics;

/// The flag that names the client configuration file of the webhook.
const CONFIG_FLAG: &str = "--authentication-token-webhook-config-file";
/// The maximum number of authentications that wait for the service; others are then undecided at once.
const MAX_WAITING: usize = 1024;

/// Configuration of the token webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenWebhookSettings {
    /// `--authentication-token-webhook-config-file`: the client configuration.
    pub client_config: PathBuf,
    /// `--authentication-token-webhook-version`: the version of the TokenReview.
    pub version: Version,
    /// `--authentication-token-webhook-cache-ttl`: how long acceptances are cached; zero disables the cache.
    pub ttl: Duration,
    /// The audiences of the API server.
    pub api_audiences: Vec<String>,
}

/// The response of the service on a token.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ReviewOutcome {
    /// The user and the audiences of the token; no audiences means those of the API server.
    Accepted(Arc<UserInfo>, Vec<String>),
    /// The token is rejected; the reason is for the log.
    Rejection(String),
    /// The call failed; the reason is for the log.
    Failed(String),
}

/// The client of the service, with cached responses. A reload of the authentication configuration keeps it.
pub struct TokenWebhook {
    settings: TokenWebhookSettings,
    api_version: String,
    webhook: Webhook,
    key: hmac::Key,
    responses: SingleFlightCache<[u8; 32], ReviewOutcome>,
    waiter_permits: Semaphore,
    context: WebhookContext,
    metrics: TokenWebhookMetrics,
}

impl std::fmt::Debug for TokenWebhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("TokenWebhook").field(&self.webhook).finish()
    }
}

pub(super) fn build(settings: &super::AuthnSettings) -> Option<Arc<dyn Authenticator>> {
    settings.token_webhook.clone().map(|webhook| webhook as Arc<dyn Authenticator>)
}

#[async_trait]
impl Authenticator for TokenWebhook {
    async fn authenticate(
        &self,
        credentials: Credentials<'_>,
        _: AuthnContext<'_>,
    ) -> Result<Outcome, MirrorNotReady> {
        if credentials.token.is_empty() {
            return Ok(Outcome::NotApplicable);
        }
        Ok(self.identify(credentials.token, credentials.audiences).await)
    }
}

impl TokenWebhook {
    /// Reads the client configuration without calling the service.
    ///
    /// # Errors
    ///
    /// The problem of the client configuration, with the flag.
    pub fn open(settings: TokenWebhookSettings, context: &WebhookContext) -> Result<Arc<Self>, ConfigError> {
        let flag_error = |error: ConfigError| ConfigError::flag(CONFIG_FLAG, error.to_string());
        let webhook = Webhook::open(&settings.client_config, TOTAL_TIMEOUT, context).map_err(flag_error)?;
        TokenWebhook::from_webhook(webhook, settings, context)
    }

    fn from_webhook(
        webhook: Webhook,
        settings: TokenWebhookSettings,
        context: &WebhookContext,
    ) -> Result<Arc<Self>, ConfigError> {
        let mut random = [0; 32];
        aws_lc_rs::rand::fill(&mut random)
            .map_err(|_| ConfigError::flag(CONFIG_FLAG, "the system has no random numbers"))?;
        let group = context.names.group("authentication");
        Ok(Arc::new(TokenWebhook {
            api_version: format!("{group}/{}", settings.version.as_str()),
            webhook,
            key: hmac::Key::new(hmac::HMAC_SHA256, &random),
            responses: SingleFlightCache::new(settings.ttl, |_| 32, Arc::clone(&context.clock)),
            waiter_permits: Semaphore::new(MAX_WAITING),
            context: context.clone(),
            metrics: TokenWebhookMetrics::register(&context.metrics),
            settings,
        }))
    }

    async fn identify(&self, token: &str, requested: &[String]) -> Outcome {
        let api_audiences = &self.settings.api_audiences;
        let required = if requested.is_empty() { api_audiences } else { requested };
        let digest = self.digest(token, required);
        let (response, remaining_ttl) = if let Some(cached) = self.responses.get_cached(&digest) {
            cached
        } else {
            let Ok(_permit) = self.waiter_permits.try_acquire() else {
                return Outcome::Undecided(format!("{MAX_WAITING} requests already wait for the webhook"));
            };
            self.responses.get(&digest, || self.fetch(token, required)).await
        };
        match response {
            ReviewOutcome::Accepted(user, response_audiences) => {
                let audiences = if response_audiences.is_empty() {
                    agnostic_audiences(requested, api_audiences)
                } else {
                    let is_intended = required.is_empty()
                        || response_audiences.iter().any(|audience| required.contains(audience));
                    let common = requested.iter().filter(|audience| response_audiences.contains(audience));
                    is_intended.then(|| common.cloned().collect())
                };
                let Some(audiences) = audiences else {
                    let check = "the webhook accepted the token for other audiences".to_owned();
                    return Outcome::RejectedWithTtl(check, remaining_ttl);
                };
                let user = Arc::unwrap_or_clone(user);
                Outcome::Accepted(Box::new(AuthenticatedIdentity {
                    user,
                    audiences,
                    ttl: Some(remaining_ttl),
                    ..AuthenticatedIdentity::default()
                }))
            }
            // apid may cache the rejection for this TTL at most; authd does not cache it.
            ReviewOutcome::Rejection(check) => Outcome::RejectedWithTtl(check, self.settings.ttl),
            ReviewOutcome::Failed(check) => Outcome::RejectedWithTtl(check, Duration::ZERO),
        }
    }

    /// Returns the cache key of a token with the audiences of its review.
    /// Lengths are part of the digest, so different lists never have equal input.
    fn digest(&self, token: &str, audiences: &[String]) -> [u8; 32] {
        let mut hmac_context = hmac::Context::with_key(&self.key);
        for part in std::iter::once(token).chain(audiences.iter().map(String::as_str)) {
            hmac_context.update(&part.len().to_le_bytes());
            hmac_context.update(part.as_bytes());
        }
        let mut digest = [0; 32];
        digest.copy_from_slice(hmac_context.sign().as_ref());
        digest
    }

    async fn fetch(&self, token: &str, audiences: &[String]) -> (ReviewOutcome, Duration) {
        let mut spec = Map::from_iter([("token".to_owned(), token.into())]);
        if !audiences.is_empty() {
            spec.insert("audiences".to_owned(), audiences.into());
        }
        let started = self.context.clock.monotonic();
        let review_result = self.webhook.review(&self.api_version, "TokenReview", spec).await;
        let seconds = self.context.clock.monotonic().saturating_sub(started).as_secs_f64();
        let (response, result) = match review_result.map(|status| read(&status, token)) {
            Ok(Ok(response @ ReviewOutcome::Accepted(..))) => (response, "success"),
            Ok(Ok(response)) => (response, "refused"),
            Ok(Err(problem)) => (ReviewOutcome::Failed(format!("the webhook: {problem}")), "error"),
            Err(failure) => (ReviewOutcome::Failed(failure.problem.clone()), failure.result()),
        };
        self.metrics.observe_call(result, seconds);
        let ttl =
            if matches!(response, ReviewOutcome::Accepted(..)) { self.settings.ttl } else { Duration::ZERO };
        (response, ttl)
    }
}

/// Decodes the status of a TokenReview. The token is removed from the text of `status.error`, which is
/// logged.
///
/// # Errors
///
/// A field has the wrong type.
fn read(status: &Map<String, Value>, token: &str) -> Result<ReviewOutcome, FieldTypeError> {
    let accepted = read_field(status, "authenticated", Value::as_bool)?.unwrap_or(false);
    let error = read_field(status, "error", Value::as_str)?.unwrap_or_default();
    if !accepted {
        let reason = if error.is_empty() {
            String::new()
        } else {
            format!(": {}", sanitize_remote_text(&error.replace(token, "[token]")))
        };
        return Ok(ReviewOutcome::Rejection(format!("the webhook did not accept the token{reason}")));
    }
    let audiences = read_field(status, "audiences", string_array)?.unwrap_or_default();
    let no_user = Map::new();
    let user = read_field(status, "user", Value::as_object)?.unwrap_or(&no_user);
    let text = |name| read_field(user, name, Value::as_str).map(|text| text.unwrap_or_default().to_owned());
    let string_lists = |value: &Value| -> Option<BTreeMap<String, Vec<String>>> {
        value
            .as_object()?
            .iter()
            .map(|(key, list)| {
                Some((key.clone(), if list.is_null() { Vec::new() } else { string_array(list)? }))
            })
            .collect()
    };
    let user = UserInfo {
        name: text("username")?,
        uid: text("uid")?,
        groups: read_field(user, "groups", string_array)?.unwrap_or_default(),
        extra: read_field(user, "extra", string_lists)?.unwrap_or_default(),
    };
    if user.name.is_empty() {
        return Ok(ReviewOutcome::Rejection("the webhook accepted the token and named no user".to_owned()));
    }
    Ok(ReviewOutcome::Accepted(Arc::new(user), audiences))
}

#[cfg(test)]
mod tests;
