//! Asking another service with a review: what token webhooks and authorization webhooks have in common.
//!
//! # Contract
//!
//! A [`Webhook`] posts a review to the server of a client configuration file and gives the `status` of what comes back,
//! which must be of the version and kind that was sent, or name none. Failures that may pass are tried again
//! ([`Backoff::WEBHOOK`]), all of it within [`WHOLE`] or the time of one call, whichever is longer. A failure says what
//! happened in words fit for the log: never a token, never a body.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Chance, Clock};
use apimachinery::names::Names;
use apimachinery::object::{Map, Value};
use bytes::Bytes;
use serving::client::retry::Backoff;
use serving::client::{CallError, Limits, Remote};
use serving::client_config::ClientConfig;

/// All attempts together, unless one call alone may take longer. apid asks for no longer than 10 s unless it is told to.
pub const WHOLE: Duration = Duration::from_secs(9);
/// The most bytes of an answer.
const LARGEST: usize = 1024 * 1024;
/// Characters of another service's words in the log.
const SHOWN: usize = 500;

/// The versions in which other services are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `v1`.
    V1,
    /// `v1beta1`.
    V1Beta1,
}

impl Version {
    /// Both, as they are written; the newer first.
    pub const NAMES: [&'static str; 2] = ["v1", "v1beta1"];

    /// The version of a name.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "v1" => Some(Version::V1),
            "v1beta1" => Some(Version::V1Beta1),
            _ => None,
        }
    }

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V1 => "v1",
            Version::V1Beta1 => "v1beta1",
        }
    }
}

/// What webhooks stand on: time, chance and the names preset.
#[derive(Clone)]
pub struct Ground {
    /// The names preset.
    pub names: Arc<Names>,
    /// Ends of what is kept.
    pub clock: Arc<dyn Clock>,
    /// Jitter of pauses.
    pub chance: Arc<dyn Chance>,
}

impl std::fmt::Debug for Ground {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ground").field("names", &self.names.preset()).finish_non_exhaustive()
    }
}

/// What is wrong with the server of a webhook where the preset says that it must be plain https: tokens are sent to it.
pub fn wrong_server(names: &Names, server: &str) -> Option<&'static str> {
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

/// Why there is no status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// It took too long.
    pub timed_out: bool,
    /// What happened, for the log.
    pub problem: String,
}

impl Failure {
    /// The word that metrics have for it.
    pub fn result(&self) -> &'static str {
        if self.timed_out { "timeout" } else { "error" }
    }
}

/// A service that reviews.
pub struct Webhook {
    remote: Remote,
    backoff: Backoff,
    limits: Limits,
    chance: Arc<dyn Chance>,
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Webhook").field(&self.remote.url()).finish()
    }
}

impl Webhook {
    /// Reads the client configuration and asks nobody yet. `within` bounds one call.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with the file and the files that it names.
    pub fn open(file: &Path, within: Duration, ground: &Ground) -> Result<Self, String> {
        let config = ClientConfig::load(file).map_err(|e| e.to_string())?;
        for warning in &config.warnings {
            tracing::warn!(file = %file.display(), "client configuration: {warning}");
        }
        let target = config.target(None, &ground.names).map_err(|e| e.to_string())?;
        if let Some(wrong) = wrong_server(&ground.names, &target.cluster.server) {
            return Err(format!("{}: {wrong}", file.display()));
        }
        let agent = concat!("authd/", env!("CARGO_PKG_VERSION"));
        let remote = Remote::new(target, agent, &ground.names, Arc::clone(&ground.clock))
            .map_err(|mistakes| format!("{}: {}", file.display(), mistakes.join("; ")))?;
        Ok(Webhook {
            remote,
            backoff: Backoff::WEBHOOK,
            limits: Limits { within, bytes: LARGEST },
            chance: Arc::clone(&ground.chance),
        })
    }

