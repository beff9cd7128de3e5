//! The state of the connection to authd: used by health checks, caches and the shutdown.
//!
//! # Invariants
//!
//! INVARIANT (fail closed): cached responses serve at most [`GRACE`] after the loss of the connection to authd.
//! The connection exists while one process serves the decision stream and the mirror stream, and has sent its
//! epoch. This process has the names and the protocol of apid.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::decisions::epoch::Epochs;

/// Maximum time for which cached responses serve after the loss of the connection to authd.
pub(crate) const GRACE: Duration = Duration::from_secs(30);

/// The reason why authd cannot decide requests now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthdProblem {
    /// The decision stream is not open.
    #[error("authd cannot be reached: {0}")]
    Unreachable(String),
    /// The process at the socket has other names or another release than apid.
    #[error("the process at the socket of authd cannot be used: {0}")]
    Mismatched(String),
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
pub struct AuthdConnection {
    clock: Arc<dyn Clock>,
    /// The epochs of the process at the other end of the decision stream.
    pub(crate) epochs: Arc<Epochs>,
    state: Mutex<ConnectionState>,
    /// Whether [`ConnectionState::lost_since`] is None, for reads without the lock. Written only under the lock.
    connected: AtomicBool,
    /// Notified at each change of [`ConnectionState`].
    changed: watch::Sender<()>,
    /// Notified when the decision stream must reconnect: a newer connection leads to another process.
    stale_decisions: watch::Sender<()>,
    /// Notified when the mirror stream must reconnect: a newer connection leads to another process.
    stale_mirror: watch::Sender<()>,
    /// The newest revision sent to the mirror of authd.
    mirror_sent: AtomicU64,
}

struct ConnectionState {
    /// The instance of the process that serves the decision stream, or the reason why no stream is open.
    decisions: Result<Arc<str>, AuthdProblem>,
    /// The instance of the process that serves the mirror stream and has sent its epoch.
    mirror: Option<Arc<str>>,
    /// The monotonic time at which the agreement of both streams ended; None while one process serves both.
    lost_since: Option<Duration>,
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

impl ConnectionState {
    /// Whether one process serves both streams.
    fn is_agreed(&self) -> bool {
        matches!((&self.decisions, &self.mirror), (Ok(decisions), Some(mirror)) if decisions == mirror)
    }

    /// The reason why authd cannot decide requests now.
    fn problem(&self) -> Option<AuthdProblem> {
        if let Err(problem) = &self.decisions {
            return Some(problem.clone());
        }
        if let Some(reason) = &self.mirror_problem {
            return Some(AuthdProblem::NoPolicy(reason.clone()));
        }
        if !self.is_agreed() {
            return Some(AuthdProblem::NoPolicy(
                "authd has not sent its epoch on the mirror stream".to_owned(),
            ));
        }
        match &self.ready {
            None => Some(AuthdProblem::NotReported),
            Some((true, _)) => None,
            Some((false, reasons)) => Some(AuthdProblem::NotReady(reasons.clone())),
        }
    }
}

impl AuthdConnection {
    /// The state before the first connection.
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        let lost_since = Some(clock.monotonic());
        AuthdConnection {
            clock,
            epochs: Arc::default(),
            state: Mutex::new(ConnectionState {
                decisions: Err(AuthdProblem::Unreachable("not connected yet".to_owned())),
                mirror: None,
                lost_since,
                mirror_problem: Some("the mirror stream is not open yet".to_owned()),
                is_shutting_down: false,
                ready: None,
                shared_metrics: String::new(),
            }),
            connected: AtomicBool::new(false),
            changed: watch::Sender::new(()),
            stale_decisions: watch::Sender::new(()),
            stale_mirror: watch::Sender::new(()),
            mirror_sent: AtomicU64::new(0),
        }
    }

    /// Records the start of the shutdown: from now on the loss of authd is expected and not logged.
    pub fn begin_shutdown(&self) {
        self.state.lock().is_shutting_down = true;
    }

