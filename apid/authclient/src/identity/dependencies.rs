//! Tracks the stored objects that identities depend on.
//!
//! A write ends only the identities that depend on its object.
//!
//! # Contract
//!
//! Before apid caches an identity, it [tracks](IdentityDependencies::track) each object on which the identity
//! depends. Then it checks that the component `identity` has not advanced since the request. For a write, the
//! policy vector first advances `identity` and then [reports](IdentityDependencies::invalidate) the changed
//! object. This order leaves no gap in which a change is missed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// The name of an object: full group, resource, namespace, name.
type ObjectName = (String, String, String, String);

/// An object that identities depend on, in its state at the time when authd established these identities.
#[derive(Debug, Default)]
pub(crate) struct IdentityDependency {
    is_changed: AtomicBool,
}

impl IdentityDependency {
    /// Whether the policy-relevant part of the object is unchanged.
    pub(crate) fn is_unchanged(&self) -> bool {
        !self.is_changed.load(Ordering::SeqCst)
    }
}

/// All objects that cached identities depend on; see the module documentation.
#[derive(Debug, Default)]
pub(crate) struct IdentityDependencies {
    tracked: Mutex<TrackedObjects>,
}

#[derive(Debug, Default)]
struct TrackedObjects {
    by_name: HashMap<ObjectName, Weak<IdentityDependency>>,
    /// The number of entries at which [`IdentityDependencies::track`] removes the unused entries.
    sweep_at: usize,
}

impl IdentityDependencies {
    /// Tracks an object. All identities that depend on the object share the returned handle.
    pub(crate) fn track(
        &self,
        group: &str,
        resource: &str,
        namespace: &str,
        name: &str,
    ) -> Arc<IdentityDependency> {
        let mut tracked = self.tracked.lock();
        if tracked.by_name.len() >= tracked.sweep_at {
            tracked.by_name.retain(|_, dependency| dependency.strong_count() > 0);
            tracked.sweep_at = (tracked.by_name.len() * 2).max(64);
        }
        let slot = tracked.by_name.entry((
            group.to_owned(),
            resource.to_owned(),
            namespace.to_owned(),
            name.to_owned(),
        ));
        let slot = slot.or_default();
        slot.upgrade().unwrap_or_else(|| {
            let fresh = Arc::new(IdentityDependency::default());
            *slot = Arc::downgrade(&fresh);
            fresh
        })
    }

    /// Ends all identities that depend on this object, whose policy-relevant part changed.
    pub(crate) fn invalidate(&self, group: &str, resource: &str, namespace: &str, name: &str) {
        let mut tracked = self.tracked.lock();
        if tracked.by_name.is_empty() {
            return;
        }
        let key = (group.to_owned(), resource.to_owned(), namespace.to_owned(), name.to_owned());
        if let Some(dependency) = tracked.by_name.remove(&key).and_then(|weak| weak.upgrade()) {
            dependency.is_changed.store(true, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_change_ends_only_dependent_identities() {
        let dependencies = IdentityDependencies::default();
        let a = dependencies.track("", "serviceaccounts", "ns", "a");
        let same = dependencies.track("", "serviceaccounts", "ns", "a");
        let b = dependencies.track("", "serviceaccounts", "ns", "b");
        dependencies.invalidate("", "serviceaccounts", "ns", "a");
        assert!(!a.is_unchanged() && !same.is_unchanged() && b.is_unchanged());
        assert!(
            dependencies.track("", "serviceaccounts", "ns", "a").is_unchanged(),
            "a new identity must depend on the new object"
        );
    }

    #[test]
    fn unused_identity_dependencies_are_removed() {
        let dependencies = IdentityDependencies::default();
        for i in 0..10_000 {
            dependencies.track("", "pods", "ns", &i.to_string());
        }
        assert!(dependencies.tracked.lock().by_name.len() <= 64);
    }
}
