//! Durations of the phases of plugins, for metrics.
//!
//! # Contract
//!
//! A chain without an observer measures nothing.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use apimachinery::clock::Clock;

use crate::Operation;

/// A phase of admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Mutating phase, before the validation of the object.
    Mutating,
    /// Validating phase, after the validation of the object.
    Validating,
}

/// One measured phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseTiming {
    /// The measured phase.
    pub phase: Phase,
    /// The operation of the write.
    pub operation: Operation,
    /// Whether the write was rejected.
    pub is_rejected: bool,
    /// The duration of the phase of one plugin, or of all plugins together.
    pub took: Duration,
}

/// Receives the durations of the phases.
pub trait TimingObserver: Send + Sync + 'static {
    /// Receives the duration of a phase of one plugin.
    ///
    /// `position` is the position of the plugin in [`crate::Chain::names`].
    fn observe_plugin(&self, position: usize, timing: PhaseTiming);

    /// Receives the duration of a phase of all plugins together.
    fn observe_step(&self, timing: PhaseTiming);
}

/// The clock and the observer of a chain; empty until they are set.
#[derive(Default)]
pub(crate) struct Timing(OnceLock<(Arc<dyn Clock>, Arc<dyn TimingObserver>)>);

impl Timing {
    /// Sets the observer. Only the first call has an effect.
    pub(crate) fn observe_with(&self, clock: Arc<dyn Clock>, observer: Arc<dyn TimingObserver>) {
        let _ = self.0.set((clock, observer));
    }

    /// Begins a phase.
    pub(crate) fn begin(&self, phase: Phase, operation: Operation) -> PhaseTimer<'_> {
        let observer = self.0.get().map(|(clock, observer)| (&**clock, &**observer));
        let now = observer.map_or(Duration::ZERO, |(clock, _)| clock.monotonic());
        PhaseTimer { observer, phase, operation, started: now, plugin_started: now }
    }
}

/// Measures one phase: the end of a plugin is the start of the next.
pub(crate) struct PhaseTimer<'a> {
    observer: Option<(&'a dyn Clock, &'a dyn TimingObserver)>,
    phase: Phase,
    operation: Operation,
    started: Duration,
    plugin_started: Duration,
}

impl PhaseTimer<'_> {
    /// Records the end of the plugin at this position. A rejection also ends the phase.
    pub(crate) fn end_plugin(&mut self, position: usize, is_rejected: bool) {
        let Some((clock, observer)) = self.observer else { return };
        let now = clock.monotonic();
        observer.observe_plugin(position, self.timing(is_rejected, now.saturating_sub(self.plugin_started)));
        self.plugin_started = now;
        if is_rejected {
            self.end(true);
        }
    }

    /// Records the end of the phase.
    pub(crate) fn end(&self, is_rejected: bool) {
        if let Some((_, observer)) = self.observer {
            observer.observe_step(self.timing(is_rejected, self.plugin_started.saturating_sub(self.started)));
        }
    }

    fn timing(&self, is_rejected: bool, took: Duration) -> PhaseTiming {
        PhaseTiming { phase: self.phase, operation: self.operation, is_rejected, took }
    }
}
