//! Metrics: a registry with stability classes in help texts, and the Prometheus text format.
//!
//! # Contract
//!
//! Each component declares its metrics as constant [`Definition`]s beside the code that updates them. Names are
//! those of the text format, including `_total`, which a few counters of kube-apiserver lack.
//!
//! The registry knows each declared family ([`Metrics::declared`]), so that tests find families without a
//! sample. Components look up a series once and keep its handle; counting is then an atomic addition.
//!
//! A metric that was deprecated at least three minor releases ago is hidden, whatever its stability class. It
//! counts but is not exported, unless [`Metrics::showing_hidden`] requests it (requirements D-METRIC-15 to 27).
//!
//! # Reference
//!
//! Format: Prometheus text exposition 0.0.4, converted from the OpenMetrics text of the library.

mod process;
pub mod table;
mod text;

use std::fmt::Debug;
use std::hash::Hash;
use std::sync::atomic::AtomicU64;

use parking_lot::{Mutex, RwLock};
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Metric, Registry};

pub use process::{ProcessMetrics, raise};
pub use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
pub use prometheus_client::metrics::counter::Counter;
pub use prometheus_client::metrics::gauge::Gauge;
pub use prometheus_client::metrics::histogram::Histogram;

/// Minor release (of 1.x) to which the age of a deprecation is compared.
const CURRENT_MINOR: u32 = crate::compatibility::CURRENT;
/// Number of releases from the deprecation of a metric until it is hidden, for all stability classes.
const HIDDEN_AFTER_RELEASES: u32 = 3;

/// Media type of [`Metrics::text`].
pub const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Stability class of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stability {
    /// The metric may be removed at any time.
    Alpha,
    /// Exported for at least one release after its deprecation.
    Beta,
    /// Exported for at least three releases after its deprecation.
    Stable,
}

impl Stability {
    /// Returns the class as in help texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Stability::Alpha => "ALPHA",
            Stability::Beta => "BETA",
            Stability::Stable => "STABLE",
        }
    }
}

/// Name and meaning of a metric.
#[derive(Clone, Copy, Debug)]
pub struct Definition {
    /// Name in the text format.
    pub name: &'static str,
    /// One sentence without a full stop.
    pub help: &'static str,
    /// Stability class.
    pub stability: Stability,
    /// Minor release (of 1.x) that deprecated the metric.
    pub deprecated: Option<u32>,
}

impl Definition {
    /// Defines a metric that is not deprecated.
    pub const fn new(name: &'static str, stability: Stability, help: &'static str) -> Self {
        Definition { name, help, stability, deprecated: None }
    }

    /// Whether the metric is exported only on request.
    pub fn is_hidden(&self) -> bool {
        self.deprecated.is_some_and(|minor| minor + HIDDEN_AFTER_RELEASES <= CURRENT_MINOR)
    }

    fn help_text(&self) -> String {
        let class = self.stability.as_str();
        match self.deprecated {
            Some(minor) => format!("[{class}] (Deprecated from 1.{minor}) {}", self.help),
            None => format!("[{class}] {}", self.help),
        }
    }
}

/// Counters by labels.
pub type Counters<L> = Family<L, Counter>;
/// Integer gauges by labels.
pub type Gauges<L> = Family<L, Gauge>;
/// Float gauges by labels.
pub type FloatGauges<L> = Family<L, Gauge<f64, AtomicU64>>;
/// Histograms by labels.
pub type Histograms<L> = Family<L, Histogram, Buckets>;

/// Upper bounds of the buckets of a histogram.
#[derive(Clone, Copy, Debug)]
pub struct Buckets(pub &'static [f64]);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

/// Labels of a family of metrics.
pub trait Labels: EncodeLabelSet + Clone + Debug + Eq + Hash + Send + Sync + 'static {}

impl<L: EncodeLabelSet + Clone + Debug + Eq + Hash + Send + Sync + 'static> Labels for L {}

/// Function that sets gauges to their current values before a scrape.
type Collector = Box<dyn Fn() + Send + Sync>;

/// Metrics of a process.
#[derive(Default)]
pub struct Metrics {
    registry: RwLock<Registry>,
    show_hidden: bool,
    /// Counters whose names do not end in `_total`.
    unsuffixed: RwLock<Vec<&'static str>>,
    declared: RwLock<Vec<Definition>>,
    collectors: RwLock<Vec<Collector>>,
    /// Only one scrape at a time collects and encodes: collectors remove series and set them again.
    scrape: Mutex<()>,
}

impl Debug for Metrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").field("declared", &self.declared).finish_non_exhaustive()
    }
}

