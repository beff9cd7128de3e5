//! Says in the log what keeps authd from deciding: a socket nobody listens on, other names, a file authd cannot read.
//!
//! # Contract
//!
//! A start in the right order is silent: only what has lasted [`PATIENCE`] is said, at the default level, with the reason
//! that `/readyz?verbose` gives and the socket that was dialled. It is said again seldom, and once more when it is over.

use std::path::Path;
use std::time::Duration;

use super::Auth;

/// Two processes that are started together find each other in less.
const PATIENCE: Duration = Duration::from_secs(3);
/// After this it is said a second time, and each time after twice as long.
const AGAIN: Duration = Duration::from_secs(60);
/// The longest silence.
const SILENCE: Duration = Duration::from_secs(3600);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(500);

impl Auth {
    /// Tells the log when requests cannot be decided, and why; never ends.
    pub async fn tell_what_is_missing(&self, socket: &Path) {
        let mut waiting = Waiting::new();
        loop {
            match waiting.look(self.clock.monotonic(), self.health()) {
                Some(Word::Missing(reason)) if !self.link.is_ending() => tracing::warn!(
                    reason,
                    socket = %socket.display(),
                    "authd does not decide: requests wait for it, or are answered 503"
                ),
                Some(Word::There) => tracing::info!("authd decides again"),
                Some(Word::Missing(_)) | None => {}
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

/// What there is to say.
#[derive(Debug, PartialEq, Eq)]
enum Word {
    /// Requests cannot be decided, for this reason.
    Missing(String),
    /// They can, after it was said that they could not.
    There,
}

/// What was said, and when it is said again.
struct Waiting {
    /// When the next word is due; None while all is well.
    due: Option<Duration>,
    /// From this word to the one after it; None when none was said.
    pause: Option<Duration>,
}

impl Waiting {
    fn new() -> Self {
        Waiting { due: None, pause: None }
    }

    /// What to say at this moment.
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
        assert_eq!(at(&mut waiting, 0, Err("no such file")), None, "authd may be a moment behind");
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
