//! Metrics of conversion webhooks, under the names of kube-apiserver.

use std::time::Duration;

use kinds::custom::conversion::ResponseDefect;
use serving::metrics::{Counters, Definition, Histograms, Metrics, Stability};

const REQUESTS: Definition = Definition::new(
    "apiserver_conversion_webhook_request_total",
    Stability::Alpha,
    "Number of requests to conversion webhooks, by result and type of failure",
);
const LATENCY: Definition = Definition::new(
    "apiserver_conversion_webhook_duration_seconds",
    Stability::Alpha,
    "Seconds of a request to a conversion webhook, by result and type of failure",
);
const DURATION: Definition = Definition::new(
    "apiserver_crd_conversion_webhook_duration_seconds",
    Stability::Alpha,
    "Seconds of a conversion by a webhook, by definition, versions and success",
);
const LATENCY_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
const DURATION_BUCKETS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];

type Labels = Vec<(&'static str, String)>;

/// Cause of a failed conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureType {
    /// The call returned no usable response.
    Call,
    /// The response was decoded but is not valid.
    Response(ResponseDefect),
}

impl FailureType {
    fn as_str(self) -> &'static str {
        match self {
            FailureType::Call => "conversion_webhook_call_failure",
            FailureType::Response(ResponseDefect::Malformed) => {
                "conversion_webhook_malformed_response_failure"
            }
            FailureType::Response(ResponseDefect::Partial) => "conversion_webhook_partial_response_failure",
            FailureType::Response(ResponseDefect::InvalidObject) => {
                "conversion_webhook_invalid_converted_object_failure"
            }
        }
    }
}

/// The labels of a request to a conversion webhook.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conversion<'a> {
    /// The name of the CustomResourceDefinition.
    pub(super) definition: &'a str,
    /// The version of the objects before the conversion.
    pub(super) from_version: &'a str,
    /// The version to which the objects are converted.
    pub(super) to_version: &'a str,
}

/// The metrics of conversion webhooks.
pub struct ConversionMetrics {
    requests: Counters<Labels>,
    latency: Histograms<Labels>,
    duration: Histograms<Labels>,
}

impl ConversionMetrics {
    /// Registers the metrics.
    pub fn new(metrics: &Metrics) -> Self {
        ConversionMetrics {
            requests: metrics.counter(&REQUESTS),
            latency: metrics.histogram(&LATENCY, LATENCY_BUCKETS),
            duration: metrics.histogram(&DURATION, DURATION_BUCKETS),
        }
    }

    /// Records a request to a webhook. `failure` is None if the conversion succeeded.
    pub(super) fn record(
        &self,
        conversion: Conversion<'_>,
        failure: Option<FailureType>,
        duration: Duration,
    ) {
        let result = if failure.is_some() { "failure" } else { "success" };
        let failure_type = failure.map_or("", FailureType::as_str);
        let labels = vec![("result", result.to_owned()), ("failure_type", failure_type.to_owned())];
        self.requests.get_or_create(&labels).inc();
        self.latency.get_or_create(&labels).observe(duration.as_secs_f64());
        let labels = vec![
            ("crd_name", conversion.definition.to_owned()),
            ("from_version", conversion.from_version.to_owned()),
            ("to_version", conversion.to_version.to_owned()),
            ("succeeded", failure.is_none().to_string()),
        ];
        self.duration.get_or_create(&labels).observe(duration.as_secs_f64());
    }
}
