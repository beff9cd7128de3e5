//! Metrics of the availability of servers behind APIServices, with the names of Kubernetes.

use serving::metrics::{Counters, Definition, Gauges, Metrics, Stability};

const UNAVAILABLE: Definition = Definition::new(
    "aggregator_unavailable_apiservice",
    Stability::Alpha,
    "Whether the server of an APIService is not available (1) or available (0), by the name of the APIService",
);
const FAILURES: Definition = Definition::new(
    "aggregator_unavailable_apiservice_total",
    Stability::Alpha,
    "Number of times that an APIService became unavailable, by its name and the reason",
);

type Name = [(&'static str, String); 1];
type NameAndReason = [(&'static str, String); 2];

/// The families of the metrics.
pub(super) struct AvailabilityMetrics {
    unavailable: Gauges<Name>,
    failures: Counters<NameAndReason>,
}

impl AvailabilityMetrics {
    /// Registers the families.
    pub(super) fn new(metrics: &Metrics) -> Self {
        AvailabilityMetrics { unavailable: metrics.gauge(&UNAVAILABLE), failures: metrics.counter(&FAILURES) }
    }

    /// Records the result of a check. `failure`: the reason if the server has just become unavailable.
    pub(super) fn record(&self, name: &str, is_available: bool, failure: Option<&'static str>) {
        let label = [("name", name.to_owned())];
        self.unavailable.get_or_create(&label).set(i64::from(!is_available));
        if let Some(reason) = failure {
            let labels = [("name", name.to_owned()), ("reason", reason.to_owned())];
            self.failures.get_or_create(&labels).inc();
        }
    }

    /// Forgets an APIService.
    pub(super) fn remove(&self, name: &str) {
        self.unavailable.remove(&[("name", name.to_owned())]);
    }
}
