//! Several observers of one store.

use std::sync::Arc;

use crate::{Change, Observer};

/// Tells each observer in turn. Those that guard what others let out (policy revisions) come before the others (the
/// watch cache).
pub struct Observers(pub Vec<Arc<dyn Observer>>);

impl Observer for Observers {
    fn observe(&self, changes: &[Change]) {
        for observer in &self.0 {
            observer.observe(changes);
        }
    }
}
