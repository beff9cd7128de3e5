//! What is counted of requests (requirements D-METRIC-7 to -9, -13).

use std::time::Duration;

use serving::metrics::{Counters, Definition, Histograms, Metrics, Stability};

use super::query::Query;
use super::request_info::RequestInfo;

const REQUESTS: Definition = Definition::new(
    "apiserver_request_total",
    Stability::Stable,
    "Requests by verb, resource, scope and HTTP code",
);

const DURATION: Definition = Definition::new(
    "apiserver_request_duration_seconds",
    Stability::Stable,
    "Time from the head of a request to the head of its answer, by verb, resource and scope; watches aside",
);

/// Upper bounds in seconds.
const BUCKETS: &[f64] =
    &[0.001, 0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0];

type Labels = Vec<(&'static str, String)>;

/// The metrics of requests. No label holds a name that a client chose: what is not served counts as no resource.
pub struct RequestMetrics {
    requests: Counters<Labels>,
    durations: Histograms<Labels>,
}

impl RequestMetrics {
    /// Registers them.
    pub fn new(metrics: &Metrics) -> Self {
        RequestMetrics {
            requests: metrics.counter(&REQUESTS),
            durations: metrics.histogram(&DURATION, BUCKETS),
        }
    }

    /// Counts an answered request.
    pub(super) fn count(
        &self,
        info: &RequestInfo,
        query: &Query,
        served: bool,
        code: u16,
        latency: Duration,
    ) {
        let a = &info.attributes;
        let text = |text: &str| if served { text.to_owned() } else { String::new() };
        let verb = match a.verb.as_str() {
            "create" | "post" => "POST",
            "get" => "GET",
            "list" => "LIST",
            "watch" => "WATCH",
            "update" | "put" => "PUT",
            "patch" => "PATCH",
            "delete" | "deletecollection" => "DELETE",
            _ => "other",
        };
        let scope = match (a.resource_request && served, info.path_name(), info.namespace.as_str()) {
            (false, ..) => "",
            (true, name, _) if !name.is_empty() => "resource",
            (true, _, namespace) if !namespace.is_empty() => "namespace",
            _ => "cluster",
        };
        let dry_run = if query.all("dryRun").any(|value| value == "All") { "All" } else { "" };
        let mut labels: Labels = vec![
            ("verb", verb.to_owned()),
            ("dry_run", dry_run.to_owned()),
            ("group", text(&a.group)),
            ("version", text(&a.version)),
            ("resource", text(&a.resource)),
            ("subresource", text(&a.subresource)),
            ("scope", scope.to_owned()),
            ("component", "apiserver".to_owned()),
        ];
        if verb != "WATCH" {
            self.durations.get_or_create(&labels).observe(latency.as_secs_f64());
        }
        labels.push(("code", code.to_string()));
        self.requests.get_or_create(&labels).inc();
    }
}
