//! Counts of audit events, of lost events and of rejected requests, and their metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::Mutex;
use serving::metrics::{Counter, Counters, Definition, Gauge, Metrics, Stability};

use crate::stage::Level;

/// Minimum time between two log lines about one condition, such as lost events of a plugin.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// The part of the audit log that lost an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plugin {
    /// The file.
    Log,
    /// The webhook.
    Webhook,
    /// The buffer of batches.
    Buffer,
    /// The limit of the size of an event.
    Truncate,
}

impl Plugin {
    const ALL: [Plugin; 4] = [Plugin::Log, Plugin::Webhook, Plugin::Buffer, Plugin::Truncate];

    /// The label in metrics, as in kube-apiserver.
    fn as_str(self) -> &'static str {
        match self {
            Plugin::Log => "log",
            Plugin::Webhook => "webhook",
            Plugin::Buffer => "buffered",
            Plugin::Truncate => "truncate",
        }
    }

    fn index(self) -> usize {
        match self {
            Plugin::Log => 0,
            Plugin::Webhook => 1,
            Plugin::Buffer => 2,
            Plugin::Truncate => 3,
        }
    }
}

const ERRORS: Definition = Definition::new(
    "apiserver_audit_error_total",
    Stability::Alpha,
    "Number of audit events that could not be written, by plugin",
);
const EVENTS: Definition =
    Definition::new("apiserver_audit_event_total", Stability::Alpha, "Number of audit events");
const LEVELS: Definition = Definition::new(
    "apiserver_audit_level_total",
    Stability::Alpha,
    "Number of audited requests, by the level of the audit policy",
);
const REJECTED: Definition = Definition::new(
    "apiserver_audit_requests_rejected_total",
    Stability::Alpha,
    "Number of requests rejected because their first audit event could not be written",
);
const POLICY_REJECTED: Definition = Definition::new(
    "apid_audit_policy_reload_rejected",
    Stability::Alpha,
    "1 while the last change of the audit policy file is rejected and the earlier policy is in use, else 0",
);

struct AuditMetrics {
    lost: [Counter; 4],
    events: Counter,
    levels: [Counter; 4],
    rejected: Counter,
    policy_rejected: Gauge,
}

/// Limits the log lines about one condition to one each [`LOG_INTERVAL`].
#[derive(Default)]
pub(crate) struct LogLimit {
    /// Monotonic time of the last log line.
    logged_at: Option<Duration>,
}

impl LogLimit {
    /// Whether a log line is due at the monotonic time `now`; the caller then writes the line.
    pub(crate) fn allows(&mut self, now: Duration) -> bool {
        let is_due = self.logged_at.is_none_or(|at| now >= at.saturating_add(LOG_INTERVAL));
        if is_due {
            self.logged_at = Some(now);
        }
        is_due
    }
}

/// Lost events of one plugin that no log line has reported yet.
#[derive(Default)]
struct Unreported {
    events: u64,
    limit: LogLimit,
}

/// The counts of the audit log.
pub(crate) struct Counts {
    clock: Arc<dyn Clock>,
    lost: AtomicU64,
    unreported: [Mutex<Unreported>; 4],
    metrics: OnceLock<AuditMetrics>,
}

impl Counts {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Counts { clock, lost: AtomicU64::new(0), unreported: Default::default(), metrics: OnceLock::new() }
    }

    /// The monotonic time.
    pub(crate) fn monotonic(&self) -> Duration {
        self.clock.monotonic()
    }

    /// The number of lost events.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Counts lost events. The log names the reason at most once a second.
    pub(crate) fn lose(&self, plugin: Plugin, events: u64, reason: &dyn std::fmt::Display) {
        self.lost.fetch_add(events, Ordering::Relaxed);
        if let Some(counter) = self.metrics.get().and_then(|metrics| metrics.lost.get(plugin.index())) {
            counter.inc_by(events);
        }
        let Some(unreported) = self.unreported.get(plugin.index()) else { return };
        let mut unreported = unreported.lock();
        unreported.events = unreported.events.saturating_add(events);
        if !unreported.limit.allows(self.monotonic()) {
            return;
        }
        let events = std::mem::take(&mut unreported.events);
        drop(unreported);
        tracing::error!(plugin = plugin.as_str(), events, %reason, "audit events lost");
    }

    pub(crate) fn count_event(&self) {
        if let Some(metrics) = self.metrics.get() {
            metrics.events.inc();
        }
    }

    pub(crate) fn count_request(&self, level: Level) {
        let index = Level::ALL.iter().position(|other| *other == level).unwrap_or_default();
        if let Some(counter) = self.metrics.get().and_then(|metrics| metrics.levels.get(index)) {
            counter.inc();
        }
    }

    pub(crate) fn count_rejected(&self) {
        if let Some(metrics) = self.metrics.get() {
            metrics.rejected.inc();
        }
    }

    pub(crate) fn set_policy_rejected(&self, is_rejected: bool) {
        if let Some(metrics) = self.metrics.get() {
            metrics.policy_rejected.set(is_rejected.into());
        }
    }

    /// Registers the metrics. A second call changes nothing: the series of the first call stay.
    pub(crate) fn register(&self, metrics: &Metrics) {
        let errors: Counters<[(&'static str, &'static str); 1]> = metrics.counter(&ERRORS);
        let levels: Counters<[(&'static str, &'static str); 1]> = metrics.counter(&LEVELS);
        let registered = AuditMetrics {
            lost: Plugin::ALL.map(|plugin| errors.get_or_create(&[("plugin", plugin.as_str())]).clone()),
            events: metrics.single_counter(&EVENTS),
            levels: Level::ALL.map(|level| levels.get_or_create(&[("level", level.as_str())]).clone()),
            rejected: metrics.single_counter(&REJECTED),
            policy_rejected: metrics.single_gauge(&POLICY_REJECTED),
        };
        if let Some(counter) = registered.lost.first() {
            counter.inc_by(self.lost());
        }
        drop(self.metrics.set(registered));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_about_one_condition_are_a_second_apart() {
        let mut limit = LogLimit::default();
        let times = [0, 1, 999, 1000, 1001, 5000].map(Duration::from_millis);
        assert_eq!(times.map(|now| limit.allows(now)), [true, false, false, true, false, true]);
    }
}
