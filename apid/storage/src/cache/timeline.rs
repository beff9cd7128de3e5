//! The timeline: samples of the newest revision over time, one a second, for the maximum age of snapshots.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::Revision;

/// Minimum time between two samples.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);

/// The timeline; see the module documentation.
#[derive(Debug)]
pub(super) struct Timeline {
    samples: VecDeque<(Instant, Revision)>,
    age: Duration,
}

impl Timeline {
    /// An empty timeline that reaches back for `age`.
    pub(super) fn new(age: Duration) -> Self {
        Timeline { samples: VecDeque::new(), age }
    }

    /// Records the newest revision. Within [`SAMPLE_INTERVAL`] after the last sample, the revision of that
    /// sample is replaced.
    pub(super) fn record(&mut self, now: Instant, revision: Revision) {
        match self.samples.back_mut() {
            Some((sampled_at, newest)) if now.saturating_duration_since(*sampled_at) < SAMPLE_INTERVAL => {
                *newest = revision
            }
            _ => {
                self.samples.push_back((now, revision));
                self.floor(now);
            }
        }
    }

    /// The oldest revision that was the newest revision of the store at some time within the last `age`.
    ///
    /// The precision is [`SAMPLE_INTERVAL`].
    pub(super) fn floor(&mut self, now: Instant) -> Revision {
        let age = self.age;
        let is_expired = |sample: Option<&(Instant, Revision)>| {
            sample.is_some_and(|(sampled_at, _)| now.saturating_duration_since(*sampled_at) >= age)
        };
        // Keep the newest expired sample: its revision was the newest until the next sample.
        while is_expired(self.samples.get(1)) {
            self.samples.pop_front();
        }
        let oldest = self.samples.front().filter(|sample| is_expired(Some(sample)));
        oldest.map_or(Revision(0), |(_, revision)| *revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeline_floor_is_newest_revision_one_age_ago() {
        let begin = Instant::now();
        let at = |seconds: f64| begin + Duration::from_secs_f64(seconds);
        let mut timeline = Timeline::new(crate::cache::Limits::default().snapshot_age);
        for (seconds, revision) in [(0.0, 10), (0.5, 11), (10.0, 20), (40.0, 30)] {
            timeline.record(at(seconds), Revision(revision));
        }
        for (seconds, floor) in
            [(40.0, 0), (74.9, 0), (75.0, 11), (84.9, 11), (85.0, 20), (114.0, 20), (9999.0, 30)]
        {
            assert_eq!(timeline.floor(at(seconds)), Revision(floor), "after {seconds} s");
        }
        assert_eq!(timeline.samples.len(), 1, "expired samples are removed");
    }
}
