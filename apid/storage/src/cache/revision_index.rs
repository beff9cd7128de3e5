//! An index of weak references by revision.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use crate::Revision;

/// Minimum number of references at which dropped values are removed.
const MIN_SWEEP_AT: usize = 64;

/// Weak references to values, by revision.
pub(super) struct RevisionIndex<T> {
    references: BTreeMap<Revision, Vec<Weak<T>>>,
    /// Number of references.
    count: usize,
    /// The references to dropped values are removed when the index has this number of references.
    sweep_at: usize,
}

impl<T> Default for RevisionIndex<T> {
    fn default() -> Self {
        RevisionIndex { references: BTreeMap::new(), count: 0, sweep_at: MIN_SWEEP_AT }
    }
}

impl<T> RevisionIndex<T> {
    /// Adds a reference at a revision.
    pub(super) fn add(&mut self, revision: Revision, value: &Arc<T>) {
        if self.count >= self.sweep_at {
            self.sweep();
        }
        self.references.entry(revision).or_default().push(Arc::downgrade(value));
        self.count += 1;
    }

    /// Removes the references to dropped values.
    pub(super) fn sweep(&mut self) {
        self.references.retain(|_, references| {
            references.retain(|reference| reference.strong_count() > 0);
            !references.is_empty()
        });
        self.count = self.references.values().map(Vec::len).sum();
        self.sweep_at = MIN_SWEEP_AT.max(2 * self.count);
    }

    /// Whether the index has no reference.
    pub(super) fn is_empty(&self) -> bool {
        self.references.is_empty()
    }

    /// Whether a value below a revision exists. Removes the references to dropped values up to the first one that
    /// exists.
    pub(super) fn has_value_below(&mut self, revision: Revision) -> bool {
        while let Some(mut lowest) = self.references.first_entry() {
            let before = lowest.get().len();
            lowest.get_mut().retain(|reference| reference.strong_count() > 0);
            self.count -= before - lowest.get().len();
            if !lowest.get().is_empty() {
                return *lowest.key() < revision;
            }
            lowest.remove();
        }
        false
    }

    /// Removes the references below a revision. Returns the values that still exist.
    pub(super) fn take_below(&mut self, revision: Revision) -> Vec<Arc<T>> {
        if self.references.first_key_value().is_none_or(|(lowest, _)| *lowest >= revision) {
            return Vec::new();
        }
        let rest = self.references.split_off(&revision);
        let below = std::mem::replace(&mut self.references, rest);
        let below = below.into_values().flatten();
        below.inspect(|_| self.count -= 1).filter_map(|reference| reference.upgrade()).collect()
    }
}
