//! Exponential back-off after consecutive failures.

use std::time::Duration;

/// Pauses that double with each consecutive failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Pause after the first failure.
    pub first: Duration,
    /// Longest pause.
    pub longest: Duration,
}

impl Backoff {
    /// The pause after a failure that follows this number of consecutive failures.
    pub fn pause(self, earlier_failures: u32) -> Duration {
        self.first.saturating_mul(1 << earlier_failures.min(31)).min(self.longest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_doubles_up_to_the_longest_pause() {
        let backoff = Backoff { first: Duration::from_millis(50), longest: Duration::from_secs(1) };
        let pauses = [0, 1, 2, 4, 5, u32::MAX].map(|failures| backoff.pause(failures).as_millis());
        assert_eq!(pauses, [50, 100, 200, 800, 1_000, 1_000]);
    }
}
