//! A list of observers for one store.

use std::sync::Arc;

use crate::{Change, Observer};

/// Calls each observer in order. Observers that guard other observers come first.
///
/// Example: the observer of policy revisions comes before the watch cache.
pub struct Observers(pub Vec<Arc<dyn Observer>>);

impl Observer for Observers {
    fn observe(&self, changes: &[Change]) {
        for observer in &self.0 {
            observer.observe(changes);
        }
    }
}
