//! The state of the connection to authd: used by health checks, caches and the shutdown.
//!
//! # Invariants
//!
//! INVARIANT (fail closed): cached responses serve at most [`GRACE`] after the loss of the connection to
//! authd.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::Mutex;
use tokio::sync::watch;

/// Maximum time for which cached responses serve after the loss of the connection to authd.
pub(crate) const GRACE: Duration = Duration::from_secs(30);

/// The reason why authd cannot decide requests now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthdProblem {
    /// The decision stream is not open.
    #[error("authd cannot be reached: {0}")]
    Unreachable(String),
    /// authd has no complete snapshot of the policy.
    #[error("authd has no complete copy of the stored policy yet: {0}")]
    NoPolicy(String),
    /// authd has not reported its readiness yet.
    #[error("authd has not reported its readiness yet")]
    NotReported,
    /// authd reported that it is not ready, with its reasons.
    #[error("authd is not ready: {}", .0.join("; "))]
    NotReady(Vec<String>),
}

/// The state of the connection to authd.
pub(crate) struct Link {
    clock: Arc<dyn Clock>,
    state: Mutex<LinkState>,
    /// Whether [`LinkState::lost`] is None, for reads without the lock. Written only under the lock.
    connected: AtomicBool,
    /// Whether the decision stream is open, for tasks that wait for this state.
    reached: watch::Sender<bool>,
    /// Notified at each change of [`LinkState`] that can make [`Link::health`] succeed.
    changed: watch::Sender<()>,
    /// The newest revision sent to the mirror of authd.
    mirror_sent: AtomicU64,
}

struct LinkState {
    /// The monotonic time at which the connection was lost, and the reason; None while it is open.
    lost: Option<(Duration, String)>,
    /// The reason why authd has no complete snapshot of the policy; None when it has one.
    mirror_problem: Option<String>,
    /// Whether the process shuts down. The loss of authd is then expected and not logged.
    is_shutting_down: bool,
    /// The readiness that authd reported last, with reasons if it is not ready, or warnings if it is ready;
    /// None before the first report.
    ready: Option<(bool, Vec<String>)>,
    /// The last metrics that authd sent for export by apid, in the text format.
    shared_metrics: String,
}

