//! Metrics of admission: the duration of each plugin and of each phase.
//!
//! # Contract
//!
//! An observation finds its histogram by operation, phase and rejection. The observation compares no text, and only
//! the first observation of a series allocates.

use std::sync::OnceLock;
use std::time::Duration;

use apimachinery::clock::Clock;
use serving::metrics::{Definition, Histogram, Histograms, Metrics, Stability};

use crate::Operation;

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

/// A phase of admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Mutating phase, before the validation of the object.
    Mutating,
    /// Validating phase, after the validation of the object.
    Validating,
}

/// The metrics of the durations.
pub(crate) struct DurationMetrics {
    plugins: Histograms<Labels>,
    steps: Histograms<Labels>,
}

impl DurationMetrics {
    /// Registers the metrics.
    pub(crate) fn new(metrics: &Metrics) -> Self {
        DurationMetrics {
            plugins: metrics.histogram(&PLUGIN, BUCKETS),
            steps: metrics.histogram(&STEP, BUCKETS),
        }
    }

    /// The durations of one plugin.
    pub(crate) fn of_plugin(&self, name: &'static str) -> Durations {
        Durations { family: self.plugins.clone(), name: Some(name), series: Default::default() }
    }

    /// The durations of all plugins together.
    pub(crate) fn of_steps(&self) -> Durations {
        Durations { family: self.steps.clone(), name: None, series: Default::default() }
    }
}

/// Durations of the phases of one plugin, or of all plugins together.
pub(crate) struct Durations {
    family: Histograms<Labels>,
    /// Name of the plugin.
    name: Option<&'static str>,
    /// Histograms by operation, by phase, and by whether the write was rejected. Each is created at its first
    /// observation.
    series: [[[OnceLock<Histogram>; 2]; 2]; 4],
}

/// Measures one phase of a write: the end of a plugin is the start of the next.
pub(crate) struct PhaseTimer<'c> {
    clock: &'c dyn Clock,
    steps: &'c Durations,
    phase: Phase,
    operation: Operation,
    started: Duration,
    plugin_started: Duration,
}

impl<'c> PhaseTimer<'c> {
    /// Begins a phase.
    pub(crate) fn new(
        clock: &'c dyn Clock,
        steps: &'c Durations,
        phase: Phase,
        operation: Operation,
    ) -> Self {
        let now = clock.monotonic();
        PhaseTimer { clock, steps, phase, operation, started: now, plugin_started: now }
    }

    /// Records the end of a plugin. A rejection also ends the phase.
    pub(crate) fn end_plugin(&mut self, durations: &Durations, is_rejected: bool) {
        let now = self.clock.monotonic();
        self.observe(durations, is_rejected, now.saturating_sub(self.plugin_started));
        self.plugin_started = now;
        if is_rejected {
            self.end(true);
        }
    }

    /// Records the end of the phase.
    pub(crate) fn end(&self, is_rejected: bool) {
        self.observe(self.steps, is_rejected, self.plugin_started.saturating_sub(self.started));
    }

    fn observe(&self, durations: &Durations, is_rejected: bool, took: Duration) {
        let [mutating, validating] = self.operation.value_in(&durations.series);
        let (phase, [admitted, rejected]) = match self.phase {
            Phase::Mutating => ("admit", mutating),
            Phase::Validating => ("validate", validating),
        };
        let series = if is_rejected { rejected } else { admitted };
        let histogram = series.get_or_init(|| {
            let mut labels: Labels = durations.name.map(|name| ("name", name)).into_iter().collect();
            labels.push(("operation", self.operation.as_str()));
            labels.push(("rejected", if is_rejected { "true" } else { "false" }));
            labels.push(("type", phase));
            durations.family.get_or_create(&labels).clone()
        });
        histogram.observe(took.as_secs_f64());
    }
}
