//! The stored objects that identities rest on: an identity ends with them, not with every write of its kind.
//!
//! # Contract
//!
//! Whoever keeps an identity [lays](Foundations::lay) a foundation for each object it rests on and then makes sure that
//! nothing was written meanwhile; the policy vector [reports](Foundations::changed) every object whose reduction changed,
//! after it has advanced `identity`. In this order no change falls between the two.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// The name of an object: full group, resource, namespace, name.
type ObjectName = (String, String, String, String);

/// An object that identities rest on, as it was when they were established.
#[derive(Debug, Default)]
pub(super) struct Foundation {
    gone: AtomicBool,
}

impl Foundation {
    /// Whether the object has not changed in what decides.
    pub(super) fn holds(&self) -> bool {
        !self.gone.load(Ordering::SeqCst)
    }
}

/// All foundations in use.
#[derive(Debug, Default)]
pub(super) struct Foundations {
    laid: Mutex<Laid>,
}

#[derive(Debug, Default)]
struct Laid {
    by_name: HashMap<ObjectName, Weak<Foundation>>,
    /// Unused entries are swept when the map has grown to this size.
    sweep_at: usize,
}

impl Foundations {
    /// The foundation that an object is; shared by all identities that rest on it.
    pub(super) fn lay(&self, group: &str, resource: &str, namespace: &str, name: &str) -> Arc<Foundation> {
        let mut laid = self.laid.lock();
        if laid.by_name.len() >= laid.sweep_at {
            laid.by_name.retain(|_, foundation| foundation.strong_count() > 0);
            laid.sweep_at = (laid.by_name.len() * 2).max(64);
        }
        let slot = laid.by_name.entry((
            group.to_owned(),
            resource.to_owned(),
            namespace.to_owned(),
            name.to_owned(),
        ));
        let slot = slot.or_default();
        slot.upgrade().unwrap_or_else(|| {
            let fresh = Arc::new(Foundation::default());
            *slot = Arc::downgrade(&fresh);
            fresh
        })
    }

    /// The object changed in what decides: everything that rests on it ends.
    pub(super) fn changed(&self, group: &str, resource: &str, namespace: &str, name: &str) {
        let mut laid = self.laid.lock();
        if laid.by_name.is_empty() {
            return;
        }
        let key = (group.to_owned(), resource.to_owned(), namespace.to_owned(), name.to_owned());
        if let Some(foundation) = laid.by_name.remove(&key).and_then(|weak| weak.upgrade()) {
            foundation.gone.store(true, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_ends_what_rests_on_the_object_and_nothing_else() {
        let all = Foundations::default();
        let a = all.lay("", "serviceaccounts", "ns", "a");
        let same = all.lay("", "serviceaccounts", "ns", "a");
        let b = all.lay("", "serviceaccounts", "ns", "b");
        all.changed("", "serviceaccounts", "ns", "a");
        assert!(!a.holds() && !same.holds() && b.holds());
        assert!(all.lay("", "serviceaccounts", "ns", "a").holds(), "a new identity rests on the new object");
    }

    #[test]
    fn foundations_nobody_uses_do_not_pile_up() {
        let all = Foundations::default();
        for i in 0..10_000 {
            all.lay("", "pods", "ns", &i.to_string());
        }
        assert!(all.laid.lock().by_name.len() <= 64);
    }
}
