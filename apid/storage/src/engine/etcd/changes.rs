//! Changes in memory: a complete part of the history.
//!
//! # Invariants
//!
//! INVARIANT (complete): a part holds every change after `floor` up to `through`, in revision order. The changes of one
//! revision stay together.

use std::collections::VecDeque;

use crate::{Change, Revision, RevisionRange};

/// The part; see the module documentation.
#[derive(Debug)]
pub(super) struct Changes {
    list: VecDeque<Change>,
    floor: u64,
    through: u64,
    bytes: usize,
}

impl Changes {
    pub(super) fn new(floor: u64) -> Self {
        Changes { list: VecDeque::new(), floor, through: floor, bytes: 0 }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds the changes up to a revision.
    pub(super) fn push(&mut self, changes: impl IntoIterator<Item = Change>, through: u64) {
        for change in changes {
            self.bytes += change.bytes();
            self.list.push_back(change);
        }
        self.through = self.through.max(through);
    }

    /// Removes the oldest revisions while all changes exceed a limit in bytes.
    pub(super) fn evict(&mut self, limit: usize) {
        while self.bytes > limit
            && let Some(oldest) = self.list.pop_front()
        {
            self.bytes -= oldest.bytes();
            self.floor = oldest.revision.0;
            while let Some(same) = self.list.pop_front_if(|next| next.revision == oldest.revision) {
                self.bytes -= same.bytes();
            }
        }
    }

    /// The changes of a prefix after a revision, as [`crate::Store::history`]. Returns None if changes after `after` are
    /// missing in this part.
    pub(super) fn read(&self, prefix: &str, after: u64, upto: u64, bytes: usize) -> Option<RevisionRange> {
        if after < self.floor || (after >= self.through && upto > after) {
            return None;
        }
        let upto = upto.min(self.through).max(after);
        let begin = self.list.partition_point(|change| change.revision.0 <= after);
        let (mut changes, mut total) = (Vec::<Change>::new(), 0);
        for change in self.list.range(begin..).take_while(|change| change.revision.0 <= upto) {
            let last = changes.last().map(|last| last.revision);
            if total >= bytes
                && let Some(last) = last
                && change.revision > last
            {
                return Some(RevisionRange { changes, through: last });
            }
            if change.key.starts_with(prefix) {
                total += change.bytes();
                changes.push(change.clone());
            }
        }
        if total >= bytes
            && let Some(last) = changes.last()
        {
            let through = last.revision;
            return Some(RevisionRange { changes, through });
        }
        Some(RevisionRange { changes, through: Revision(upto) })
    }
}

/// Maximum number of cached parts. With several parts, readers at different positions do not evict each other's part.
const MAX_PARTS: usize = 4;

/// Parts of the older history that were read from etcd, the newest first.
#[derive(Debug, Default)]
pub(super) struct CachedParts(VecDeque<Changes>);

impl CachedParts {
    /// As [`Changes::read`], from the part that contains the changes.
    pub(super) fn read(&self, prefix: &str, after: u64, upto: u64, bytes: usize) -> Option<RevisionRange> {
        self.0.iter().find_map(|part| part.read(prefix, after, upto, bytes))
    }

    /// Adds a part, and removes the oldest one if there are too many.
    pub(super) fn add(&mut self, part: Changes) {
        self.0.truncate(MAX_PARTS - 1);
        self.0.push_front(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change(key: &str, revision: u64) -> Change {
        Change { key: key.into(), old: None, new: Some("x".into()), revision: Revision(revision) }
    }

    fn part() -> Changes {
        let mut part = Changes::new(10);
        part.push([change("a/1", 11), change("b/1", 13), change("a/2", 14), change("a/3", 14)], 20);
        part
    }

    fn read(part: &Changes, prefix: &str, after: u64, upto: u64, bytes: usize) -> Option<(Vec<u64>, u64)> {
        let range = part.read(prefix, after, upto, bytes)?;
        Some((range.changes.iter().map(|change| change.revision.0).collect(), range.through.0))
    }

    #[test]
    fn part_is_readable_only_within_bounds() {
        let part = part();
        assert_eq!(read(&part, "", 9, 20, 1000), None);
        assert_eq!(read(&part, "", 20, 21, 1000), None);
        assert_eq!(read(&part, "", 10, 20, 1000), Some((vec![11, 13, 14, 14], 20)));
        assert_eq!(read(&part, "a/", 11, 30, 1000), Some((vec![14, 14], 20)), "a later end is not known");
        assert_eq!(read(&part, "c/", 10, 15, 1000), Some((vec![], 15)));
        assert_eq!(read(&part, "", 20, 20, 1000), Some((vec![], 20)));
    }

    #[test]
    fn parts_of_several_readers_stay_readable() {
        let mut past = CachedParts::default();
        for floor in [10, 20, 30, 40, 50] {
            let mut part = Changes::new(floor);
            part.push([change("a/1", floor + 1)], floor + 5);
            past.add(part);
        }
        let found = |after| past.read("", after, after + 5, 1000).map(|range| range.changes.len());
        let expected = [None, Some(1), Some(1), Some(1), Some(1)];
        assert_eq!([10, 20, 30, 40, 50].map(found), expected, "the oldest part is removed");
        assert_eq!(found(45), None, "no part has the changes after this revision");
    }

    #[test]
    fn changes_of_one_revision_are_not_divided() {
        let mut part = part();
        assert_eq!(read(&part, "", 10, 20, 0), Some((vec![11], 11)));
        assert_eq!(read(&part, "", 13, 20, 0), Some((vec![14, 14], 14)));
        part.evict(part.bytes() - 1);
        assert_eq!(read(&part, "", 10, 20, 9000), None);
        part.evict(change("a/2", 14).bytes());
        assert_eq!(read(&part, "", 14, 20, 9000), Some((vec![], 20)), "both changes are evicted together");
    }
}
