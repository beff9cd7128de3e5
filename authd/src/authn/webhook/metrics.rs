//! Metrics of the token webhook.

use serving::metrics::{Counters, Definition, Histograms, Metrics, Stability};

/// The label `result`.
type ResultLabel = [(&'static str, &'static str); 1];

const REQUESTS: Definition = Definition::new(
    "authd_token_webhook_requests_total",
    Stability::Alpha,
    "Tokens sent to the token webhook, by result: success, refused, timeout or error",
);
const DURATION: Definition = Definition::new(
    "authd_token_webhook_duration_seconds",
    Stability::Alpha,
    "Duration in seconds of token webhook calls, all attempts together, by result",
);

/// Histogram bucket limits of [`DURATION`], in seconds.
const DURATION_BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Metrics of the token webhook.
#[derive(Clone, Debug)]
pub struct TokenWebhookMetrics {
    requests: Counters<ResultLabel>,
    duration: Histograms<ResultLabel>,
}

impl TokenWebhookMetrics {
    /// Registers the metrics.
    pub fn register(registry: &Metrics) -> Self {
        TokenWebhookMetrics {
            requests: registry.counter(&REQUESTS),
            duration: registry.histogram(&DURATION, DURATION_BUCKETS),
        }
    }

    /// Records one call with all its attempts, and its duration in seconds.
    pub fn observe_call(&self, result: &'static str, seconds: f64) {
        self.requests.get_or_create(&[("result", result)]).inc();
        self.duration.get_or_create(&[("result", result)]).observe(seconds);
    }
}
