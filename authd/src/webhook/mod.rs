//! Webhook client for reviews: the common part of token webhooks and authorization webhooks.
//!
//! # Contract
//!
//! A [`Webhook`] posts a review to the server of a client configuration file and returns the `status` of the
//! response. If the response has an `apiVersion` or `kind`, it must be that of the request. Transient
//! failures are retried ([`RetryPolicy::WEBHOOK`]), all attempts within [`TOTAL_TIMEOUT`] or the timeout of one
//! call, whichever is longer. Errors never contain a token or a body, so they can be logged.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Clock, Rng, SystemClock, SystemRng};
use apimachinery::names::Names;
use apimachinery::object::{Map, Value};
use bytes::Bytes;
use serde_json::json;
use serving::client::retry::RetryPolicy;
use serving::client::{CallError, Limits, Remote};
use serving::client_config::ClientConfig;
use serving::metrics::Metrics;

use crate::config_error::ConfigError;

/// Time limit of all attempts together, unless the timeout of one call is longer.
/// apid waits for authd 10 s by default.
pub const TOTAL_TIMEOUT: Duration = Duration::from_secs(9);
/// Limit in bytes of a response; a longer response is a failure of the call.
const MAX_RESPONSE_BYTES: usize = 1024 * 1024;
/// Limit in characters of a logged text from the service; a longer text is truncated.
const MAX_SHOWN_CHARS: usize = 500;

/// The API version of a review.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// The API version `v1`.
    V1,
    /// The API version `v1beta1`.
    V1Beta1,
}

impl Version {
    /// The names of both versions, the newer first, for messages.
    pub const NAMES: [&'static str; 2] = ["v1", "v1beta1"];

    /// Parses the name of a version; None if the name is unknown.
    pub fn parse(name: &str) -> Option<Self> {
        [Version::V1, Version::V1Beta1].into_iter().find(|version| version.as_str() == name)
    }

    /// Parses the value of `flag`. An absent value means `v1beta1`, and so does an invalid value, with an error.
    pub fn from_flag(value: Option<&str>, flag: &str, errors: &mut Vec<ConfigError>) -> Self {
        let Some(value) = value else { return Version::V1Beta1 };
        Version::parse(value).unwrap_or_else(|| {
            let problem = format!("unknown version `{value}`: use `v1` or `v1beta1`");
            errors.push(ConfigError::flag(flag, problem));
            Version::V1Beta1
        })
    }

    /// Returns the name of the version.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V1 => "v1",
            Version::V1Beta1 => "v1beta1",
        }
    }
}

/// Parts of the process that webhooks use: names preset, clock, random source and metrics.
#[derive(Clone)]
pub struct WebhookContext {
    /// The names preset.
    pub names: Arc<Names>,
    /// The clock of TTLs, of metrics and of credentials.
    pub clock: Arc<dyn Clock>,
    /// The random source of back-off jitter.
    pub rng: Arc<dyn Rng>,
    /// The registry of the metrics.
    pub metrics: Arc<Metrics>,
}

impl WebhookContext {
    /// Creates a context with the clock and the random source of the system.
    pub fn new(names: Arc<Names>, metrics: Arc<Metrics>) -> Self {
        WebhookContext { names, clock: Arc::new(SystemClock::new()), rng: Arc::new(SystemRng), metrics }
    }
}

impl std::fmt::Debug for WebhookContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebhookContext").field("names", &self.names.preset()).finish_non_exhaustive()
    }
}

/// Returns the problem of a webhook's server URL, if any.
/// The `svc` preset requires https without query and fragment, because the server receives tokens.
pub fn server_problem(names: &Names, server: &str) -> Option<&'static str> {
    if !names.behaviour.webhook_server_must_be_plain_https {
        None
    } else if !server.starts_with("https://") {
        Some("server must begin with https://")
    } else if server.contains(['?', '#']) {
        Some("server must have no parameters")
    } else {
        None
    }
}

/// The failure of a review: no `status` was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Whether a call or all attempts together timed out.
    pub timed_out: bool,
    /// The problem for the log, with the URL of the webhook.
    pub problem: String,
}

impl Failure {
    /// Returns the value of the metric label `result`.
    pub fn result(&self) -> &'static str {
        if self.timed_out { "timeout" } else { "error" }
    }
}

/// A client of a review service, from a client configuration file.
pub struct Webhook {
    remote: Remote,
    backoff: RetryPolicy,
    limits: Limits,
    rng: Arc<dyn Rng>,
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Webhook").field(&self.remote.url()).finish()
    }
}

impl Webhook {
    /// Reads the client configuration. Does not call the service. `within` is the timeout of one call.
    ///
    /// # Errors
    ///
    /// All problems of the file and of the files that it names.
    pub fn open(file: &Path, within: Duration, context: &WebhookContext) -> Result<Self, ConfigError> {
        // The error text of the client configuration already names the file.
        let config = ClientConfig::load(file).map_err(|error| ConfigError::Combination(error.to_string()))?;
        for warning in &config.warnings {
            tracing::warn!(file = %file.display(), "client configuration: {warning}");
        }
        let target = config
            .target(None, &context.names)
            .map_err(|error| ConfigError::Combination(error.to_string()))?;
        if let Some(problem) = server_problem(&context.names, &target.cluster.server) {
            return Err(ConfigError::file(file, problem));
        }
        let agent = concat!("authd/", env!("CARGO_PKG_VERSION"));
        let remote = Remote::new(target, agent, &context.names, Arc::clone(&context.clock))
            .map_err(|errors| ConfigError::file(file, errors.join("; ")))?;
        Ok(Webhook {
            remote,
            backoff: RetryPolicy::WEBHOOK,
            limits: Limits { within, bytes: MAX_RESPONSE_BYTES },
            rng: Arc::clone(&context.rng),
        })
    }

