//! Logs why authd does not decide: no listener on the socket, different names, an unreadable file.
//!
//! # Contract
//!
//! A start in the right order logs nothing. A problem that lasts [`PATIENCE`] is logged at the default
//! level, with the reason from `/readyz?verbose` and the path of the socket. The log line repeats at
//! growing intervals, and one more line reports the end of the problem.

use std::path::Path;
use std::time::Duration;

use super::Auth;

/// The delay of the first line: two processes that start together connect within this time.
const PATIENCE: Duration = Duration::from_secs(3);
/// The interval between the first and the second line; it doubles from then on.
const AGAIN: Duration = Duration::from_secs(60);
/// The longest interval.
const SILENCE: Duration = Duration::from_secs(3600);
/// The interval of the checks.
const LOOK: Duration = Duration::from_millis(500);

impl Auth {
    /// Logs when and why authd does not decide; never returns.
    pub async fn tell_what_is_missing(&self, socket: &Path) {
        let mut waiting = Waiting::new();
        loop {
            match waiting.look(self.clock.monotonic(), self.health()) {
                Some(Word::Missing(reason)) if !self.link.is_ending() => tracing::warn!(
                    reason,
                    socket = %socket.display(),
                    "authd does not decide; requests wait or get 503"
                ),
                Some(Word::There) => tracing::info!("authd decides again"),
                Some(Word::Missing(_)) | None => {}
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// A line to log.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    /// authd cannot decide, for this reason.
    Missing(String),
    /// authd decides again, after a logged problem.
    There,
}

/// The schedule of the log lines.
struct Waiting {
    /// When the next line is due; None while authd decides.
    due: Option<Duration>,
    /// The interval after the next line; None when no line was logged.
    pause: Option<Duration>,
}

impl Waiting {
    fn new() -> Self {
        Waiting { due: None, pause: None }
    }

    /// The line to log at this moment.
    fn look(&mut self, now: Duration, health: Result<(), String>) -> Option<Word> {
        let Err(reason) = health else {
            self.due = None;
            return self.pause.take().map(|_| Word::There);
        };
        if now < *self.due.get_or_insert(now + PATIENCE) {
            return None;
        }
        let pause = self.pause.unwrap_or(AGAIN);
        self.due = Some(now + pause);
        self.pause = Some((pause * 2).min(SILENCE));
        Some(Word::Missing(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(waiting: &mut Waiting, seconds: u64, health: Result<(), &str>) -> Option<Word> {
        waiting.look(Duration::from_secs(seconds), health.map_err(str::to_owned))
    }

    #[test]
    fn what_lasts_is_said_once_then_seldom_and_its_end_too() {
        let mut waiting = Waiting::new();
        let missing = |why: &str| Some(Word::Missing(why.to_owned()));
        assert_eq!(
            at(&mut waiting, 0, Err("no such file")),
            None,
            "a short delay of authd must not be logged"
        );
        assert_eq!(at(&mut waiting, 3, Err("no such file")), missing("no such file"));
        let said: Vec<u64> =
            (4..20_000).filter(|&now| at(&mut waiting, now, Err("other names")).is_some()).collect();
        assert_eq!(said, [63, 183, 423, 903, 1863, 3783, 7383, 10983, 14583, 18183]);
        assert_eq!(at(&mut waiting, 20_000, Ok(())), Some(Word::There));
        assert_eq!(at(&mut waiting, 20_001, Ok(())), None);
    }

    #[test]
    fn what_passes_at_once_is_not_said() {
        let mut waiting = Waiting::new();
        for second in (0..100).step_by(4) {
            assert_eq!(at(&mut waiting, second, Err("not connected yet")), None);
            assert_eq!(at(&mut waiting, second + 2, Err("not connected yet")), None);
            assert_eq!(at(&mut waiting, second + 3, Ok(())), None);
        }
    }
}
