//! Leases of history for reads that take longer than the retention.
//!
//! # Contract
//!
//! A [`HistoryLease`] keeps its revision and all later revisions readable until the lease is dropped: the
//! engine does not compact history by age beyond the oldest leased revision. The caller limits the time of a
//! lease, because retained history takes space.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::Revision;

/// The leased revisions of a store, each with the number of its leases.
#[derive(Debug, Default)]
pub(crate) struct HistoryLeases(Mutex<BTreeMap<Revision, usize>>);

impl HistoryLeases {
    /// Leases the history from a revision on.
    pub(crate) fn lease(self: &Arc<Self>, from: Revision) -> HistoryLease {
        *self.0.lock().entry(from).or_default() += 1;
        HistoryLease(Some((Arc::clone(self), from)))
    }

    /// The oldest leased revision.
    pub(crate) fn oldest(&self) -> Option<Revision> {
        self.0.lock().keys().next().copied()
    }

    fn release(&self, from: Revision) {
        let mut leases = self.0.lock();
        if let Some(count) = leases.get_mut(&from) {
            *count = count.saturating_sub(1);
        }
        leases.retain(|_, count| *count > 0);
    }
}

/// The lease of the history from a revision on. In an engine without automatic compaction, a lease has no
/// effect.
#[must_use = "a dropped lease retains nothing"]
#[derive(Debug, Default)]
pub struct HistoryLease(Option<(Arc<HistoryLeases>, Revision)>);

impl Drop for HistoryLease {
    fn drop(&mut self) {
        if let Some((leases, from)) = self.0.take() {
            leases.release(from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_lease_is_the_oldest_revision_with_a_living_lease() {
        let leases = Arc::new(HistoryLeases::default());
        assert_eq!(leases.oldest(), None);
        let (newer, older, same) =
            (leases.lease(Revision(9)), leases.lease(Revision(4)), leases.lease(Revision(4)));
        drop(older);
        assert_eq!(leases.oldest(), Some(Revision(4)), "a second lease of the revision still exists");
        drop(same);
        assert_eq!(leases.oldest(), Some(Revision(9)));
        drop(newer);
        assert_eq!(leases.oldest(), None);
    }
}
