//! A list of observers for one store.

use std::sync::Arc;

use crate::{Change, Observer, Revision};

/// Calls each observer, in the order of the list.
///
/// The order matters: the observer of policy revisions comes before the watch cache, so that each change in
/// the cache is already part of the policy revisions.
pub struct Observers(pub Vec<Arc<dyn Observer>>);

impl Observer for Observers {
    fn observe(&self, changes: &[Change]) {
        for observer in &self.0 {
            observer.observe(changes);
        }
    }

    fn progress(&self, through: Revision) {
        for observer in &self.0 {
            observer.progress(through);
        }
    }
}