    /// Replaces the back-off, for tests.
    #[cfg(test)]
    pub(crate) fn with_backoff(mut self, backoff: RetryPolicy) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sends a review and returns the status of the response.
    ///
    /// # Errors
    ///
    /// See [`Failure`].
    pub async fn review(
        &self,
        api_version: &str,
        kind: &str,
        spec: Map<String, Value>,
    ) -> Result<Map<String, Value>, Failure> {
        let mut review = json!({"kind": kind, "apiVersion": api_version, "metadata": {}});
        // Moved: `json!` would copy the spec, which may contain a token.
        if let Value::Object(fields) = &mut review {
            fields.insert("spec".to_owned(), Value::Object(spec));
        }
        let body = Bytes::from(review.to_string());
        let attempts = self.backoff.call(&*self.rng, || self.remote.post(body.clone(), self.limits));
        let total_timeout = TOTAL_TIMEOUT.max(self.limits.within);
        let Ok((outcome, attempt_count)) = tokio::time::timeout(total_timeout, attempts).await else {
            let problem = format!("no response within {total_timeout:?}, all attempts together");
            return Err(self.failure(true, &problem));
        };
        let attempts_suffix =
            if attempt_count > 1 { format!(" ({attempt_count} attempts)") } else { String::new() };
        let answer = outcome.map_err(|error| {
            self.failure(matches!(error, CallError::Timeout(_)), &format!("{error}{attempts_suffix}"))
        })?;
        if !answer.status.is_success() {
            let problem = format!("HTTP status {}{attempts_suffix}", answer.status.as_u16());
            return Err(self.failure(false, &problem));
        }
        // The text of a parser error is dropped, because it may quote the response.
        let value = answer.json().map_err(|_| self.failure(false, "the response is not JSON"))?;
        read(value, api_version, kind).map_err(|problem| self.failure(false, &problem))
    }

    fn failure(&self, timed_out: bool, problem: &str) -> Failure {
        Failure { timed_out, problem: format!("the webhook {}: {problem}", self.remote.url()) }
    }
}

/// Checks `apiVersion` and `kind` of a response, and returns its `status`; empty if absent.
fn read(value: Value, api_version: &str, kind: &str) -> Result<Map<String, Value>, String> {
    let Value::Object(mut answer) = value else { return Err("the response is not an object".to_owned()) };
    for (field, expected) in [("apiVersion", api_version), ("kind", kind)] {
        match answer.get(field) {
            None => {}
            Some(Value::String(got)) if got == expected || got.is_empty() => {}
            Some(got) => {
                let got = got
                    .as_str()
                    .map_or_else(|| "no text".to_owned(), |got| format!("`{}`", sanitize_remote_text(got)));
                return Err(format!("the response has the {field} {got}, not `{expected}`"));
            }
        }
    }
    match answer.remove("status") {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(status)) => Ok(status),
        Some(_) => Err("the response has a status that is not an object".to_owned()),
    }
}

/// Shortens a text that the service sent, and replaces its control characters by spaces, for the log.
pub fn sanitize_remote_text(text: &str) -> String {
    text.chars().take(MAX_SHOWN_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A field of a response with the wrong type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the response field `{0}` has the wrong type")]
pub struct FieldTypeError(String);

/// Reads a field of a status; None if it is absent or null.
///
/// # Errors
///
/// The field has the wrong type; the error contains the name, not the value.
pub fn read_field<'s, T>(
    status: &'s Map<String, Value>,
    name: &str,
    read: impl FnOnce(&'s Value) -> Option<T>,
) -> Result<Option<T>, FieldTypeError> {
    match status.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => read(value).map(Some).ok_or_else(|| FieldTypeError(name.to_owned())),
    }
}

/// Reads a list of strings; None if an item has another type.
pub fn string_array(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
pub(crate) mod mock;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn webhook_response_with_other_version_or_kind_is_rejected() {
        let (version, kind) = ("g.test/v1", "TokenReview");
        let good = json!({"a": 1});
        for (answer, expected) in [
            (json!({"apiVersion": version, "kind": kind, "status": good}), Ok(good.clone())),
            (json!({"status": good}), Ok(good.clone())),
            (json!({"apiVersion": version, "kind": kind, "spec": {"token": "other"}}), Ok(json!({}))),
            (json!({"status": null}), Ok(json!({}))),
            (json!({}), Ok(json!({}))),
            (
                json!({"apiVersion": "g.test/v1beta1", "kind": kind, "status": good}),
                Err("the response has the apiVersion `g.test/v1beta1`, not `g.test/v1`"),
            ),
            (
                json!({"apiVersion": version, "kind": "Status", "status": "Failure"}),
                Err("the response has the kind `Status`, not `TokenReview`"),
            ),
            (json!({"kind": 5}), Err("the response has the kind no text, not `TokenReview`")),
            (json!({"status": []}), Err("the response has a status that is not an object")),
            (json!([]), Err("the response is not an object")),
        ] {
            let got = read(answer.clone(), version, kind).map(Value::Object);
            assert_eq!(got, expected.map_err(str::to_owned), "{answer}");
        }
    }

    #[test]
    fn remote_text_is_shortened_to_one_log_line() {
        assert_eq!(sanitize_remote_text("a\nb\u{1b}[0m"), "a b [0m");
        assert_eq!(sanitize_remote_text(&"x".repeat(1000)).len(), MAX_SHOWN_CHARS);
    }
}
