//! Fault-injecting authorization webhook: several failure modes, and decisions that change immediately.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::e2e::webhooks::{WebhookResponse, WebhookServer, review_response};

/// Response mode of the webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseMode {
    /// A correct review.
    Correct,
    /// 200 with a body that is not a review.
    InvalidBody,
    /// 403.
    Forbidden,
    /// 500, which authd retries.
    ServerError,
    /// No response until the client closes the connection.
    NoResponse,
}

struct WebhookState {
    mode: ResponseMode,
    allowed: HashSet<String>,
    /// Number of failed reviews by user.
    failures: HashMap<String, u64>,
}

impl WebhookState {
    fn respond(&mut self, review: &Value) -> WebhookResponse {
        let user = review["spec"]["user"].as_str().unwrap_or_default();
        if self.mode != ResponseMode::Correct {
            *self.failures.entry(user.to_owned()).or_default() += 1;
        }
        match self.mode {
            ResponseMode::Correct => review_response(review, json!({"allowed": self.allowed.contains(user)})),
            ResponseMode::InvalidBody => Some((200, "it depends".into())),
            ResponseMode::Forbidden => Some((403, json!({}))),
            ResponseMode::ServerError => Some((500, json!({}))),
            ResponseMode::NoResponse => None,
        }
    }
}

/// The fault-injecting webhook. Initially, it sends correct reviews that deny all requests.
pub(crate) struct FaultyWebhook {
    service: WebhookServer,
    state: Arc<Mutex<WebhookState>>,
}

impl FaultyWebhook {
    pub(crate) async fn start() -> Arc<FaultyWebhook> {
        let state =
            WebhookState { mode: ResponseMode::Correct, allowed: HashSet::new(), failures: HashMap::new() };
        let state = Arc::new(Mutex::new(state));
        let own = Arc::clone(&state);
        let service = WebhookServer::start(move |_, review| own.lock().respond(review)).await;
        service.stop_recording();
        Arc::new(FaultyWebhook { service, state })
    }

    /// The kubeconfig file with which authd calls the webhook.
    pub(crate) fn config(&self) -> PathBuf {
        self.service.config("decide", "certificate-authority: ca.crt")
    }

    /// Allows or denies all requests of a user.
    pub(crate) fn set(&self, user: &str, allowed: bool) {
        let mut state = self.state.lock();
        if allowed {
            state.allowed.insert(user.to_owned());
        } else {
            state.allowed.remove(user);
        }
    }

    /// Switches to a response mode for this time, then back to correct reviews.
    pub(crate) async fn set_mode_for(&self, mode: ResponseMode, time: Duration) {
        self.state.lock().mode = mode;
        tokio::time::sleep(time).await;
        self.state.lock().mode = ResponseMode::Correct;
    }

    /// Number of failed reviews of a user.
    pub(crate) fn failures(&self, user: &str) -> u64 {
        self.state.lock().failures.get(user).copied().unwrap_or(0)
    }

    /// Number of failed reviews of all users.
    pub(crate) fn total_failures(&self) -> u64 {
        self.state.lock().failures.values().sum()
    }
}
