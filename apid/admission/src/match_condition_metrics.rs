//! Metrics of match conditions, with the names of kube-apiserver.

use serving::metrics::{Counters, Definition, Histograms, Metrics, Stability};

use crate::Operation;
use crate::match_conditions::ConditionsOutcome;

const ERRORS: Definition = Definition::new(
    "apiserver_admission_match_condition_evaluation_errors_total",
    Stability::Alpha,
    "Number of failed match conditions, by name, kind (webhook or policy), type and operation",
);

const EXCLUSIONS: Definition = Definition::new(
    "apiserver_admission_match_condition_exclusions_total",
    Stability::Alpha,
    "Number of writes that match conditions excluded, by name, kind (webhook or policy), type and operation",
);

const DURATION: Definition = Definition::new(
    "apiserver_admission_match_condition_evaluation_seconds",
    Stability::Alpha,
    "Time in seconds of all match conditions of a write, by name, kind (webhook or policy), type and operation",
);

/// Upper limits of the histogram buckets in seconds.
const BUCKETS: &[f64] = &[0.001, 0.005, 0.01, 0.025, 0.1, 0.2, 0.25];

type Labels = [(&'static str, String); 4];

/// The metrics of match conditions.
pub(crate) struct MatchConditionMetrics {
    errors: Counters<Labels>,
    exclusions: Counters<Labels>,
    duration: Histograms<Labels>,
}

/// The webhook or policy that has the match conditions, for the metric labels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConditionsOwner<'a> {
    /// Name of the webhook or policy.
    pub(crate) name: &'a str,
    /// `webhook` or `policy`.
    pub(crate) kind: &'static str,
    /// Metric label `type`: `admit` or `validating` for the two kinds of webhooks, `validate` for policies.
    pub(crate) phase: &'static str,
}

impl<'a> ConditionsOwner<'a> {
    /// A policy. kube-apiserver has the same phase for validating and mutating policies.
    pub(crate) fn policy(name: &'a str) -> Self {
        ConditionsOwner { name, kind: "policy", phase: "validate" }
    }
}

impl MatchConditionMetrics {
    /// Registers the metrics.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        MatchConditionMetrics {
            errors: metrics.counter(&ERRORS),
            exclusions: metrics.counter(&EXCLUSIONS),
            duration: metrics.histogram(&DURATION, BUCKETS),
        }
    }

    /// Observes the evaluation of all conditions of a webhook or policy.
    pub(crate) fn observe(
        &self,
        owner: ConditionsOwner<'_>,
        operation: Operation,
        outcome: &ConditionsOutcome,
    ) {
        let labels = [
            ("name", owner.name.to_owned()),
            ("kind", owner.kind.to_owned()),
            ("type", owner.phase.to_owned()),
            ("operation", operation.as_str().to_owned()),
        ];
        if outcome.errors > 0 {
            self.errors.get_or_create(&labels).inc_by(outcome.errors);
        }
        if outcome.result == Ok(false) {
            self.exclusions.get_or_create(&labels).inc();
        }
        self.duration.get_or_create(&labels).observe(outcome.took.as_secs_f64());
    }
}
