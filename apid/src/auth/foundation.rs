//! Tracks the stored objects that identities depend on.
//!
//! A write ends only the identities that depend on its object.
//!
//! # Contract
//!
//! Before caching an identity, the cache [tracks](Foundations::lay) each object it depends on, then checks
//! that no write happened meanwhile. The policy vector first advances `identity` and then
//! [reports](Foundations::changed) every object whose reduction changed. This order leaves no gap in which
//! a change is missed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// The name of an object: full group, resource, namespace, name.
type ObjectName = (String, String, String, String);

/// An object that identities depend on, in its state when they were established.
#[derive(Debug, Default)]
pub(super) struct Foundation {
    gone: AtomicBool,
}

impl Foundation {
    /// Whether the policy-relevant part of the object is unchanged.
    pub(super) fn holds(&self) -> bool {
        !self.gone.load(Ordering::SeqCst)
    }
}

/// All tracked objects.
#[derive(Debug, Default)]
pub(super) struct Foundations {
    laid: Mutex<Laid>,
}

#[derive(Debug, Default)]
struct Laid {
    by_name: HashMap<ObjectName, Weak<Foundation>>,
    /// The size of the map at which the next call removes unused entries.
    sweep_at: usize,
}

impl Foundations {
    /// Tracks an object. All identities that depend on it share the handle.
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

    /// Ends all identities that depend on this object, whose policy-relevant part changed.
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
        assert!(
            all.lay("", "serviceaccounts", "ns", "a").holds(),
            "a new identity must depend on the new object"
        );
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