    /// Whether the process shuts down.
    pub(crate) fn is_shutting_down(&self) -> bool {
        self.state.lock().is_shutting_down
    }

    /// Records that a process with the names and the protocol of apid serves the decision stream.
    pub(crate) fn set_decisions_open(&self, instance: &Arc<str>) {
        self.epochs.expect(instance);
        self.update(|state| {
            state.decisions = Ok(Arc::clone(instance));
            if state.mirror.as_ref().is_some_and(|mirror| mirror != instance) {
                self.stale_mirror.send_replace(());
            }
        });
    }

    /// Records that the decision stream broke or failed to open.
    pub(crate) fn set_decisions_lost(&self, problem: AuthdProblem) {
        self.update(|state| state.decisions = Err(problem));
    }

    /// Records that a process serves the mirror stream and has sent its epoch.
    pub(crate) fn set_mirror_open(&self, instance: &Arc<str>) {
        self.update(|state| {
            state.mirror = Some(Arc::clone(instance));
            if state.decisions.as_ref().is_ok_and(|decisions| decisions != instance) {
                self.stale_decisions.send_replace(());
            }
        });
    }

    /// Declares that the caller sends the policy to the process of the decision stream, for benchmarks without
    /// [`Auth::run_mirror`](crate::Auth::run_mirror).
    pub fn adopt_mirror(&self) {
        self.update(|state| state.mirror = state.decisions.as_ref().ok().cloned());
    }

