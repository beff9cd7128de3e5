//! Whether authd can be reached, since when not, and what it says about itself: what health checks and caches ask.
//!
//! # Invariants
//!
//! INVARIANT (fail closed): what is cached serves at most [`GRACE`] after authd was last reached.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::Mutex;
use tokio::sync::watch;

/// How long cached answers outlive the connection to authd.
pub(super) const GRACE: Duration = Duration::from_secs(30);

/// The connection to authd as the rest of the process sees it.
pub(super) struct Link {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    /// Nothing is [`State::lost`]: what every request asks. Written while the state is locked.
    connected: AtomicBool,
    reached: watch::Sender<bool>,
}

struct State {
    /// Since when there is no connection, and why.
    lost: Option<(Duration, String)>,
    /// Why the mirror has not sent its snapshot on the stream that is open now; None when it has.
    unmirrored: Option<String>,
    /// This process ends, and authd with it.
    ending: bool,
    /// What authd last said of itself, and why or what else; None before it said anything.
    ready: Option<(bool, Vec<String>)>,
    /// The counters of configuration reloads that authd last sent, in the text format.
    reload_metrics: String,
}

impl Link {
    /// Not connected yet.
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let lost = Some((clock.monotonic(), "not connected yet".to_owned()));
        Link {
            clock,
            state: Mutex::new(State {
                lost,
                unmirrored: Some("it is about to begin".to_owned()),
                ending: false,
                ready: None,
                reload_metrics: String::new(),
            }),
            connected: AtomicBool::new(false),
            reached: watch::Sender::new(false),
        }
    }

    /// The process ends: that authd is lost is no news from here on.
    pub(super) fn ending(&self) {
        self.state.lock().ending = true;
    }

    /// Whether the process ends.
    pub(super) fn is_ending(&self) -> bool {
        self.state.lock().ending
    }

    /// The decision stream is open.
    pub(super) fn connected(&self) {
        let mut state = self.state.lock();
        state.lost = None;
        self.connected.store(true, Ordering::SeqCst);
        drop(state);
        self.reached.send_replace(true);
    }

    /// Waits until the decision stream is open.
    pub(super) async fn wait(&self) {
        // Never an error: the sender lives as long as this.
        let _ = self.reached.subscribe().wait_for(|reached| *reached).await;
    }

    /// The decision stream broke, or could not be opened.
    pub(super) fn lost(&self, why: &str) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        if state.lost.is_none() && !state.ending {
            tracing::warn!(
                reason = why,
                "authd is lost: what is not kept of its answers fails, and all in 30 s"
            );
        }
        let since = state.lost.as_ref().map_or(now, |(since, _)| *since);
        state.lost = Some((since, why.to_owned()));
        self.connected.store(false, Ordering::SeqCst);
        drop(state);
        self.reached.send_replace(false);
    }

    /// The mirror stream is open and its snapshot is sent.
    pub(super) fn mirrored(&self) {
        self.state.lock().unmirrored = None;
    }

    /// The mirror stream broke, or was refused.
    pub(super) fn unmirrored(&self, why: String) {
        let mut state = self.state.lock();
        state.unmirrored = Some(why);
        state.ready = None;
        state.reload_metrics.clear();
    }

    /// authd said whether it is ready, and why it is not, or what should be known though it is.
    pub(super) fn ready(&self, ready: bool, said: Vec<String>) {
        self.state.lock().ready = Some((ready, said));
    }

    /// authd sent its counters of configuration reloads.
    pub(super) fn set_reload_metrics(&self, text: String) {
        self.state.lock().reload_metrics = text;
    }

    /// The counters of configuration reloads that authd last sent; empty without authd.
    pub(super) fn reload_metrics(&self) -> String {
        self.state.lock().reload_metrics.clone()
    }

    /// What authd wants known though it is ready.
    pub(super) fn notes(&self) -> Vec<String> {
        match &self.state.lock().ready {
            Some((true, notes)) => notes.clone(),
            Some((false, _)) | None => Vec::new(),
        }
    }

    /// Why authd cannot be reached; None when it can.
    pub(super) fn unreachable(&self) -> Option<String> {
        self.state.lock().lost.as_ref().map(|(_, why)| why.clone())
    }

    /// Whether cached answers may still serve.
    pub(super) fn cache_serves(&self) -> bool {
        self.connected.load(Ordering::SeqCst)
            || match &self.state.lock().lost {
                None => true,
                Some((since, _)) => self.clock.monotonic().saturating_sub(*since) <= GRACE,
            }
    }

    /// Whether requests can be decided now, and if not why.
    pub(super) fn health(&self) -> Result<(), String> {
        let state = self.state.lock();
        if let Some((_, why)) = &state.lost {
            return Err(format!("authd cannot be reached: {why}"));
        }
        if let Some(why) = &state.unmirrored {
            return Err(format!("authd has not been sent the stored policy yet: {why}"));
        }
        match &state.ready {
            None => Err("authd has not said that it is ready".to_owned()),
            Some((true, _)) => Ok(()),
            Some((false, reasons)) => Err(format!("authd is not ready: {}", reasons.join("; "))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::clock::ManualClock;

    #[test]
    fn the_cache_serves_thirty_seconds_after_the_first_loss_and_no_more() {
        let clock = Arc::new(ManualClock::at(jiff_epoch()));
        let link = Link::new(clock.clone());
        link.connected();
        clock.advance(Duration::from_secs(1000));
        link.lost("broken pipe");
        clock.advance(GRACE);
        link.lost("connection refused");
        assert!(link.cache_serves(), "a failed attempt to reconnect does not count anew");
        clock.advance(Duration::from_millis(1));
        assert!(!link.cache_serves());
        link.connected();
        assert!(link.cache_serves());
    }

    #[test]
    fn health_says_what_is_missing() {
        let link = Link::new(Arc::new(ManualClock::at(jiff_epoch())));
        assert!(link.health().unwrap_err().contains("cannot be reached"));
        link.connected();
        assert!(link.health().unwrap_err().contains("stored policy"));
        link.mirrored();
        link.ready(false, vec!["token file: no such file".into()]);
        assert!(link.health().unwrap_err().contains("token file"));
        assert!(link.notes().is_empty(), "a reason is no note");
        link.ready(true, vec!["a file is not taken".into()]);
        assert_eq!((link.health(), link.notes()), (Ok(()), vec!["a file is not taken".to_owned()]));
        link.unmirrored("authd speaks other names".to_owned());
        assert!(link.health().unwrap_err().contains("other names"), "a new stream begins anew");
    }

    fn jiff_epoch() -> jiff::Timestamp {
        jiff::Timestamp::UNIX_EPOCH
    }
}
