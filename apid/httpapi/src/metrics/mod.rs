//! Request metrics, with the metric names of Kubernetes (requirements D-METRIC-1 to -9, -13).
//!
//! # Contract
//!
//! Each request counts once, after its response head is made. A cache maps the properties of a request to the
//! handles of its series, so counting allocates nothing after the first request of a series.
//!
//! # Invariants
//!
//! INVARIANT (bounded labels): no label contains text of a client: unknown resources count with empty labels.
//!
//! # Reference
//!
//! Names, labels and buckets are those of kube-apiserver 1.33. `docs/metrics.csv` lists the families.

mod active;
mod health;
mod info;
mod series;
mod state;
mod streams;

use std::collections::HashMap;
use std::time::Duration;

use http::request::Parts;
use kinds::Kind;
use parking_lot::RwLock;
use serving::metrics::{
    Counter, Counters, Definition, Gauges, Histogram, Histograms, Metrics, ProcessMetrics, Stability,
};

pub(super) use active::ActiveRequest;
use active::InFlightRequests;
pub(super) use health::HealthMetrics;
use series::{Series, SeriesHandles};
pub(crate) use state::collect_state;
pub(crate) use streams::StreamMetrics;

use super::query::Query;
use super::request_info::RequestInfo;

const REQUESTS: Definition = stable(
    "apiserver_request_total",
    "Number of completed requests by verb, dry run, resource, scope, component and HTTP code",
);
const DURATION: Definition = stable(
    "apiserver_request_duration_seconds",
    "Time from the request head to the response head in seconds, by verb, resource and scope, without watches",
);
const SLI_DURATION: Definition = alpha(
    "apiserver_request_sli_duration_seconds",
    "Duration of requests in seconds for service level indicators, without watches, by verb, resource and scope",
);
const RESPONSE_SIZES: Definition = stable(
    "apiserver_response_sizes",
    "Size of responses to GET and LIST in bytes, by verb, resource and scope",
);
const BODY_SIZES: Definition =
    alpha("apiserver_request_body_size_bytes", "Size of request bodies in bytes, by resource and verb");
const FIELD_VALIDATION: Definition = alpha(
    "field_validation_request_duration_seconds",
    "Duration of writes in seconds, by the value of fieldValidation",
);
const TERMINATIONS: Definition = alpha(
    "apiserver_request_terminations_total",
    "Number of requests that the server refused or ended to protect itself, by verb, resource, scope and code",
);
const ABORTS: Definition = alpha(
    "apiserver_request_aborts_total",
    "Number of responses aborted at the request deadline or by superseded objects, by verb, resource and scope",
);
const DEPRECATED: Definition = stable(
    "apiserver_requested_deprecated_apis",
    "Requested deprecated APIs (value 1), by group, version, resource, subresource and removed release",
);
const LONG_RUNNING: Definition = stable(
    "apiserver_longrunning_requests",
    "Number of open watches, logs and streams of containers, by verb, resource, scope and component",
);

/// Upper bounds of the buckets of request durations, in seconds.
const DURATION_BUCKETS: &[f64] = &[
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];
/// Upper bounds of the buckets of the durations of writes, in seconds.
const VALIDATION_BUCKETS: &[f64] = &[
    0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0,
    45.0, 60.0,
];
/// Upper bounds of the buckets of response sizes, in bytes.
const RESPONSE_BUCKETS: &[f64] = &[1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9];
/// Upper bounds of the buckets of body sizes, in bytes: 50 kB, then steps of 100 kB to the limit of a body.
const BODY_BUCKETS: &[f64] = &[
    50e3, 150e3, 250e3, 350e3, 450e3, 550e3, 650e3, 750e3, 850e3, 950e3, 1050e3, 1150e3, 1250e3, 1350e3,
    1450e3, 1550e3, 1650e3, 1750e3, 1850e3, 1950e3, 2050e3, 2150e3, 2250e3, 2350e3, 2450e3, 2550e3, 2650e3,
    2750e3, 2850e3, 2950e3, 3050e3,
];

