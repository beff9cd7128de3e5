//! Metrics of webhooks, with the names of kube-apiserver.

use std::time::Duration;

use serving::metrics::{Counters, Definition, Histograms, Metrics, Stability};

use super::hook::Hook;
use crate::Operation;

const DURATION: Definition = Definition::new(
    "apiserver_admission_webhook_admission_duration_seconds",
    Stability::Stable,
    "Time in seconds of calls of admission webhooks, by name, operation and type",
);

const REJECTIONS: Definition = Definition::new(
    "apiserver_admission_webhook_rejection_count",
    Stability::Alpha,
    "Number of writes that admission webhooks rejected, by name, operation, type, error type and code",
);

const FAIL_OPEN: Definition = Definition::new(
    "apiserver_admission_webhook_fail_open_count",
    Stability::Alpha,
    "Number of failed calls of admission webhooks that let the write pass, by name and type",
);

const REQUESTS: Definition = Definition::new(
    "apiserver_admission_webhook_request_total",
    Stability::Alpha,
    "Number of calls of admission webhooks, by name, operation, type, code and rejection",
);

/// Upper limits of the histogram buckets in seconds.
const BUCKETS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];
/// Highest HTTP status code in metric labels; this label value also stands for all higher codes.
const MAX_CODE: u16 = 600;

type Labels = Vec<(&'static str, String)>;

/// The metrics of webhooks.
pub(crate) struct WebhookMetrics {
    duration: Histograms<Labels>,
    rejections: Counters<Labels>,
    fail_open: Counters<Labels>,
    requests: Counters<Labels>,
}

/// Cause of a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ErrorType {
    /// The webhook could not be called, or its response is not a valid review.
    CallingWebhook,
    /// apid could not apply the patch, or the webhook does not support dry runs.
    Internal,
    /// The webhook denied the write.
    None,
}

impl ErrorType {
    fn as_str(self) -> &'static str {
        match self {
            ErrorType::CallingWebhook => "calling_webhook_error",
            ErrorType::Internal => "apiserver_internal_error",
            ErrorType::None => "no_error",
        }
    }
}

impl WebhookMetrics {
    /// Registers the metrics.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        WebhookMetrics {
            duration: metrics.histogram(&DURATION, BUCKETS),
            rejections: metrics.counter(&REJECTIONS),
            fail_open: metrics.counter(&FAIL_OPEN),
            requests: metrics.counter(&REQUESTS),
        }
    }

    /// Observes a call with its result code.
    pub(super) fn observe_call(
        &self,
        hook: &Hook,
        kind: &'static str,
        operation: Operation,
        code: u16,
        is_rejected: bool,
        took: Duration,
    ) {
        let mut labels = labels(hook, kind);
        labels.push(("operation", operation.as_str().to_owned()));
        labels.push(("rejected", is_rejected.to_string()));
        self.duration.get_or_create(&labels).observe(took.as_secs_f64());
        labels.push(("code", code.min(MAX_CODE).to_string()));
        self.requests.get_or_create(&labels).inc();
    }

    /// Counts a rejection.
    pub(super) fn count_rejection(
        &self,
        hook: &Hook,
        kind: &'static str,
        operation: Operation,
        error_type: ErrorType,
        code: u16,
    ) {
        let mut labels = labels(hook, kind);
        labels.push(("operation", operation.as_str().to_owned()));
        labels.push(("error_type", error_type.as_str().to_owned()));
        labels.push(("rejection_code", code.min(MAX_CODE).to_string()));
        self.rejections.get_or_create(&labels).inc();
    }

    /// Counts a failed call after which the write continued.
    pub(super) fn count_fail_open(&self, hook: &Hook, kind: &'static str) {
        self.fail_open.get_or_create(&labels(hook, kind)).inc();
    }
}

fn labels(hook: &Hook, kind: &'static str) -> Labels {
    vec![("name", hook.name.clone()), ("type", kind.to_owned())]
}