    /// The same with other pauses, for tests.
    #[cfg(test)]
    pub(crate) fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }

    /// Sends a review and gives the status of the answer.
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
        let mut review = Map::new();
        review.insert("kind".to_owned(), kind.into());
        review.insert("apiVersion".to_owned(), api_version.into());
        review.insert("metadata".to_owned(), Value::Object(Map::new()));
        review.insert("spec".to_owned(), Value::Object(spec));
        let body = Bytes::from(Value::Object(review).to_string());
        let attempts = self.backoff.call(&*self.chance, || self.remote.post(body.clone(), self.limits));
        let whole = WHOLE.max(self.limits.within);
        let (outcome, made) = match tokio::time::timeout(whole, attempts).await {
            Ok(ended) => ended,
            Err(_) => {
                return Err(self.failure(true, &format!("no answer within {whole:?}, all attempts together")));
            }
        };
        let answer = outcome.map_err(|error| {
            self.failure(matches!(error, CallError::Timeout(_)), &format!("{error}{}", times(made)))
        })?;
        if !answer.status.is_success() {
            return Err(
                self.failure(false, &format!("it answered {}{}", answer.status.as_u16(), times(made)))
            );
        }
        // What a parser says may quote the answer.
        let value = answer.json().map_err(|_| self.failure(false, "what it answered is no JSON"))?;
        read(value, api_version, kind).map_err(|problem| self.failure(false, &problem))
    }

    fn failure(&self, timed_out: bool, problem: &str) -> Failure {
        Failure { timed_out, problem: format!("the webhook {}: {problem}", self.remote.url()) }
    }
}

fn times(made: u32) -> String {
    if made > 1 { format!(" ({made} attempts)") } else { String::new() }
}

/// The status of an answer.
fn read(value: Value, api_version: &str, kind: &str) -> Result<Map<String, Value>, String> {
    let Value::Object(mut answer) = value else { return Err("what it answered is no object".to_owned()) };
    for (field, want) in [("apiVersion", api_version), ("kind", kind)] {
        match answer.get(field) {
            None => {}
            Some(Value::String(got)) if got == want || got.is_empty() => {}
            Some(got) => {
                let got =
                    got.as_str().map_or_else(|| "no text".to_owned(), |got| format!("`{}`", words(got)));
                return Err(format!("its answer has the {field} {got} and not `{want}`"));
            }
        }
    }
    match answer.remove("status") {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(status)) => Ok(status),
        Some(_) => Err("its answer has a status that is no object".to_owned()),
    }
}

/// Another service's words, fit for a line of the log.
pub fn words(text: &str) -> String {
    text.chars().take(SHOWN).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// A field of a status: absent and null are the default.
///
/// # Errors
///
/// It is of another type; the name is told, the value is not.
pub fn field<'s, T>(
    status: &'s Map<String, Value>,
    name: &str,
    read: impl FnOnce(&'s Value) -> Option<T>,
) -> Result<Option<T>, String> {
    match status.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            read(value).map(Some).ok_or_else(|| format!("its answer has a {name} of another type"))
        }
    }
}

/// A list of texts.
pub fn texts(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|item| item.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
pub(crate) mod mock;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_is_of_the_version_and_kind_that_was_sent() {
        let (version, kind) = ("g.test/v1", "TokenReview");
        let good = json!({"a": 1});
        for (answer, want) in [
            (json!({"apiVersion": version, "kind": kind, "status": good}), Ok(good.clone())),
            (json!({"status": good}), Ok(good.clone())),
            (json!({"apiVersion": version, "kind": kind, "spec": {"token": "other"}}), Ok(json!({}))),
            (json!({"status": null}), Ok(json!({}))),
            (json!({}), Ok(json!({}))),
            (
                json!({"apiVersion": "g.test/v1beta1", "kind": kind, "status": good}),
                Err("its answer has the apiVersion `g.test/v1beta1` and not `g.test/v1`"),
            ),
            (
                json!({"apiVersion": version, "kind": "Status", "status": "Failure"}),
                Err("its answer has the kind `Status` and not `TokenReview`"),
            ),
            (json!({"kind": 5}), Err("its answer has the kind no text and not `TokenReview`")),
            (json!({"status": []}), Err("its answer has a status that is no object")),
            (json!([]), Err("what it answered is no object")),
        ] {
            let got = read(answer.clone(), version, kind).map(Value::Object);
            assert_eq!(got, want.map_err(str::to_owned), "{answer}");
        }
    }

    #[test]
    fn words_of_others_stay_on_one_line() {
        assert_eq!(words("a\nb\u{1b}[0m"), "a b [0m");
        assert_eq!(words(&"x".repeat(1000)).len(), SHOWN);
    }
}