/// Defines an alpha metric.
const fn alpha(name: &'static str, help: &'static str) -> Definition {
    Definition::new(name, Stability::Alpha, help)
}

/// Defines a stable metric.
const fn stable(name: &'static str, help: &'static str) -> Definition {
    Definition::new(name, Stability::Stable, help)
}

/// Names and values of the labels of a series.
type Labels = Vec<(&'static str, String)>;

/// The metrics of requests.
pub(crate) struct RequestMetrics {
    requests: Counters<Labels>,
    durations: Histograms<Labels>,
    sli_durations: Histograms<Labels>,
    response_sizes: Histograms<Labels>,
    body_sizes: Histograms<Labels>,
    /// Durations of writes, for each of [`FIELD_VALIDATION_VALUES`].
    field_validation: [Histogram; 3],
    terminations: Counters<Labels>,
    aborts: Counters<Labels>,
    deprecated: Gauges<Labels>,
    /// Handles of the series that requests have used.
    handles: RwLock<HashMap<Series, SeriesHandles>>,
    in_flight: InFlightRequests,
    long_running: Gauges<Labels>,
    /// Results of health checks, for `/metrics/slis`.
    pub(super) health: HealthMetrics,
}

/// Values of the parameter fieldValidation.
const FIELD_VALIDATION_VALUES: [&str; 3] = ["Ignore", "Warn", "Strict"];

/// The result of a request, for its metrics.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestOutcome {
    /// HTTP code.
    pub(super) code: u16,
    /// Time from the request head to the response head.
    pub(super) latency: Duration,
    /// Bytes of the response body, if known before it is sent.
    pub(super) response_bytes: Option<u64>,
    /// Whether the server rejected the request with 429, or ended it at the timeout.
    pub(super) is_terminated: bool,
}

