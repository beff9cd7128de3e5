//! Metrics of conversion webhooks, under the names of kube-apiserver.

use std::time::Duration;

use apimachinery::gvk::GroupResource;
use kinds::custom::conversion::ResponseDefect;
use serving::metrics::{Counters, Definition, Histograms, Metrics, Stability};

const LATENCY_BUCKETS: &[f64] =
    &[0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0, 60.0];
const DURATION_BUCKETS: &[f64] = &[
    0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192, 16.384,
];

type Labels = Vec<(&'static str, String)>;

/// The label of a failure whose call returned no usable response.
pub(super) const CALL_FAILURE: &str = "conversion_webhook_call_failure";

/// Returns the label of a failure whose response was decoded but is not valid.
pub(super) fn response_failure(defect: ResponseDefect) -> &'static str {
    match defect {
        ResponseDefect::Malformed => "conversion_webhook_malformed_response_failure",
        ResponseDefect::Partial => "conversion_webhook_partial_response_failure",
        ResponseDefect::InvalidObject => "conversion_webhook_invalid_converted_object_failure",
    }
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
        let definition = |name, help| Definition::new(name, Stability::Alpha, help);
        let histogram = |name, help, buckets| metrics.histogram(&definition(name, help), buckets);
        ConversionMetrics {
            requests: metrics.counter(&definition(
                "apiserver_conversion_webhook_request_total",
                "Number of requests to conversion webhooks, by result and type of failure",
            )),
            latency: histogram(
                "apiserver_conversion_webhook_duration_seconds",
                "Seconds of a request to a conversion webhook, by result and type of failure",
                LATENCY_BUCKETS,
            ),
            duration: histogram(
                "apiserver_crd_conversion_webhook_duration_seconds",
                "Seconds of a conversion by a webhook, by definition, versions and success",
                DURATION_BUCKETS,
            ),
        }
    }

    /// Records a request to the webhook of a CustomResourceDefinition. `failure` is None on success.
    pub(super) fn record(
        &self,
        definition: &GroupResource,
        (from_version, to_version): (&str, &str),
        failure: Option<&'static str>,
        duration: Duration,
    ) {
        let result = if failure.is_some() { "failure" } else { "success" };
        let failure_type = failure.unwrap_or_default();
        let labels = vec![("result", result.to_owned()), ("failure_type", failure_type.to_owned())];
        self.requests.get_or_create(&labels).inc();
        self.latency.get_or_create(&labels).observe(duration.as_secs_f64());
        let labels = vec![
            ("crd_name", definition.to_string()),
            ("from_version", from_version.to_owned()),
            ("to_version", to_version.to_owned()),
            ("succeeded", failure.is_none().to_string()),
        ];
        self.duration.get_or_create(&labels).observe(duration.as_secs_f64());
    }
}
