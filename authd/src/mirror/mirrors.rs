//! The mirrors of all apids that use this process: one for each.
//!
//! # Contract
//!
//! Each apid names itself in the metadata of its requests. Its mirror stream feeds its own [`Mirror`], and its requests are
//! decided on this mirror only. An apid without a name uses the mirror of the empty name.
//!
//! # Invariants
//!
//! INVARIANT (one history): a mirror has the objects of one apid, so revisions of two stores never meet.
//! INVARIANT (bounded memory): a mirror exists while its apid has an open stream or a pending call.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use apimachinery::names::Names;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::Mirror;

/// The mirrors by the names of their apids.
#[derive(Debug)]
pub struct Mirrors {
    names: Arc<Names>,
    aggregates_roles: bool,
    by_apid: Mutex<HashMap<String, Weak<Mirror>>>,
    complete: watch::Sender<usize>,
}

impl Mirrors {
    /// Creates the empty set. If `aggregates_roles` is false, each role grants its written rules.
    pub fn new(names: Arc<Names>, aggregates_roles: bool) -> Arc<Self> {
        let complete = watch::Sender::new(0);
        Arc::new(Mirrors { names, aggregates_roles, by_apid: Mutex::default(), complete })
    }

    /// Returns the mirror of an apid; creates an empty one if the apid has none.
    pub fn of_apid(&self, apid: &str) -> Arc<Mirror> {
        let mut by_apid = self.by_apid.lock();
        if let Some(mirror) = by_apid.get(apid).and_then(Weak::upgrade) {
            return mirror;
        }
        by_apid.retain(|_, mirror| mirror.strong_count() > 0);
        let mirror = Mirror::of_set(Arc::clone(&self.names), self.aggregates_roles, self.complete.clone());
        by_apid.insert(apid.to_owned(), Arc::downgrade(&mirror));
        mirror
    }

    /// Returns the mirrors that exist now.
    pub fn all(&self) -> Vec<Arc<Mirror>> {
        self.by_apid.lock().values().filter_map(Weak::upgrade).collect()
    }

    /// Subscribes to the number of complete mirrors.
    pub fn complete(&self) -> watch::Receiver<usize> {
        self.complete.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;

    #[test]
    fn apids_have_separate_mirrors_that_end_with_their_streams() {
        let mirrors = Mirrors::new(Arc::new(Names::new(Preset::Kubernetes, "").unwrap()), true);
        let complete = mirrors.complete();
        let (first, second) = (mirrors.of_apid("one"), mirrors.of_apid("two"));
        let mut feed = first.begin();
        feed.synced(7).unwrap();
        assert!(Arc::ptr_eq(&first, &mirrors.of_apid("one")));
        assert!(first.at_least(7).policy().is_ok());
        assert!(second.at_least(0).policy().is_err(), "the second apid has sent no snapshot");
        assert_eq!((mirrors.all().len(), *complete.borrow()), (2, 1));
        let mut second_feed = second.begin();
        second_feed.synced(3).unwrap();
        assert_eq!(*complete.borrow(), 2);
        drop((feed, first));
        assert_eq!((mirrors.all().len(), *complete.borrow()), (1, 1));
        assert!(mirrors.of_apid("one").at_least(0).policy().is_err(), "a new stream begins without objects");
    }
}