impl RequestMetrics {
    /// Registers the metrics.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let process = ProcessMetrics::new(metrics);
        metrics.collect_with(move || process.update());
        let field_validation = metrics.histogram::<Labels>(&FIELD_VALIDATION, VALIDATION_BUCKETS);
        let histogram_of = |value: &str| {
            field_validation.get_or_create(&vec![("field_validation", value.to_owned())]).clone()
        };
        RequestMetrics {
            requests: metrics.counter(&REQUESTS),
            durations: metrics.histogram(&DURATION, DURATION_BUCKETS),
            sli_durations: metrics.histogram(&SLI_DURATION, DURATION_BUCKETS),
            response_sizes: metrics.histogram(&RESPONSE_SIZES, RESPONSE_BUCKETS),
            body_sizes: metrics.histogram(&BODY_SIZES, BODY_BUCKETS),
            field_validation: FIELD_VALIDATION_VALUES.map(histogram_of),
            terminations: metrics.counter(&TERMINATIONS),
            aborts: metrics.counter(&ABORTS),
            deprecated: metrics.gauge(&DEPRECATED),
            handles: RwLock::default(),
            in_flight: InFlightRequests::new(metrics),
            long_running: metrics.gauge(&LONG_RUNNING),
            health: HealthMetrics::new(),
        }
    }

    /// Counts a request after its response head is made. `resource` is its served resource.
    ///
    /// Returns the histogram for the size of the response when this size is not known yet.
    pub(super) fn count(
        &self,
        info: &RequestInfo,
        query: &Query,
        head: &Parts,
        resource: Option<&Kind>,
        outcome: RequestOutcome,
    ) -> Option<Histogram> {
        let series = Series::new(info, query, head, resource, outcome.code);
        if series.is_write()
            && let Some(validation) = self.field_validation(query)
        {
            validation.observe(outcome.latency.as_secs_f64());
        }
        if outcome.is_terminated {
            let mut labels = series.resource_labels(resource);
            labels.push(("code", outcome.code.to_string()));
            self.terminations.get_or_create(&labels).inc();
        }
        // Counts under the read lock, so requests do not contend for the reference counts of the handles.
        if let Some(handles) = self.handles.read().get(&series) {
            return handles.count(outcome);
        }
        let handles = self.make_handles(&series, resource);
        let size_histogram = handles.count(outcome);
        self.handles.write().insert(series, handles);
        size_histogram
    }

    /// Records the size of a request body.
    pub(super) fn observe_body(&self, info: &RequestInfo, resource: Option<&Kind>, bytes: usize) {
        let (Some(resource), false) = (resource, bytes == 0) else { return };
        let labels =
            vec![("resource", resource.group_resource.to_string()), ("verb", info.attributes.verb.clone())];
        self.body_sizes.get_or_create(&labels).observe(bytes as f64);
    }

    /// Marks a deprecated resource as requested. `removed_release` is empty if no release removes it yet.
    pub(super) fn mark_deprecated(
        &self,
        resource: &Kind,
        version: &str,
        subresource: &str,
        removed_release: &str,
    ) {
        let labels: Labels = vec![
            ("group", resource.group_resource.group.clone()),
            ("version", version.to_owned()),
            ("resource", resource.group_resource.resource.clone()),
            ("subresource", subresource.to_owned()),
            ("removed_release", removed_release.to_owned()),
        ];
        self.deprecated.get_or_create(&labels).set(1);
    }

    /// Returns a closure that counts an aborted response.
    pub(super) fn abort_counter(
        &self,
        info: &RequestInfo,
        query: &Query,
        head: &Parts,
        resource: Option<&Kind>,
    ) -> impl FnOnce() + Send + 'static {
        let mut labels = Series::new(info, query, head, resource, 0).resource_labels(resource);
        labels.retain(|(name, _)| *name != "component");
        let aborts = self.aborts.clone();
        move || {
            aborts.get_or_create(&labels).inc();
        }
    }

    /// Counts a request as in flight until the guard is dropped.
    pub(super) fn begin_in_flight(&self, is_write: bool) -> ActiveRequest {
        self.in_flight.begin(is_write)
    }

    /// Returns the task that measures the peaks of requests in flight. Without it a peak is never forgotten.
    pub(crate) fn measure_peaks(&self) -> impl Future<Output = ()> + Send + 'static + use<> {
        self.in_flight.measure_peaks()
    }

    /// Counts a watch as running until the guard is dropped.
    pub(super) fn begin_long_running(
        &self,
        info: &RequestInfo,
        query: &Query,
        head: &Parts,
        resource: &Kind,
    ) -> ActiveRequest {
        let series = Series::new(info, query, head, Some(resource), 0);
        let labels = series.resource_labels(Some(resource));
        ActiveRequest::long_running(self.long_running.get_or_create(&labels).clone())
    }

    fn field_validation(&self, query: &Query) -> Option<&Histogram> {
        let value = match query.text("fieldValidation") {
            "" => "Warn",
            value => value,
        };
        let index = FIELD_VALIDATION_VALUES.iter().position(|known| *known == value)?;
        self.field_validation.get(index)
    }

    fn make_handles(&self, series: &Series, resource: Option<&Kind>) -> SeriesHandles {
        let mut labels = series.resource_labels(resource);
        let is_read = matches!(series.verb, "GET" | "LIST");
        let is_timed = series.verb != "WATCH";
        let response_size = is_read.then(|| self.response_sizes.get_or_create(&labels).clone());
        let sli = is_timed.then(|| self.sli_durations.get_or_create(&labels).clone());
        labels.insert(1, ("dry_run", if series.dry_run { "All" } else { "" }.to_owned()));
        let duration = is_timed.then(|| self.durations.get_or_create(&labels).clone());
        labels.push(("code", series.code.to_string()));
        let requests: Counter = self.requests.get_or_create(&labels).clone();
        SeriesHandles { requests, duration, sli, response_size }
    }
}
