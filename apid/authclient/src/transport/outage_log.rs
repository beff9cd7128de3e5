//! The log of outages of authd: times in which authd cannot decide requests.
//!
//! # Contract
//!
//! A start of both processes within a few seconds logs nothing. A problem that lasts [`FIRST_LOG_DELAY`] is
//! logged at the default level, with the reason from `/readyz?verbose` and the path of the socket. The log
//! line repeats at growing intervals, and one more line reports the end of the problem.

use std::path::Path;
use std::time::Duration;

use crate::{Auth, AuthdProblem};

/// The delay of the first log line. apid and authd connect within this time if they start together.
const FIRST_LOG_DELAY: Duration = Duration::from_secs(3);
/// The interval between the first and the second log line; the interval doubles with each further log line.
const REPEAT_INTERVAL: Duration = Duration::from_secs(60);
/// The longest interval between two log lines.
const MAX_REPEAT_INTERVAL: Duration = Duration::from_secs(3600);
/// The interval between two checks of the connection to authd.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

impl Auth {
    /// Logs each outage of authd and its end; never returns.
    pub async fn log_outages(&self, socket: &Path) {
        let mut schedule = OutageSchedule::default();
        loop {
            match schedule.next_event(self.clock.monotonic(), self.health()) {
                Some(OutageEvent::Ongoing(reason)) if !self.link.is_shutting_down() => tracing::warn!(
                    %reason,
                    socket = %socket.display(),
                    "authd gives no decisions; requests wait or get 503"
                ),
                Some(OutageEvent::Ended) => tracing::info!("authd decides again"),
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
    /// authd decides again, after a logged problem.
    Ended,
}

/// Determines when the next log line about an outage is due, at growing intervals.
#[derive(Default)]
struct OutageSchedule {
    /// The monotonic time at which the next line is due; None while authd can decide requests.
    due: Option<Duration>,
    /// The interval between the next log line and the line after it; None when no line was logged.
    pause: Option<Duration>,
}

impl OutageSchedule {
    /// The event to log at this moment, if any.
    fn next_event(&mut self, now: Duration, health: Result<(), AuthdProblem>) -> Option<OutageEvent> {
        let Err(reason) = health else {
            self.due = None;
            return self.pause.take().map(|_| OutageEvent::Ended);
        };
        if now < *self.due.get_or_insert(now + FIRST_LOG_DELAY) {
            return None;
        }
        let pause = self.pause.unwrap_or(REPEAT_INTERVAL);
        self.due = Some(now + pause);
        self.pause = Some((pause * 2).min(MAX_REPEAT_INTERVAL));
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
    fn lasting_outage_is_logged_at_growing_intervals_and_its_end_once() {
        let mut schedule = OutageSchedule::default();
        let ongoing = |reason: &str| Some(OutageEvent::Ongoing(AuthdProblem::Unreachable(reason.to_owned())));
        assert_eq!(
            event_at(&mut schedule, 0, Err("no such file")),
            None,
            "a short delay of authd must not be logged"
        );
        assert_eq!(event_at(&mut schedule, 3, Err("no such file")), ongoing("no such file"));
        let logged_at: Vec<u64> =
            (4..20_000).filter(|&now| event_at(&mut schedule, now, Err("other names")).is_some()).collect();
        assert_eq!(logged_at, [63, 183, 423, 903, 1863, 3783, 7383, 10983, 14583, 18183]);
        assert_eq!(event_at(&mut schedule, 20_000, Ok(())), Some(OutageEvent::Ended));
        assert_eq!(event_at(&mut schedule, 20_001, Ok(())), None);
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
