//! Metrics of calls to webhooks.

use serving::metrics::{Counters, Definition, Histograms, Metrics, Stability};

use super::{Labels, WEBHOOK_BUCKETS};

/// The labels of the metrics: name of the authorizer, and result of the call.
type WebhookLabels = [(&'static str, String); 2];

const EVALUATIONS: Definition = Definition::new(
    "apiserver_authorization_webhook_evaluations_total",
    Stability::Beta,
    "Requests sent to an authorization webhook, by its name and the result: success, timeout or error",
);
const DURATION: Definition = Definition::new(
    "apiserver_authorization_webhook_duration_seconds",
    Stability::Beta,
    "Duration in seconds of authorization webhook calls, all attempts together, by name and result",
);
const FAIL_OPEN: Definition = Definition::new(
    "apiserver_authorization_webhook_evaluations_fail_open_total",
    Stability::Beta,
    "Failed authorization webhook calls whose decision fell to the next authorizer, by name and result",
);
const TOKEN_REQUESTS: Definition = Definition::new(
    "authd_token_webhook_requests_total",
    Stability::Alpha,
    "Tokens sent to the token webhook, by result: success, refused, timeout or error",
);
const TOKEN_DURATION: Definition = Definition::new(
    "authd_token_webhook_duration_seconds",
    Stability::Alpha,
    "Duration in seconds of token webhook calls, all attempts together, by result",
);

/// Metrics of the authorization webhooks.
#[derive(Clone, Debug)]
pub struct WebhookMetrics {
    evaluations: Counters<WebhookLabels>,
    duration: Histograms<WebhookLabels>,
    fail_open: Counters<WebhookLabels>,
}

impl WebhookMetrics {
    /// Registers the metrics.
    pub(super) fn register(registry: &Metrics) -> Self {
        WebhookMetrics {
            evaluations: registry.counter(&EVALUATIONS),
            duration: registry.histogram(&DURATION, WEBHOOK_BUCKETS),
            fail_open: registry.counter(&FAIL_OPEN),
        }
    }

    /// Records one call with all its attempts, and its duration in seconds.
    /// `fails_open`: the call failed, and the next authorizer decides.
    pub fn observe_call(&self, name: &str, result: &str, seconds: f64, fails_open: bool) {
        let labels = [("name", name.to_owned()), ("result", result.to_owned())];
        self.evaluations.get_or_create(&labels).inc();
        self.duration.get_or_create(&labels).observe(seconds);
        if fails_open {
            self.fail_open.get_or_create(&labels).inc();
        }
    }
}

/// Metrics of the token webhook.
#[derive(Clone, Debug)]
pub struct TokenWebhookMetrics {
    requests: Counters<Labels<1>>,
    duration: Histograms<Labels<1>>,
}

impl TokenWebhookMetrics {
    /// Registers the metrics.
    pub(super) fn register(registry: &Metrics) -> Self {
        TokenWebhookMetrics {
            requests: registry.counter(&TOKEN_REQUESTS),
            duration: registry.histogram(&TOKEN_DURATION, WEBHOOK_BUCKETS),
        }
    }

    /// Records one call with all its attempts, and its duration in seconds.
    pub fn observe_call(&self, result: &'static str, seconds: f64) {
        self.requests.get_or_create(&[("result", result)]).inc();
        self.duration.get_or_create(&[("result", result)]).observe(seconds);
    }
}