impl Link {
    /// The state before the first connection.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let lost = Some((clock.monotonic(), "not connected yet".to_owned()));
        Link {
            clock,
            state: Mutex::new(LinkState {
                lost,
                mirror_problem: Some("the mirror stream is not open yet".to_owned()),
                is_shutting_down: false,
                ready: None,
                shared_metrics: String::new(),
            }),
            connected: AtomicBool::new(false),
            reached: watch::Sender::new(false),
            changed: watch::Sender::new(()),
            mirror_sent: AtomicU64::new(0),
        }
    }

    /// Records the start of the shutdown: from now on the loss of authd is not logged.
    pub(crate) fn begin_shutdown(&self) {
        self.state.lock().is_shutting_down = true;
    }

    /// Whether the process shuts down.
    pub(crate) fn is_shutting_down(&self) -> bool {
        self.state.lock().is_shutting_down
    }

    /// Records that the decision stream is open.
    pub(crate) fn set_connected(&self) {
        let mut state = self.state.lock();
        state.lost = None;
        self.connected.store(true, Ordering::SeqCst);
        drop(state);
        self.reached.send_replace(true);
        self.changed.send_replace(());
    }

    /// Waits until the decision stream is open.
    pub(crate) async fn wait_for_connection(&self) {
        // Cannot fail: the link owns the sender.
        let _ = self.reached.subscribe().wait_for(|reached| *reached).await;
    }

    /// Records that the decision stream broke or failed to open.
    pub(crate) fn set_lost(&self, reason: &str) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        if state.lost.is_none() && !state.is_shutting_down {
            tracing::warn!(
                reason,
                "connection to authd lost; uncached requests fail now, all requests fail in 30 s"
            );
        }
        let since = state.lost.as_ref().map_or(now, |(since, _)| *since);
        state.lost = Some((since, reason.to_owned()));
        self.connected.store(false, Ordering::SeqCst);
        drop(state);
        self.reached.send_replace(false);
        self.changed.send_replace(());
    }

    /// Records that the mirror stream is open and a complete snapshot has been sent on it.
    pub(crate) fn set_mirror_synced(&self) {
        self.state.lock().mirror_problem = None;
        self.changed.send_replace(());
    }

    /// Records the newest revision sent to the mirror.
    pub(crate) fn set_mirror_sent(&self, revision: u64) {
        self.mirror_sent.store(revision, Ordering::Relaxed);
    }

    /// The newest revision sent to the mirror, and whether authd has a complete snapshot.
    pub(crate) fn mirror_progress(&self) -> (u64, bool) {
        (self.mirror_sent.load(Ordering::Relaxed), self.state.lock().mirror_problem.is_none())
    }

    /// Records that the mirror stream broke or authd rejected it.
    pub(crate) fn set_mirror_lost(&self, reason: String) {
        let mut state = self.state.lock();
        state.mirror_problem = Some(reason);
        state.ready = None;
        state.shared_metrics.clear();
    }

    /// Records the readiness that authd reports, with reasons if it is not ready, or warnings if it is ready.
    pub(crate) fn set_ready(&self, ready: bool, reasons: Vec<String>) {
        self.state.lock().ready = Some((ready, reasons));
        self.changed.send_replace(());
    }

    /// Waits until authd can decide requests.
    pub(crate) async fn wait_until_healthy(&self) {
        let mut changes = self.changed.subscribe();
        while self.health().is_err() {
            // Cannot fail: the link owns the sender.
            let _ = changes.changed().await;
        }
    }

    /// Stores the metrics that authd sent for export by apid.
    pub(crate) fn set_shared_metrics(&self, text: String) {
        self.state.lock().shared_metrics = text;
    }

    /// The last metrics that authd sent for export by apid; empty without authd.
    pub(crate) fn shared_metrics(&self) -> String {
        self.state.lock().shared_metrics.clone()
    }

    /// The warnings of a ready authd.
    pub(crate) fn notes(&self) -> Vec<String> {
        match &self.state.lock().ready {
            Some((true, notes)) => notes.clone(),
            Some((false, _)) | None => Vec::new(),
        }
    }

    /// The reason why authd cannot be reached; None while it can.
    pub(crate) fn unreachable(&self) -> Option<String> {
        self.state.lock().lost.as_ref().map(|(_, reason)| reason.clone())
    }

    /// Whether cached responses may serve: authd is connected, or was connected at most [`GRACE`] ago.
    pub(crate) fn cache_serves(&self) -> bool {
        self.connected.load(Ordering::SeqCst)
            || match &self.state.lock().lost {
                None => true,
                Some((since, _)) => self.clock.monotonic().saturating_sub(*since) <= GRACE,
            }
    }

    /// Whether authd can decide requests now.
    pub(crate) fn health(&self) -> Result<(), AuthdProblem> {
        let state = self.state.lock();
        if let Some((_, reason)) = &state.lost {
            return Err(AuthdProblem::Unreachable(reason.clone()));
        }
        if let Some(reason) = &state.mirror_problem {
            return Err(AuthdProblem::NoPolicy(reason.clone()));
        }
        match &state.ready {
            None => Err(AuthdProblem::NotReported),
            Some((true, _)) => Ok(()),
            Some((false, reasons)) => Err(AuthdProblem::NotReady(reasons.clone())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::clock::ManualClock;

    #[test]
    fn cache_serves_until_grace_period_after_first_connection_loss() {
        let clock = Arc::new(ManualClock::at(jiff_epoch()));
        let link = Link::new(clock.clone());
        link.set_connected();
        clock.advance(Duration::from_secs(1000));
        link.set_lost("broken pipe");
        clock.advance(GRACE);
        link.set_lost("connection refused");
        assert!(link.cache_serves(), "a failed reconnection must not restart the grace period");
        clock.advance(Duration::from_millis(1));
        assert!(!link.cache_serves());
        link.set_connected();
        assert!(link.cache_serves());
    }

    #[tokio::test]
    async fn wait_until_healthy_ends_with_readiness_after_connection_and_snapshot() {
        let link = Arc::new(Link::new(Arc::new(ManualClock::at(jiff_epoch()))));
        let waiting_link = Arc::clone(&link);
        let waiter = tokio::spawn(async move { waiting_link.wait_until_healthy().await });
        for step in
            [Link::set_connected, Link::set_mirror_synced, |link: &Link| link.set_ready(false, Vec::new())]
        {
            step(&link);
            tokio::task::yield_now().await;
            assert!(!waiter.is_finished());
        }
        link.set_ready(true, Vec::new());
        tokio::time::timeout(Duration::from_secs(10), waiter).await.unwrap().unwrap();
    }

    #[test]
    fn health_error_contains_the_reason() {
        let link = Link::new(Arc::new(ManualClock::at(jiff_epoch())));
        assert!(link.health().unwrap_err().to_string().contains("cannot be reached"));
        link.set_connected();
        assert!(link.health().unwrap_err().to_string().contains("stored policy"));
        link.set_mirror_synced();
        link.set_ready(false, vec!["token file: no such file".into()]);
        assert!(link.health().unwrap_err().to_string().contains("token file"));
        assert!(link.notes().is_empty(), "a reason must not appear as a warning");
        link.set_ready(true, vec!["a file is not taken".into()]);
        assert_eq!((link.health(), link.notes()), (Ok(()), vec!["a file is not taken".to_owned()]));
        link.set_mirror_lost("authd speaks other names".to_owned());
        assert!(
            link.health().unwrap_err().to_string().contains("other names"),
            "a broken stream must reset the state"
        );
    }

    fn jiff_epoch() -> jiff::Timestamp {
        jiff::Timestamp::UNIX_EPOCH
    }
}