/// Error: hidden metrics were requested for a release other than the previous one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("hidden metrics can be shown for {previous} only, not for `{version}`")]
pub struct HiddenMetricsError {
    /// The only accepted release.
    pub previous: String,
    /// The requested release.
    pub version: String,
}

impl Metrics {
    /// Creates an empty registry.
    pub fn new() -> Self {
        Metrics::default()
    }

    /// Creates a registry that shows hidden metrics, for the value of `--show-hidden-metrics-for-version`.
    ///
    /// The value is the release before the current one, or `""`, which shows no hidden metrics.
    ///
    /// # Errors
    ///
    /// Any other release.
    pub fn showing_hidden(version: &str) -> Result<Self, HiddenMetricsError> {
        let previous = format!("1.{}", CURRENT_MINOR - 1);
        match version {
            "" => Ok(Metrics::default()),
            _ if version == previous => Ok(Metrics { show_hidden: true, ..Metrics::default() }),
            _ => Err(HiddenMetricsError { previous, version: version.to_owned() }),
        }
    }

    /// Declares a counter by labels.
    pub fn counter<L: Labels>(&self, definition: &Definition) -> Counters<L> {
        if !definition.name.ends_with("_total") {
            self.unsuffixed.write().push(definition.name);
        }
        self.register(definition, Family::default())
    }

    /// Declares an integer gauge by labels.
    pub fn gauge<L: Labels>(&self, definition: &Definition) -> Gauges<L> {
        self.register(definition, Family::default())
    }

    /// Declares a float gauge by labels.
    pub fn float_gauge<L: Labels>(&self, definition: &Definition) -> FloatGauges<L> {
        self.register(definition, Family::default())
    }

    /// Declares a histogram by labels.
    pub fn histogram<L: Labels>(&self, definition: &Definition, buckets: &'static [f64]) -> Histograms<L> {
        self.register(definition, Family::new_with_constructor(Buckets(buckets)))
    }

    /// Adds a function that sets gauges to their current values before each scrape. It must be fast.
    pub fn collect_with(&self, collect: impl Fn() + Send + Sync + 'static) {
        self.collectors.write().push(Box::new(collect));
    }

    /// Returns the definitions of all families, in the order of their declaration.
    pub fn declared(&self) -> Vec<Definition> {
        self.declared.read().clone()
    }

    /// Declares a float counter without labels.
    pub fn single_float_counter(&self, definition: &Definition) -> Counter<f64, AtomicU64> {
        self.register(definition, Counter::default())
    }

    /// Declares a float gauge without labels.
    pub fn single_float_gauge(&self, definition: &Definition) -> Gauge<f64, AtomicU64> {
        self.register(definition, Gauge::default())
    }

    /// Declares a counter without labels.
    pub fn single_counter(&self, definition: &Definition) -> Counter {
        self.register(definition, Counter::default())
    }

    /// Declares an integer gauge without labels.
    pub fn single_gauge(&self, definition: &Definition) -> Gauge {
        self.register(definition, Gauge::default())
    }

    /// Declares a histogram without labels.
    pub fn single_histogram(&self, definition: &Definition, buckets: &'static [f64]) -> Histogram {
        self.register(definition, Buckets(buckets).new_metric())
    }

    /// Returns all metrics in the text format.
    pub fn text(&self) -> String {
        let _scrape = self.scrape.lock();
        self.collectors.read().iter().for_each(|collect| collect());
        let mut open_metrics = String::with_capacity(16 * 1024);
        // Writing into a string cannot fail; a metric that fails to encode is a defect of its labels.
        if let Err(e) =
            prometheus_client::encoding::text::encode_registry(&mut open_metrics, &self.registry.read())
        {
            tracing::error!(error = %e, "metrics cannot be encoded");
        }
        text::to_prometheus_text(&open_metrics, &self.unsuffixed.read())
    }

    /// Registers a metric and returns it. The library appends `_total` to the name of each counter.
    fn register<M: Metric + Clone + TypedMetric>(&self, definition: &Definition, metric: M) -> M {
        if let Some(minor) = definition.deprecated {
            tracing::warn!(metric = definition.name, since = format!("1.{minor}"), "metric is deprecated");
        }
        self.declared.write().push(*definition);
        if !definition.is_hidden() || self.show_hidden {
            let name = match M::TYPE {
                MetricType::Counter => definition.name.strip_suffix("_total").unwrap_or(definition.name),
                _ => definition.name,
            };
            self.registry.write().register(name, definition.help_text(), metric.clone());
        }
        metric
    }
}

