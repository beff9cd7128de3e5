//! The log of outages of authd: times in which authd cannot decide requests.
//!
//! # Contract
//!
//! A start of both processes within a few seconds logs nothing. A problem that lasts [`FIRST_LOG_DELAY`] is
//! logged at the default level, with the reason from `/readyz?verbose` and the path of the socket. The log
//! line repeats every minute, and one more line reports the end of the problem.

use std::path::Path;
use std::time::Duration;

use crate::transport::connection::{AuthdConnection, AuthdProblem};

/// The delay of the first log line. apid and authd connect within this time if they start together.
const FIRST_LOG_DELAY: Duration = Duration::from_secs(3);
/// The interval between two log lines.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// The interval between two checks of the connection to authd.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

impl AuthdConnection {
    /// Logs each outage of authd and its end; never returns.
    pub async fn log_outages(&self, socket: &Path) {
        let mut schedule = OutageSchedule::default();
        loop {
            match schedule.next_event(self.now(), self.health()) {
                Some(OutageEvent::Ongoing(reason)) if !self.is_shutting_down() => tracing::warn!(
                    %reason,
                    socket = %socket.display(),
                    "authd is unavailable; requests wait or get 503"
                ),
                Some(OutageEvent::Ended) => tracing::info!("authd is available again"),
                Some(OutageEvent::Ongoing(_)) | None => {}
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}

/// An event to log.
#[derive(Debug, PartialEq, Eq)]
enum OutageEvent {
    /// authd cannot decide, for this reason.
    Ongoing(AuthdProblem),
    /// authd is available again, after a logged problem.
    Ended,
}

/// Determines when the next log line about an outage is due.
#[derive(Default)]
struct OutageSchedule {
    /// The monotonic time at which the next line is due; None while authd can decide requests.
    due: Option<Duration>,
    /// Whether a line about the outage was logged.
    is_logged: bool,
}

impl OutageSchedule {
    /// The event to log at this moment, if any.
    fn next_event(&mut self, now: Duration, health: Result<(), AuthdProblem>) -> Option<OutageEvent> {
        let Err(reason) = health else {
            self.due = None;
            return std::mem::take(&mut self.is_logged).then_some(OutageEvent::Ended);
        };
        if now < *self.due.get_or_insert(now + FIRST_LOG_DELAY) {
            return None;
        }
        self.due = Some(now + REPEAT_INTERVAL);
        self.is_logged = true;
        Some(OutageEvent::Ongoing(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event_at(
        schedule: &mut OutageSchedule,
        seconds: u64,
        health: Result<(), &str>,
    ) -> Option<OutageEvent> {
        let health = health.map_err(|reason| AuthdProblem::Unreachable(reason.to_owned()));
        schedule.next_event(Duration::from_secs(seconds), health)
    }

    #[test]
    fn lasting_outage_is_logged_every_minute_and_its_end_once() {
        let mut schedule = OutageSchedule::default();
        let ongoing = |reason: &str| Some(OutageEvent::Ongoing(AuthdProblem::Unreachable(reason.to_owned())));
        assert_eq!(
            event_at(&mut schedule, 0, Err("no such file")),
            None,
            "a short delay of authd must not be logged"
        );
        assert_eq!(event_at(&mut schedule, 3, Err("no such file")), ongoing("no such file"));
        let logged_at: Vec<u64> =
            (4..300).filter(|&now| event_at(&mut schedule, now, Err("other names")).is_some()).collect();
        assert_eq!(logged_at, [63, 123, 183, 243]);
        assert_eq!(event_at(&mut schedule, 300, Ok(())), Some(OutageEvent::Ended));
        assert_eq!(event_at(&mut schedule, 301, Ok(())), None);
    }

    #[test]
    fn short_outage_is_not_logged() {
        let mut schedule = OutageSchedule::default();
        for second in (0..100).step_by(4) {
            assert_eq!(event_at(&mut schedule, second, Err("not connected yet")), None);
            assert_eq!(event_at(&mut schedule, second + 2, Err("not connected yet")), None);
            assert_eq!(event_at(&mut schedule, second + 3, Ok(())), None);
        }
    }
}
