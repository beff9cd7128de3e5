//! Metrics of single authorizers and of their match conditions.

use std::time::Duration;

use apimachinery::decision::Verdict;
use serving::metrics::{Counter, Counters, Definition, Histogram, Histograms, Metrics, Stability};

/// The labels of [`DECISIONS`]. They are owned strings, because names of authorizers come from a file.
type DecisionLabels = [(&'static str, String); 3];
/// The labels of the other metrics: type and name of the authorizer.
type AuthorizerLabels = [(&'static str, String); 2];

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

/// The metrics of all authorizers, by their labels.
#[derive(Debug)]
pub(super) struct AuthorizerFamilies {
    decisions: Counters<DecisionLabels>,
    exclusions: Counters<AuthorizerLabels>,
    condition_errors: Counters<AuthorizerLabels>,
    condition_seconds: Histograms<AuthorizerLabels>,
}

impl AuthorizerFamilies {
    /// Registers the metrics.
    pub(super) fn register(registry: &Metrics) -> Self {
        AuthorizerFamilies {
            decisions: registry.counter(&DECISIONS),
            exclusions: registry.counter(&EXCLUSIONS),
            condition_errors: registry.counter(&CONDITION_ERRORS),
            condition_seconds: registry.histogram(&CONDITION_SECONDS, CONDITION_BUCKETS),
        }
    }

    /// Returns the counters of one authorizer.
    pub(super) fn counters(&self, kind: &str, name: &str) -> AuthorizerCounters {
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
