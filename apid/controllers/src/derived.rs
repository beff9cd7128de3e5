//! Values that a background task derives from the objects of a collection.
//!
//! # Invariants
//!
//! INVARIANT (bounded work): an update decodes only objects that are new, that have changed since the last
//! update, or that could not be decoded before.

use std::collections::HashMap;
use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use storage::Revision;

use super::stored;
use verbs::Collection;

/// One value for each object of a collection.
pub(super) struct DerivedValues<T> {
    /// Revision and value of each object, by storage key.
    by_key: HashMap<Arc<str>, (Revision, T)>,
}

impl<T> DerivedValues<T> {
    /// Creates an empty set of values.
    pub(super) fn new() -> Self {
        DerivedValues { by_key: HashMap::new() }
    }

    /// Updates the values to the current objects of `collection`.
    ///
    /// An object that cannot be decoded has no value.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub(super) async fn update(
        &mut self,
        collection: &Collection,
        derive: impl Fn(Object) -> T,
    ) -> Result<(), Status> {
        let snapshot = collection.items.snapshot().await.map_err(stored::unavailable)?;
        let items = snapshot.scope(&collection.kind.key_prefix, "");
        let items = items.map(|item| (item.key(), item.revision(), item));
        self.replace(items, |item| stored::object(item).map(&derive));
        Ok(())
    }

    /// Replaces all values. Each item has the storage key and the revision of an object, and the input of
    /// `derive`. The value of an object with an unchanged revision is kept.
    fn replace<'a, I>(
        &mut self,
        items: impl Iterator<Item = (&'a Arc<str>, Revision, I)>,
        derive: impl Fn(I) -> Option<T>,
    ) {
        let mut before = std::mem::take(&mut self.by_key);
        for (key, revision, item) in items {
            let unchanged = before.remove(key).filter(|(known, _)| *known == revision);
            if let Some(value) = unchanged.map(|(_, value)| value).or_else(|| derive(item)) {
                self.by_key.insert(Arc::clone(key), (revision, value));
            }
        }
    }

    /// Returns the values, in no particular order.
    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.by_key.values().map(|(_, value)| value)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn only_changed_objects_are_derived_again() {
        let (a, b, c): (Arc<str>, Arc<str>, Arc<str>) = ("a".into(), "b".into(), "c".into());
        let derived = RefCell::new(Vec::new());
        let derive = |text: &str| {
            derived.borrow_mut().push(text.to_owned());
            (text != "damaged").then(|| text.to_owned())
        };
        let mut values = DerivedValues::new();
        values.replace([(&a, Revision(1), "a1"), (&b, Revision(2), "b2")].into_iter(), derive);
        let changed = [(&a, Revision(1), "a1"), (&b, Revision(3), "b3"), (&c, Revision(4), "damaged")];
        values.replace(changed.into_iter(), derive);
        assert_eq!(*derived.borrow(), ["a1", "b2", "b3", "damaged"]);
        let mut current: Vec<&String> = values.values().collect();
        current.sort();
        assert_eq!(current, ["a1", "b3"]);
        values.replace([(&b, Revision(3), "b3")].into_iter(), derive);
        assert_eq!(values.values().collect::<Vec<_>>(), ["b3"]);
        assert_eq!(derived.borrow().len(), 4);
    }
}
