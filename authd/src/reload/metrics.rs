//! Metrics of the reloads of configuration files.

use apimachinery::clock::Clock;
use serving::metrics::{Counters, Definition, FloatGauges, Metrics, Stability};

/// Labels of the reload metrics: server id and status.
type ReloadLabels = [(&'static str, &'static str); 2];

const AUTHN_RELOADS: Definition = Definition::new(
    "apiserver_authentication_config_controller_automatic_reloads_total",
    Stability::Alpha,
    "Reloads of the authentication configuration, by status and server",
);
const AUTHN_RELOAD_TIME: Definition = Definition::new(
    "apiserver_authentication_config_controller_automatic_reload_last_timestamp_seconds",
    Stability::Alpha,
    "Unix time in seconds of the last authentication configuration reload, by status and server",
);
const AUTHZ_RELOADS: Definition = Definition::new(
    "apiserver_authorization_config_controller_automatic_reloads_total",
    Stability::Alpha,
    "Reloads of the authorization configuration, by status and server",
);
const AUTHZ_RELOAD_TIME: Definition = Definition::new(
    "apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds",
    Stability::Alpha,
    "Unix time in seconds of the last authorization configuration reload, by status and server",
);

/// Metrics of the reloads of one file.
#[derive(Clone, Debug)]
pub struct ReloadMetrics {
    /// The number of reloads by status.
    total: Counters<ReloadLabels>,
    /// The Unix time in seconds of the last reload, by status.
    last: FloatGauges<ReloadLabels>,
}

impl ReloadMetrics {
    /// Registers the metrics of the authentication configuration.
    pub fn for_authentication(registry: &Metrics) -> Self {
        ReloadMetrics::register(registry, &AUTHN_RELOADS, &AUTHN_RELOAD_TIME)
    }

    /// Registers the metrics of the authorization configuration.
    pub fn for_authorization(registry: &Metrics) -> Self {
        ReloadMetrics::register(registry, &AUTHZ_RELOADS, &AUTHZ_RELOAD_TIME)
    }

    fn register(registry: &Metrics, total: &Definition, last: &Definition) -> Self {
        ReloadMetrics { total: registry.counter(total), last: registry.float_gauge(last) }
    }

    /// Counts one reload and records its time; `status` is `success` or `failure`.
    pub fn count(&self, status: &'static str, clock: &dyn Clock) {
        // kube-apiserver sets a hash of its server id here; this server has no id.
        let labels = [("apiserver_id_hash", ""), ("status", status)];
        self.total.get_or_create(&labels).inc();
        self.last.get_or_create(&labels).set(clock.now().as_microsecond() as f64 / 1e6);
    }

    /// The number of reloads with a status.
    #[cfg(test)]
    pub(crate) fn number(&self, status: &'static str) -> u64 {
        self.total.get_or_create(&[("apiserver_id_hash", ""), ("status", status)]).get()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use apimachinery::clock::ManualClock;

    use super::*;

    #[test]
    fn reload_metrics_have_time_and_count_by_status() {
        let registry = Metrics::new();
        let clock = ManualClock::at(jiff::Timestamp::from_second(1_000).unwrap());
        for (reloads, stem) in [
            (ReloadMetrics::for_authentication(&registry), "authentication"),
            (ReloadMetrics::for_authorization(&registry), "authorization"),
        ] {
            let stem = format!("apiserver_{stem}_config_controller_automatic_reload");
            let value = |series: &str, status: &str| {
                let name = format!("{stem}{series}{{apiserver_id_hash=\"\",status=\"{status}\"}} ");
                let text = registry.text();
                let value = text.lines().find_map(|line| line.strip_prefix(&name)).map(str::to_owned);
                value.map(|value| value.parse::<f64>().unwrap())
            };
            let time = |status| value("_last_timestamp_seconds", status);
            let start = clock.now().as_second() as f64;
            reloads.count("success", &clock);
            clock.advance(Duration::from_secs(60));
            reloads.count("failure", &clock);
            assert_eq!((time("success"), time("failure")), (Some(start), Some(start + 60.0)), "{stem}");
            clock.advance(Duration::from_secs(60));
            reloads.count("success", &clock);
            assert_eq!(
                (time("success"), time("failure")),
                (Some(start + 120.0), Some(start + 60.0)),
                "{stem}"
            );
            assert_eq!((value("s_total", "success"), value("s_total", "failure")), (Some(2.0), Some(1.0)));
        }
    }
}
