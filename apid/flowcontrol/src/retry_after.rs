//! After how many seconds a rejected client should retry.
//!
//! # Contract
//!
//! One second at first. The longer a level goes on to reject requests, the longer its clients should wait: one second
//! more when three times as many requests as seconds were rejected during the present wait, up to
//! [`MAX_SECONDS`]; one second less when they were fewer than the seconds. Rejections of one second count together.

use std::collections::VecDeque;
use std::time::Duration;

/// Longest wait, in seconds.
const MAX_SECONDS: u64 = 15;

/// The wait of a level's rejected clients.
#[derive(Debug)]
pub(crate) struct RetryAfter {
    seconds: u64,
    changed: u64,
    /// Second and number of rejections, for the last [`MAX_SECONDS`].
    rejections: VecDeque<(u64, u64)>,
}

impl Default for RetryAfter {
    fn default() -> Self {
        RetryAfter { seconds: 1, changed: 0, rejections: VecDeque::new() }
    }
}

impl RetryAfter {
    /// Counts a rejection and returns its wait in seconds.
    pub(crate) fn reject(&mut self, now: Duration) -> u32 {
        let second = now.as_secs();
        match self.rejections.back_mut() {
            Some((last, count)) if *last == second => *count += 1,
            _ => {
                self.change(second);
                self.rejections.push_back((second, 1));
            }
        }
        u32::try_from(self.seconds).unwrap_or(1)
    }

    /// Changes the wait at the first rejection of a second.
    fn change(&mut self, second: u64) {
        while self.rejections.front().is_some_and(|(first, _)| first + MAX_SECONDS < second) {
            self.rejections.pop_front();
        }
        if second.saturating_sub(self.changed) < self.seconds {
            return;
        }
        let recent = self.rejections.iter().filter(|(rejected, _)| rejected + self.seconds >= second);
        let rejected: u64 = recent.map(|(_, count)| count).sum();
        let next = if rejected >= 3 * self.seconds {
            (self.seconds + 1).min(MAX_SECONDS)
        } else if rejected < self.seconds {
            (self.seconds - 1).max(1)
        } else {
            self.seconds
        };
        if next != self.seconds {
            self.seconds = next;
            self.changed = second;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_grows_while_many_requests_are_rejected_and_shrinks_later() {
        let mut wait = RetryAfter::default();
        let mut reject = |second: u64, count: u32| {
            (0..count).map(|_| wait.reject(Duration::from_secs(second))).last().unwrap()
        };
        assert_eq!(reject(100, 50), 1, "one second tells nothing yet");
        assert_eq!(reject(101, 50), 2);
        assert_eq!(reject(102, 50), 2, "the new wait has not passed");
        assert_eq!(reject(103, 50), 3);
        let longest = (104..400).map(|second| reject(second, 50)).last();
        assert_eq!(longest, Some(15));
        assert_eq!(reject(1_000, 1), 14);
        let shortest = (1..40).map(|step| reject(1_000 + 60 * step, 1)).last();
        assert_eq!(shortest, Some(1));
    }
}
