//! Metrics of the authorizers, of their match conditions and of authorization webhooks.

use std::time::Duration;

use apimachinery::decision::Verdict;
use serving::metrics::{Counter, Counters, Definition, Histogram, Histograms, Metrics, Stability};

/// Labels with owned values, because names of authorizers come from a file.
type OwnedLabels<const N: usize> = [(&'static str, String); N];

const DECISIONS: Definition = Definition::new(
    "apiserver_authorization_decisions_total",
    Stability::Alpha,
    "Decisions of an authorizer, by its type, its name and the decision",
);
const EXCLUSIONS: Definition = Definition::new(
    "apiserver_authorization_match_condition_exclusions_total",
    Stability::Alpha,
    "Requests that skipped an authorizer because a match condition was false, by its type and name",
);
const CONDITION_ERRORS: Definition = Definition::new(
    "apiserver_authorization_match_condition_evaluation_errors_total",
    Stability::Alpha,
    "Requests whose match conditions failed to evaluate, by type and name of the authorizer",
);
const CONDITION_SECONDS: Definition = Definition::new(
    "apiserver_authorization_match_condition_evaluation_seconds",
    Stability::Alpha,
    "Duration in seconds of match-condition evaluation, by type and name of the authorizer",
);
/// Histogram bucket limits of [`CONDITION_SECONDS`], in seconds.
const CONDITION_BUCKETS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25];

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
/// Histogram bucket limits of [`DURATION`], in seconds.
const DURATION_BUCKETS: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The metrics of all authorizers, by their labels.
#[derive(Clone, Debug)]
pub struct AuthzMetrics {
    decisions: Counters<OwnedLabels<3>>,
    exclusions: Counters<OwnedLabels<2>>,
    condition_errors: Counters<OwnedLabels<2>>,
    condition_seconds: Histograms<OwnedLabels<2>>,
    webhooks: WebhookMetrics,
}

impl AuthzMetrics {
    /// Registers the metrics.
    pub fn register(registry: &Metrics) -> Self {
        AuthzMetrics {
            decisions: registry.counter(&DECISIONS),
            exclusions: registry.counter(&EXCLUSIONS),
            condition_errors: registry.counter(&CONDITION_ERRORS),
            condition_seconds: registry.histogram(&CONDITION_SECONDS, CONDITION_BUCKETS),
            webhooks: WebhookMetrics::register(registry),
        }
    }

    /// Returns the metrics of the authorization webhooks.
    pub fn webhooks(&self) -> &WebhookMetrics {
        &self.webhooks
    }

    /// Returns the counters of one authorizer.
    pub fn counters(&self, kind: &str, name: &str) -> AuthorizerCounters {
        let decision_counter = |decision: &str| {
            let labels = [("type", kind), ("name", name), ("decision", decision)];
            self.decisions.get_or_create(&labels.map(|(label, value)| (label, value.to_owned()))).clone()
        };
        let labels = [("type", kind.to_owned()), ("name", name.to_owned())];
        AuthorizerCounters {
            allowed: decision_counter("allowed"),
            denied: decision_counter("denied"),
            exclusions: self.exclusions.get_or_create(&labels).clone(),
            condition_errors: self.condition_errors.get_or_create(&labels).clone(),
            condition_seconds: self.condition_seconds.get_or_create(&labels).clone(),
        }
    }
}

/// The counters of one authorizer.
#[derive(Clone, Debug)]
pub struct AuthorizerCounters {
    allowed: Counter,
    denied: Counter,
    exclusions: Counter,
    condition_errors: Counter,
    condition_seconds: Histogram,
}

impl AuthorizerCounters {
    /// Counts a request for which the webhook was skipped, because a match condition was false.
    pub fn count_exclusion(&self) {
        self.exclusions.inc();
    }

    /// Records the duration of the evaluation of all match conditions for a request.
    pub fn observe_condition(&self, duration: Duration) {
        self.condition_seconds.observe(duration.as_secs_f64());
    }

    /// Counts a request for which the evaluation of match conditions failed.
    pub fn count_condition_error(&self) {
        self.condition_errors.inc();
    }

    /// Counts the decision of an authorizer.
    pub fn count_decision(&self, verdict: Verdict) {
        match verdict {
            Verdict::Allow => self.allowed.inc(),
            Verdict::Deny => self.denied.inc(),
            Verdict::NoOpinion => return,
        };
    }
}

/// Metrics of the authorization webhooks.
#[derive(Clone, Debug)]
pub struct WebhookMetrics {
    evaluations: Counters<OwnedLabels<2>>,
    duration: Histograms<OwnedLabels<2>>,
    fail_open: Counters<OwnedLabels<2>>,
}

impl WebhookMetrics {
    /// Registers the metrics.
    fn register(registry: &Metrics) -> Self {
        WebhookMetrics {
            evaluations: registry.counter(&EVALUATIONS),
            duration: registry.histogram(&DURATION, DURATION_BUCKETS),
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