    /// Changes the state, and records the begin or the end of the agreement of both streams.
    fn update(&self, change: impl FnOnce(&mut ConnectionState)) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        change(&mut state);
        let is_agreed = state.is_agreed();
        if is_agreed {
            state.lost_since = None;
        } else if state.lost_since.is_none() {
            state.lost_since = Some(now);
            if let (false, Some(reason)) = (state.is_shutting_down, state.problem()) {
                tracing::warn!(
                    %reason,
                    "connection to authd lost; uncached requests fail now, all requests fail in 30 s"
                );
            }
        }
        self.connected.store(is_agreed, Ordering::SeqCst);
        drop(state);
        self.changed.send_replace(());
    }

    /// Makes the decision stream reconnect: a newer connection leads to another process.
    pub(crate) fn set_decisions_stale(&self) {
        self.stale_decisions.send_replace(());
    }

    /// Returns a receiver that changes when the decision stream must reconnect.
    pub(crate) fn stale_decisions(&self) -> watch::Receiver<()> {
        self.stale_decisions.subscribe()
    }

    /// Returns a receiver that changes when the mirror stream must reconnect.
    pub(crate) fn stale_mirror(&self) -> watch::Receiver<()> {
        self.stale_mirror.subscribe()
    }

    /// Waits until the decision stream is open.
    pub async fn wait_for_connection(&self) {
        self.wait_until(|state| state.decisions.is_ok()).await;
    }

    /// Records that the mirror stream is open and a complete snapshot has been sent on it.
    pub(crate) fn set_mirror_synced(&self) {
        self.update(|state| state.mirror_problem = None);
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
        self.update(|state| {
            state.mirror = None;
            state.mirror_problem = Some(reason);
            state.ready = None;
            state.shared_metrics.clear();
        });
    }

    /// Records the readiness that authd reports, with reasons if it is not ready, or warnings if it is ready.
    pub(crate) fn set_ready(&self, ready: bool, reasons: Vec<String>) {
        self.state.lock().ready = Some((ready, reasons));
        self.changed.send_replace(());
    }

    /// Waits until authd can decide requests.
    pub async fn wait_until_healthy(&self) {
        self.wait_until(|state| state.problem().is_none()).await;
    }

    /// Waits until authd cannot decide requests.
    pub(crate) async fn wait_until_unhealthy(&self) {
        self.wait_until(|state| state.problem().is_some()).await;
    }

    async fn wait_until(&self, condition: impl Fn(&ConnectionState) -> bool) {
        let mut changes = self.changed.subscribe();
        while !condition(&self.state.lock()) {
            // Cannot fail: `self` owns the sender.
            let _ = changes.changed().await;
        }
    }

    /// Stores the metrics that authd sent for export by apid.
    pub(crate) fn set_shared_metrics(&self, text: String) {
        self.state.lock().shared_metrics = text;
    }

    /// The metrics of authd that apid exports, in the text format; empty without authd.
    pub fn shared_metrics(&self) -> String {
        self.state.lock().shared_metrics.clone()
    }

    /// Warnings of a ready authd, such as configuration files that it rejected. For `/readyz?verbose`.
    pub fn notes(&self) -> Vec<String> {
        match &self.state.lock().ready {
            Some((true, notes)) => notes.clone(),
            Some((false, _)) | None => Vec::new(),
        }
    }

    /// The reason why apid and authd are not connected; None while one process serves both streams.
    pub fn unreachable(&self) -> Option<AuthdProblem> {
        let state = self.state.lock();
        if state.is_agreed() { None } else { state.problem() }
    }

    /// Whether apid answers `/livez` and `/readyz` without authentication: authd is not connected, or has no
    /// complete snapshot of the policy. A request to authd could then wait until its timeout.
    pub fn answers_health_alone(&self) -> bool {
        matches!(
            self.health(),
            Err(AuthdProblem::Unreachable(_) | AuthdProblem::Mismatched(_) | AuthdProblem::NoPolicy(_))
        )
    }

    /// The monotonic time.
    pub(crate) fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Whether cached responses may serve: one process serves both streams, or did so at most [`GRACE`] ago.
    pub(crate) fn cache_serves(&self) -> bool {
        self.connected.load(Ordering::SeqCst)
            || match &self.state.lock().lost_since {
                None => true,
                Some(since) => self.clock.monotonic().saturating_sub(*since) <= GRACE,
            }
    }

    /// Checks whether authd can decide requests now, for health checks.
    ///
    /// # Errors
    ///
    /// The reason, for `/readyz?verbose` and the log.
    pub fn health(&self) -> Result<(), AuthdProblem> {
        self.state.lock().problem().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::clock::ManualClock;

    fn lost(reason: &str) -> AuthdProblem {
        AuthdProblem::Unreachable(reason.to_owned())
    }

    fn connect(connection: &AuthdConnection, instance: &str) {
        connection.set_decisions_open(&instance.into());
        connection.set_mirror_open(&instance.into());
    }

    #[test]
    fn cache_serves_until_grace_period_after_first_connection_loss() {
        let clock = Arc::new(ManualClock::at(jiff_epoch()));
        let connection = AuthdConnection::new(clock.clone());
        connect(&connection, "one");
        clock.advance(Duration::from_secs(1000));
        connection.set_decisions_lost(lost("broken pipe"));
        clock.advance(GRACE);
        connection.set_decisions_lost(lost("connection refused"));
        assert!(connection.cache_serves(), "a failed reconnection must not restart the grace period");
        clock.advance(Duration::from_millis(1));
        assert!(!connection.cache_serves());
        connect(&connection, "one");
        assert!(connection.cache_serves());
    }

    #[test]
    fn half_connected_authd_does_not_extend_grace_period() {
        type Step = fn(&AuthdConnection);
        let decisions_only: Step = |connection| {
            connection.set_mirror_lost("closed".to_owned());
            connection.set_decisions_open(&"two".into());
        };
        let mirror_only: Step = |connection| {
            connection.set_decisions_lost(lost("closed"));
            connection.set_mirror_open(&"two".into());
        };
        let older_mirror: Step = |connection| connection.set_decisions_open(&"two".into());
        let older_decisions: Step = |connection| connection.set_mirror_open(&"two".into());
        let mismatched: Step = |connection| {
            connection.set_decisions_lost(AuthdProblem::Mismatched("other names".to_owned()));
            connection.set_mirror_synced();
            connection.set_ready(true, Vec::new());
        };
        for (state, step) in [
            ("decision stream only", decisions_only),
            ("mirror only", mirror_only),
            ("mirror of an older instance", older_mirror),
            ("decision stream of an older instance", older_decisions),
            ("other names or version", mismatched),
        ] {
            let clock = Arc::new(ManualClock::at(jiff_epoch()));
            let connection = AuthdConnection::new(clock.clone());
            connect(&connection, "one");
            connection.set_mirror_synced();
            connection.set_ready(true, Vec::new());
            assert_eq!((connection.health(), connection.unreachable()), (Ok(()), None));
            step(&connection);
            assert!(connection.unreachable().is_some() && connection.health().is_err(), "{state}");
            clock.advance(GRACE);
            step(&connection);
            assert!(connection.cache_serves(), "{state}");
            clock.advance(Duration::from_millis(1));
            step(&connection);
            assert!(!connection.cache_serves(), "{state}");
            connect(&connection, "two");
            assert!(connection.cache_serves() && connection.unreachable().is_none(), "{state}");
        }
    }

    #[test]
    fn stream_to_older_process_is_stale() {
        let connection = AuthdConnection::new(Arc::new(ManualClock::at(jiff_epoch())));
        let (decisions, mirror) = (connection.stale_decisions(), connection.stale_mirror());
        let stale = || (decisions.has_changed().unwrap(), mirror.has_changed().unwrap());
        connect(&connection, "one");
        assert_eq!(stale(), (false, false));
        connection.set_decisions_open(&"two".into());
        assert_eq!(stale(), (false, true));
        connection.set_mirror_open(&"three".into());
        assert_eq!(stale(), (true, true));
    }

    #[tokio::test]
    async fn wait_until_healthy_ends_with_readiness_after_connection_and_snapshot() {
        let connection = Arc::new(AuthdConnection::new(Arc::new(ManualClock::at(jiff_epoch()))));
        let waiting = Arc::clone(&connection);
        let waiter = tokio::spawn(async move { waiting.wait_until_healthy().await });
        for step in [
            |connection: &AuthdConnection| connect(connection, "one"),
            AuthdConnection::set_mirror_synced,
            |connection: &AuthdConnection| connection.set_ready(false, Vec::new()),
        ] {
            step(&connection);
            tokio::task::yield_now().await;
            assert!(!waiter.is_finished());
        }
        connection.set_ready(true, Vec::new());
        tokio::time::timeout(Duration::from_secs(10), waiter).await.unwrap().unwrap();
    }

    #[test]
    fn health_error_contains_the_reason() {
        let connection = AuthdConnection::new(Arc::new(ManualClock::at(jiff_epoch())));
        assert!(connection.health().unwrap_err().to_string().contains("cannot be reached"));
        connection.set_decisions_open(&"one".into());
        assert!(connection.health().unwrap_err().to_string().contains("stored policy"));
        connection.set_mirror_synced();
        assert!(connection.health().unwrap_err().to_string().contains("epoch"));
        connection.set_mirror_open(&"one".into());
        connection.set_ready(false, vec!["token file: no such file".into()]);
        assert!(connection.health().unwrap_err().to_string().contains("token file"));
        assert!(connection.notes().is_empty(), "a reason must not appear as a warning");
        connection.set_ready(true, vec!["a file is not taken".into()]);
        assert_eq!(
            (connection.health(), connection.notes()),
            (Ok(()), vec!["a file is not taken".to_owned()])
        );
        connection.set_mirror_lost("authd speaks other names".to_owned());
        assert!(
            connection.health().unwrap_err().to_string().contains("other names"),
            "a broken stream must reset the state"
        );
    }

    fn jiff_epoch() -> jiff::Timestamp {
        jiff::Timestamp::UNIX_EPOCH
    }
}