/// Resident memory of this process in bytes; None if the system does not report it.
pub fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::captured::Lines;

    #[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
    struct ByVerb {
        verb: &'static str,
    }

    #[test]
    fn metrics_text_has_prometheus_format_of_reference() {
        let metrics = Metrics::new();
        let requests = metrics.counter::<ByVerb>(&Definition::new(
            "apiserver_request_total",
            Stability::Stable,
            "Requests by verb",
        ));
        requests.get_or_create(&ByVerb { verb: "GET" }).inc_by(3);
        metrics.single_gauge(&Definition::new("inflight", Stability::Alpha, "Requests under way")).set(2);
        let seconds =
            metrics.single_histogram(&Definition::new("seconds", Stability::Beta, "Time"), &[0.1, 1.0]);
        seconds.observe(0.5);
        let expected = r#"# HELP apiserver_request_total [STABLE] Requests by verb.
# TYPE apiserver_request_total counter
apiserver_request_total{verb="GET"} 3
# HELP inflight [ALPHA] Requests under way.
# TYPE inflight gauge
inflight 2
# HELP seconds [BETA] Time.
# TYPE seconds histogram
seconds_bucket{le="0.1"} 0
seconds_bucket{le="1"} 1
seconds_bucket{le="+Inf"} 1
seconds_sum 0.5
seconds_count 1
"#;
        assert_eq!(metrics.text(), expected);
    }

    #[test]
    fn concurrent_scrapes_have_all_collected_series_with_their_values() {
        let metrics = Metrics::new();
        let objects = metrics.gauge::<ByVerb>(&Definition::new("objects", Stability::Alpha, "Objects"));
        let total = metrics.single_counter(&Definition::new("reads_total", Stability::Alpha, "Reads"));
        metrics.collect_with(move || {
            objects.clear();
            let before = total.get();
            std::thread::yield_now();
            objects.get_or_create(&ByVerb { verb: "GET" }).set(7);
            total.inc_by(5_u64.saturating_sub(before));
        });
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let text = metrics.text();
                        assert!(text.contains("objects{verb=\"GET\"} 7\n"), "{text}");
                        assert!(text.contains("reads_total 5\n"), "{text}");
                    }
                });
            }
        });
    }

    #[test]
    fn deprecated_metric_logs_warning_at_registration() {
        let lines = Lines::default();
        let subscriber = tracing_subscriber::fmt().with_writer(lines.clone()).finish();
        tracing::subscriber::with_default(subscriber, || {
            let metrics = Metrics::new();
            let plain = Definition::new("plain", Stability::Alpha, "Plain");
            metrics.single_counter(&plain);
            assert_eq!(lines.take_text(), "", "a metric without a deprecation logs nothing");
            metrics.single_counter(&Definition {
                name: "ending",
                deprecated: Some(CURRENT_MINOR),
                ..Definition::new("ending", Stability::Alpha, "Ending")
            });
        });
        let text = lines.take_text();
        for part in ["WARN", "metric is deprecated", "ending", "1.33"] {
            assert!(text.contains(part), "{part} in {text}");
        }
    }

    #[test]
    fn deprecated_metrics_are_marked_and_hidden_after_three_releases() {
        let fresh =
            Definition { deprecated: Some(31), ..Definition::new("fresh", Stability::Alpha, "Young") };
        let stale = Definition { deprecated: Some(30), ..Definition::new("stale", Stability::Alpha, "Old") };
        for (metrics, shown) in [(Metrics::new(), false), (Metrics::showing_hidden("1.32").unwrap(), true)] {
            metrics.single_gauge(&fresh).set(1);
            metrics.single_gauge(&stale).set(1);
            let text = metrics.text();
            assert!(text.contains("# HELP fresh [ALPHA] (Deprecated from 1.31) Young."), "{text}");
            assert_eq!(text.contains("stale 1"), shown, "{text}");
        }
        assert!(Metrics::showing_hidden("1.20").is_err());
        assert!(Metrics::showing_hidden("").is_ok());
    }

    #[test]
    fn resident_memory_is_reported() {
        assert!(resident_bytes().is_some_and(|bytes| bytes > 100_000));
    }
}
