//! The newest changes, cached in memory: watches that keep up read no disk.
//!
//! The size is limited; watches that fall behind read the log.

use std::collections::VecDeque;

use super::reader::HistoryLimits;
use crate::Change;

/// The cache of recent changes; see the module documentation.
pub(super) struct RecentChanges {
    changes: VecDeque<Change>,
    bytes: usize,
    limit: usize,
    /// All changes after this revision and up to `through` are cached.
    after: u64,
    /// The revision of the newest change. The store is ahead of it while an observer runs.
    through: u64,
}

impl RecentChanges {
    /// An empty cache, which holds no history up to `revision`.
    pub(super) fn new(revision: u64, limit: usize) -> Self {
        RecentChanges { changes: VecDeque::new(), bytes: 0, limit, after: revision, through: revision }
    }

    /// Adds the changes of a batch. Evicts the oldest changes while the size exceeds the limit.
    pub(super) fn extend(&mut self, changes: Vec<Change>) {
        self.bytes += changes.iter().map(Change::bytes).sum::<usize>();
        self.through = changes.last().map_or(self.through, |newest| newest.revision.0);
        self.changes.extend(changes);
        while self.bytes > self.limit
            && let Some(oldest) = self.changes.pop_front()
        {
            self.bytes -= oldest.bytes();
            self.after = oldest.revision.0;
        }
    }

    /// Like [`super::reader::history`]; None when a part of the range is not cached.
    pub(super) fn history(
        &self,
        prefix: &str,
        after: u64,
        upto: u64,
        limits: HistoryLimits,
    ) -> Option<(Vec<Change>, u64)> {
        if after < self.after || upto > self.through {
            return None;
        }
        let first = self.changes.partition_point(|change| change.revision.0 <= after);
        let mut matching = Vec::new();
        let mut bytes = 0;
        for (scanned, change) in self.changes.range(first..).enumerate() {
            if change.revision.0 > upto {
                break;
            }
            if change.key.starts_with(prefix) {
                bytes += change.bytes();
                matching.push(change.clone());
            }
            if scanned + 1 >= limits.entries || bytes >= limits.bytes {
                return Some((matching, change.revision.0));
            }
        }
        Some((matching, upto))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::Revision;

    fn change(revision: u64) -> Change {
        let key = if revision.is_multiple_of(2) { "even" } else { "odd" };
        Change { key: key.into(), old: None, new: Some(Bytes::new()), revision: Revision(revision) }
    }

    fn revisions(found: Option<(Vec<Change>, u64)>) -> Option<(Vec<u64>, u64)> {
        found.map(|(changes, through)| (changes.iter().map(|change| change.revision.0).collect(), through))
    }

    #[test]
    fn recent_changes_return_none_for_range_that_is_not_cached() {
        let all = HistoryLimits { entries: 100, bytes: usize::MAX };
        let mut recent = RecentChanges::new(10, 4 * change(12).bytes());
        assert_eq!(revisions(recent.history("", 10, 10, all)), Some((vec![], 10)));
        assert_eq!(revisions(recent.history("", 10, 11, all)), None, "the change 11 is not added yet");
        recent.extend((11..=12).map(change).collect());
        recent.extend(vec![change(15)]);
        assert_eq!(revisions(recent.history("", 10, 15, all)), Some((vec![11, 12, 15], 15)));
        assert_eq!(revisions(recent.history("", 11, 12, all)), Some((vec![12], 12)));
        assert_eq!(revisions(recent.history("odd", 10, 15, all)), Some((vec![11, 15], 15)));
        let one = HistoryLimits { entries: 1, bytes: usize::MAX };
        assert_eq!(revisions(recent.history("even", 10, 15, one)), Some((vec![], 11)));
        recent.extend((16..=19).map(change).collect());
        assert_eq!(revisions(recent.history("", 15, 19, all)), Some((vec![16, 17, 18, 19], 19)));
        assert_eq!(revisions(recent.history("", 14, 19, all)), None);
    }
}
