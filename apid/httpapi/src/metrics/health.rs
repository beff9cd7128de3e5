//! Results of health checks as metrics, on `/metrics/slis`.

use serving::health::{Checks, HealthAnswer};
use serving::metrics::{Counters, Gauges, Metrics};

use super::{Labels, stable};

/// The metrics of health checks, in a registry of their own.
pub(crate) struct HealthMetrics {
    registry: Metrics,
    result: Gauges<Labels>,
    results: Counters<Labels>,
}

impl HealthMetrics {
    /// Creates the registry.
    pub(super) fn new() -> Self {
        let registry = Metrics::new();
        let result = registry.gauge(&stable(
            "kubernetes_healthcheck",
            "Result of a health check (1 success, 0 failure), by name and endpoint",
        ));
        let results = registry.counter(&stable(
            "kubernetes_healthchecks_total",
            "Number of results of health checks, by name, endpoint and status",
        ));
        HealthMetrics { registry, result, results }
    }

    /// Records the response of a health endpoint. `check`: the requested single check; None for all checks.
    pub(crate) fn record(&self, endpoint: &str, check: Option<&str>, checks: &Checks, answer: &HealthAnswer) {
        for name in checks.names().filter(|name| check.is_none_or(|check| check == *name)) {
            let is_failed = answer.failures.iter().any(|(failed, _)| failed == name);
            let mut labels = vec![("name", name.to_owned()), ("type", endpoint.to_owned())];
            self.result.get_or_create(&labels).set(i64::from(!is_failed));
            labels.push(("status", if is_failed { "error" } else { "success" }.to_owned()));
            self.results.get_or_create(&labels).inc();
        }
    }

    /// Returns the metric families in the text format of Prometheus.
    pub(crate) fn text(&self) -> String {
        self.registry.text()
    }
}
