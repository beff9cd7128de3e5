//! Metrics of admission: the duration of each plugin and of each phase.
//!
//! # Contract
//!
//! An observation finds its histogram by the position of the plugin, the operation, the phase and the rejection.
//! The observation compares no text, and only the first observation of a series allocates.

use std::sync::OnceLock;

use admission::{Phase, PhaseTiming, TimingObserver};
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

type Labels = Vec<(&'static str, &'static str)>;

/// Durations of the phases of admission plugins.
pub(crate) struct AdmissionDurations {
    plugin_durations: Histograms<Labels>,
    step_durations: Histograms<Labels>,
    /// Names and histograms of the plugins, in the order of the chain.
    plugins: Vec<(&'static str, PhaseHistograms)>,
    /// Histograms of all plugins together.
    steps: PhaseHistograms,
}

/// Histograms by operation, by phase, and by whether the write was rejected.
///
/// Each is created at its first observation.
#[derive(Default)]
struct PhaseHistograms([[[OnceLock<Histogram>; 2]; 2]; 4]);

impl PhaseHistograms {
    fn get(&self, timing: &PhaseTiming) -> &OnceLock<Histogram> {
        let [mutating, validating] = timing.operation.value_in(&self.0);
        let [admitted, rejected] = match timing.phase {
            Phase::Mutating => mutating,
            Phase::Validating => validating,
        };
        if timing.is_rejected { rejected } else { admitted }
    }
}

impl AdmissionDurations {
    /// Registers the metrics of the plugins. `names` is in the order of the chain.
    pub(crate) fn new(names: impl Iterator<Item = &'static str>, metrics: &Metrics) -> Self {
        AdmissionDurations {
            plugin_durations: metrics.histogram(&PLUGIN, BUCKETS),
            step_durations: metrics.histogram(&STEP, BUCKETS),
            plugins: names.map(|name| (name, PhaseHistograms::default())).collect(),
            steps: PhaseHistograms::default(),
        }
    }
}

impl TimingObserver for AdmissionDurations {
    fn observe_plugin(&self, position: usize, timing: PhaseTiming) {
        let Some((name, histograms)) = self.plugins.get(position) else { return };
        let histogram = histograms.get(&timing).get_or_init(|| {
            let labels = [("name", *name)].into_iter().chain(labels(&timing)).collect();
            self.plugin_durations.get_or_create(&labels).clone()
        });
        histogram.observe(timing.took.as_secs_f64());
    }

    fn observe_step(&self, timing: PhaseTiming) {
        let histogram = self
            .steps
            .get(&timing)
            .get_or_init(|| self.step_durations.get_or_create(&labels(&timing).into()).clone());
        histogram.observe(timing.took.as_secs_f64());
    }
}

/// The labels that both histograms have.
fn labels(timing: &PhaseTiming) -> [(&'static str, &'static str); 3] {
    [
        ("operation", timing.operation.as_str()),
        ("rejected", if timing.is_rejected { "true" } else { "false" }),
        ("type", if timing.phase == Phase::Mutating { "admit" } else { "validate" }),
    ]
}
