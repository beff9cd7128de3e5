//! Work that waits for a change of the served kinds.
//!
//! # Contract
//!
//! Each item is work on an object whose own kind, or the kind of an owner, is not served. The item stays
//! until the served kinds change or until the object is deleted, so short-lived objects do not accumulate
//! work.

use std::collections::HashSet;

use parking_lot::Mutex;

use super::index::WorkItem;

/// Work that is deferred until the served kinds change.
#[derive(Debug, Default)]
pub(super) struct UnservedWork(Mutex<HashSet<WorkItem>>);

impl UnservedWork {
    /// Adds an item.
    pub(super) fn add(&self, work: WorkItem) {
        self.0.lock().insert(work);
    }

    /// Removes an item. Returns whether it was present.
    pub(super) fn remove(&self, work: &WorkItem) -> bool {
        self.0.lock().remove(work)
    }

    /// Removes all work on the object at a key. Called when the object is deleted.
    pub(super) fn remove_object(&self, key: &str) {
        let mut deferred = self.0.lock();
        if !deferred.is_empty() {
            WorkItem::all_for_object(key).iter().for_each(|work| {
                deferred.remove(work);
            });
        }
    }

    /// Removes and returns all items.
    pub(super) fn take(&self) -> HashSet<WorkItem> {
        std::mem::take(&mut *self.0.lock())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deferred_work_of_deleted_object_is_removed() {
        let deferred = UnservedWork::default();
        for key in ["pods/a", "pods/b"] {
            WorkItem::all_for_object(key).into_iter().for_each(|work| deferred.add(work));
        }
        deferred.remove_object("pods/a");
        assert!(!deferred.remove(&WorkItem::Examine("pods/a".into())));
        assert!(deferred.remove(&WorkItem::Finish("pods/b".into())));
        let rest =
            HashSet::from([WorkItem::Examine("pods/b".into()), WorkItem::OwnerDeletion("pods/b".into())]);
        assert_eq!(deferred.take(), rest);
        assert!(deferred.take().is_empty());
    }
}
