//! Metrics of admission policies, with the names of kube-apiserver.

use std::time::Duration;

use serving::metrics::{Counters, Definition, Histograms, Metrics, Stability};

use crate::match_conditions::BUDGET;

const VALIDATIONS: Definition = Definition::new(
    "apiserver_validating_admission_policy_check_total",
    Stability::Beta,
    "Number of failed validations, by policy, binding, error type and enforcement action",
);

const VALIDATION_DURATION: Definition = Definition::new(
    "apiserver_validating_admission_policy_check_duration_seconds",
    Stability::Beta,
    "Time in seconds of failed validations, by policy, binding, error type and enforcement action",
);

const MUTATIONS: Definition = Definition::new(
    "apiserver_mutating_admission_policy_check_total",
    Stability::Alpha,
    "Number of mutations, by policy, binding and error type",
);

const MUTATION_DURATION: Definition = Definition::new(
    "apiserver_mutating_admission_policy_check_duration_seconds",
    Stability::Alpha,
    "Time in seconds of mutations, by policy, binding and error type",
);

/// Upper limits of the histogram buckets in seconds.
const BUCKETS: &[f64] = &[0.000_000_5, 0.001, 0.01, 0.1, 1.0];

/// The error type of a mutation without an error.
const NO_ERROR: &str = "no_error";

type Labels = Vec<(&'static str, String)>;

/// The metrics of policies.
pub(crate) struct PolicyMetrics {
    validations: Family,
    mutations: Family,
}

/// A counter and a histogram with the same labels.
struct Family {
    count: Counters<Labels>,
    duration: Histograms<Labels>,
}

impl Family {
    fn observe(&self, labels: &Labels, took: Duration) {
        self.count.get_or_create(labels).inc();
        self.duration.get_or_create(labels).observe(took.as_secs_f64());
    }
}

impl PolicyMetrics {
    /// Registers the metrics.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let family = |count: &'static Definition, duration: &'static Definition| Family {
            count: metrics.counter(count),
            duration: metrics.histogram(duration, BUCKETS),
        };
        PolicyMetrics {
            validations: family(&VALIDATIONS, &VALIDATION_DURATION),
            mutations: family(&MUTATIONS, &MUTATION_DURATION),
        }
    }

    /// Observes a failed validation with its message, for one enforcement action: `deny`, `audit`, `warn`, or
    /// `allow` for an ignored error.
    pub(crate) fn observe_validation(
        &self,
        policy: &str,
        binding: &str,
        action: &'static str,
        message: &str,
        took: Duration,
    ) {
        let mut labels = labels(policy, binding, error_type(message));
        labels.push(("enforcement_action", action.to_owned()));
        self.validations.observe(&labels, took);
    }

    /// Observes a mutation with its error message, if it failed.
    pub(crate) fn observe_mutation(&self, policy: &str, binding: &str, error: Option<&str>, took: Duration) {
        let labels = labels(policy, binding, error.map_or(NO_ERROR, error_type));
        self.mutations.observe(&labels, took);
    }
}

/// The error type of a message, by its first words. As in kube-apiserver, a false validation has the type
/// `invalid_error`, unless the message of the validation begins with the words of another error type.
fn error_type(message: &str) -> &'static str {
    if message.starts_with("compilation") {
        "compile_error"
    } else if message.starts_with(BUDGET) {
        "out_of_budget"
    } else {
        "invalid_error"
    }
}

fn labels(policy: &str, binding: &str, error_type: &'static str) -> Labels {
    vec![
        ("policy", policy.to_owned()),
        ("policy_binding", binding.to_owned()),
        ("error_type", error_type.to_owned()),
    ]
}
