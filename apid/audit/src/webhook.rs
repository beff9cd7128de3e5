//! The webhook that receives audit events.
//!
//! # Contract
//!
//! [`Webhook::post`] sends an EventList to the server of a client configuration file, with the query `timeout=30s`. Each
//! failure is retried, whatever its reason, because there is no event that the receiver rejects rightly.
//!
//! # Invariants
//!
//! INVARIANT (secrets stay out): a token is never sent to a server without TLS, and no error contains an event.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{Clock, Rng};
use apimachinery::names::Names;
use bytes::Bytes;
use http::Method;
use serving::client::retry::RetryPolicy;
use serving::client::{CallError, ClientResponse, Limits, Remote};
use serving::client_config::ClientConfig;

/// The query of a call, which names its time limit.
const QUERY: &str = "?timeout=30s";
/// The limits of a call.
const LIMITS: Limits = Limits { within: Duration::from_secs(30), bytes: 1 << 20 };
/// The `User-Agent` of calls.
const USER_AGENT: &str = concat!("apid/", env!("CARGO_PKG_VERSION"), " audit");

/// A client configuration file of the audit webhook that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("audit webhook: {0}")]
pub struct WebhookError(String);

/// The events could not be delivered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DeliveryError {
    #[error(transparent)]
    Call(CallError),
    #[error("the audit webhook responded {0}")]
    Status(u16),
}

/// A client of the webhook.
pub struct Webhook {
    remote: Remote,
    backoff: RetryPolicy,
    rng: Arc<dyn Rng>,
}

impl Webhook {
    /// Checks the client configuration file, without the files that it names.
    ///
    /// # Errors
    ///
    /// The file is invalid.
    pub fn check(file: &Path, names: &Names) -> Result<(), WebhookError> {
        let target = ClientConfig::load(file).and_then(|config| config.target(None, names));
        target.map(drop).map_err(|error| WebhookError(error.to_string()))
    }

    /// Reads the client configuration file; does not connect. `initial_backoff`: the pause before the second attempt.
    ///
    /// # Errors
    ///
    /// The file is invalid, or names files that are.
    pub fn load(
        file: &Path,
        initial_backoff: Duration,
        names: &Names,
        clock: Arc<dyn Clock>,
        rng: Arc<dyn Rng>,
    ) -> Result<Self, WebhookError> {
        let error = |error: serving::client_config::ConfigError| WebhookError(error.to_string());
        let config = ClientConfig::load(file).map_err(error)?;
        for warning in &config.warnings {
            tracing::warn!(file = %file.display(), %warning, "audit webhook configuration");
        }
        let mut target = config.target(None, names).map_err(error)?;
        if !target.cluster.server.starts_with("https://") {
            let user = &mut target.user;
            if user.token.take().is_some() | user.token_file.take().is_some() {
                tracing::warn!(
                    file = %file.display(),
                    "the audit webhook has no TLS; the token is not sent"
                );
            }
        }
        let remote = Remote::new(target, USER_AGENT, names, clock)
            .map_err(|errors| WebhookError(format!("`{}`: {}", file.display(), errors.join("; "))))?;
        Ok(Webhook { remote, backoff: RetryPolicy { first: initial_backoff, ..RetryPolicy::WEBHOOK }, rng })
    }

    /// Sends events, encoded as items of a list.
    ///
    /// # Errors
    ///
    /// The last attempt failed.
    pub(crate) async fn post(&self, api_version: &str, events: &[Vec<u8>]) -> Result<(), DeliveryError> {
        let body = Bytes::from(event_list(api_version, events));
        let attempt = || self.remote.send(Method::POST, QUERY, body.clone(), LIMITS);
        let (outcome, _) = self.backoff.call_while(is_failure, &*self.rng, attempt).await;
        match outcome {
            Ok(response) if response.status.is_success() => Ok(()),
            Ok(response) => Err(DeliveryError::Status(response.status.as_u16())),
            Err(error) => Err(DeliveryError::Call(error)),
        }
    }
}

fn is_failure(outcome: &Result<ClientResponse, CallError>) -> bool {
    !outcome.as_ref().is_ok_and(|response| response.status.is_success())
}

fn event_list(api_version: &str, events: &[Vec<u8>]) -> Vec<u8> {
    let head = format!(r#"{{"kind":"EventList","apiVersion":"{api_version}","metadata":{{}},"items":["#);
    let size = events.iter().map(|event| event.len() + 1).sum::<usize>();
    let mut body = Vec::with_capacity(head.len() + size + 2);
    body.extend_from_slice(head.as_bytes());
    for (index, event) in events.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        body.extend_from_slice(event);
    }
    body.extend_from_slice(b"]}");
    body
}

#[cfg(test)]
#[path = "tests/webhook.rs"]
mod tests;
