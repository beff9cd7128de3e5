//! Limits the log lines about the failed calls of one webhook.

use std::time::Duration;

use parking_lot::Mutex;

/// Minimum time between two log lines about one webhook.
const INTERVAL: Duration = Duration::from_secs(60);

/// The failed calls of a webhook since its last log line.
#[derive(Debug, Default)]
pub(super) struct FailureLog(Mutex<FailureCount>);

#[derive(Debug, Default)]
struct FailureCount {
    /// Monotonic time of the last log line; None before the first.
    logged: Option<Duration>,
    failures: u64,
}

impl FailureLog {
    /// Counts a failed call. Returns the number of failures since the last log line if a line is due.
    pub(super) fn count(&self, now: Duration) -> Option<u64> {
        let mut count = self.0.lock();
        count.failures += 1;
        if count.logged.is_some_and(|logged| now.saturating_sub(logged) < INTERVAL) {
            return None;
        }
        count.logged = Some(now);
        Some(std::mem::take(&mut count.failures))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_failures_of_a_webhook_give_one_line_a_minute() {
        let log = FailureLog::default();
        let at = |seconds| log.count(Duration::from_secs(seconds));
        assert_eq!([at(1), at(1), at(30), at(60)], [Some(1), None, None, None]);
        assert_eq!([at(61), at(62), at(500)], [Some(4), None, Some(2)]);
    }
}
