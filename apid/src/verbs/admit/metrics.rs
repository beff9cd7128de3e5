//! Metrics of admission: the duration of each plugin and of each phase.
//!
//! # Contract
//!
//! The handle of a series is looked up once, so an admission of a known series allocates nothing.

use std::collections::BTreeMap;

use admission::{Operation, Phase, PhaseTiming, TimingObserver};
use parking_lot::RwLock;
use serving::metrics::{Definition, Histogram, Histograms, Metrics, Stability};

const PLUGIN: Definition = Definition::new(
    "apiserver_admission_controller_admission_duration_seconds",
    Stability::Stable,
    "Duration of a phase of an admission plugin in seconds, by plugin, operation, phase and rejection",
);
const STEP: Definition = Definition::new(
    "apiserver_admission_step_admission_duration_seconds",
    Stability::Stable,
    "Duration of a phase of all admission plugins together in seconds, by operation, phase and rejection",
);

/// Upper limits of the buckets of both histograms, in seconds.
const BUCKETS: &[f64] = &[0.005, 0.025, 0.1, 0.5, 1.0, 2.5];

/// The key of a series: plugin, phase, operation, and whether the write was rejected.
///
/// An empty plugin name stands for all plugins together. The map compares these short keys and does not hash them:
/// comparison takes fewer instructions.
type Series = (&'static str, Phase, Operation, bool);
type Labels = Vec<(&'static str, &'static str)>;

/// Durations of the phases of admission plugins.
pub(in crate::verbs) struct AdmissionDurations {
    plugins: Histograms<Labels>,
    steps: Histograms<Labels>,
    /// Handles of the series that have been observed.
    histograms: RwLock<BTreeMap<Series, Histogram>>,
}

impl AdmissionDurations {
    /// Registers the metrics.
    pub(in crate::verbs) fn new(metrics: &Metrics) -> Self {
        AdmissionDurations {
            plugins: metrics.histogram(&PLUGIN, BUCKETS),
            steps: metrics.histogram(&STEP, BUCKETS),
            histograms: RwLock::default(),
        }
    }

    fn observe(&self, name: &'static str, timing: PhaseTiming) {
        let PhaseTiming { phase, operation, is_rejected, took } = timing;
        let series = (name, phase, operation, is_rejected);
        if let Some(histogram) = self.histograms.read().get(&series) {
            return histogram.observe(took.as_secs_f64());
        }
        let mut labels = vec![
            ("operation", operation.as_str()),
            ("rejected", if is_rejected { "true" } else { "false" }),
            ("type", if phase == Phase::Mutating { "admit" } else { "validate" }),
        ];
        let histogram = match name {
            "" => self.steps.get_or_create(&labels).clone(),
            name => {
                labels.insert(0, ("name", name));
                self.plugins.get_or_create(&labels).clone()
            }
        };
        histogram.observe(took.as_secs_f64());
        self.histograms.write().insert(series, histogram);
    }
}

impl TimingObserver for AdmissionDurations {
    fn observe_plugin(&self, name: &'static str, timing: PhaseTiming) {
        self.observe(name, timing);
    }

    fn observe_step(&self, timing: PhaseTiming) {
        self.observe("", timing);
    }
}
