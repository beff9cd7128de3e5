//! Which revision was the newest when: about a mark a second, as far back as snapshots are kept.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use crate::Revision;

/// Marks closer to each other are one.
const APART: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Debug)]
pub(super) struct Timeline {
    marks: VecDeque<(Instant, Revision)>,
    age: Duration,
}

impl Timeline {
    /// As far back as an age.
    pub(super) fn new(age: Duration) -> Self {
        Timeline { marks: VecDeque::new(), age }
    }

    /// Notes that a revision is the newest from now on.
    pub(super) fn mark(&mut self, now: Instant, revision: Revision) {
        match self.marks.back_mut() {
            Some((since, newest)) if now.saturating_duration_since(*since) < APART => *newest = revision,
            _ => {
                self.marks.push_back((now, revision));
                self.floor(now);
            }
        }
    }

    /// The oldest revision whose state was the newest within the age, as exactly as marks tell.
    pub(super) fn floor(&mut self, now: Instant) -> Revision {
        let age = self.age;
        let old = |mark: Option<&(Instant, Revision)>| {
            mark.is_some_and(|(since, _)| now.saturating_duration_since(*since) >= age)
        };
        // The newest of those that are old is kept: it was the newest until the mark after it.
        while old(self.marks.get(1)) {
            self.marks.pop_front();
        }
        let oldest = self.marks.front().filter(|mark| old(Some(mark)));
        oldest.map_or(Revision(0), |(_, revision)| *revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_what_was_the_newest_an_age_ago() {
        let begin = Instant::now();
        let at = |seconds: f64| begin + Duration::from_secs_f64(seconds);
        let mut timeline = Timeline::new(Duration::from_secs(75));
        for (seconds, revision) in [(0.0, 10), (0.5, 11), (10.0, 20), (40.0, 30)] {
            timeline.mark(at(seconds), Revision(revision));
        }
        for (seconds, floor) in
            [(40.0, 0), (74.9, 0), (75.0, 11), (84.9, 11), (85.0, 20), (114.0, 20), (9999.0, 30)]
        {
            assert_eq!(timeline.floor(at(seconds)), Revision(floor), "after {seconds} s");
        }
        assert_eq!(timeline.marks.len(), 1, "what is of no use is forgotten");
    }
}
