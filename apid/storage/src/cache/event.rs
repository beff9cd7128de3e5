//! A change, shared by all watchers of it, with what they encoded it to.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{Decode, Item};
use crate::{Change, Revision, Row};

/// What happened to the key. What a client is told also depends on its selectors: an item that leaves one is deleted for
/// that client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// The key came to be.
    Added,
    /// The key has another value.
    Modified,
    /// The key ceased to be.
    Deleted,
}

/// What tells the encodings of one event apart.
pub type Form = (usize, u64);

/// One change of one key.
pub struct Event<D: Decode> {
    revision: Revision,
    old: Option<Arc<Item<D>>>,
    new: Option<Arc<Item<D>>>,
    forms: Mutex<Vec<(Form, Bytes)>>,
    /// The bytes of all forms of all events.
    encoded: Arc<AtomicUsize>,
}

/// Encoded forms kept of one event: further ones are made for each who asks.
const FORMS: usize = 8;

/// Bytes an event is booked with beside its values: itself, two items, and its places in rings.
const OVERHEAD: usize = 512;

impl<D: Decode> Event<D> {
    pub(super) fn new(
        revision: Revision,
        old: Option<Arc<Item<D>>>,
        new: Option<Arc<Item<D>>>,
        encoded: &Arc<AtomicUsize>,
    ) -> Arc<Self> {
        Arc::new(Event { revision, old, new, forms: Mutex::default(), encoded: Arc::clone(encoded) })
    }

    /// From the engine's history. `item` makes the items.
    pub(super) fn from_change(
        change: Change,
        encoded: &Arc<AtomicUsize>,
        mut item: impl FnMut(Row) -> Arc<Item<D>>,
    ) -> Arc<Self> {
        let Change { key, old, new, revision } = change;
        let old = old.map(&mut item);
        let new = new.map(|value| item(Row { key, value, revision }));
        Event::new(revision, old, new, encoded)
    }

    /// The revision of the change, which clients are told with whichever item they see: `after` is of it, while
    /// `before` is of an earlier one.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The item before; None when the key came to be.
    pub fn before(&self) -> Option<&Arc<Item<D>>> {
        self.old.as_ref()
    }

    /// The item after; None when the key ceased to be.
    pub fn after(&self) -> Option<&Arc<Item<D>>> {
        self.new.as_ref()
    }

    /// What happened to the key.
    pub fn kind(&self) -> EventKind {
        match (&self.old, &self.new) {
            (None, _) => EventKind::Added,
            (Some(_), Some(_)) => EventKind::Modified,
            (Some(_), None) => EventKind::Deleted,
        }
    }

    /// The key.
    pub fn key(&self) -> &str {
        self.new.as_ref().or(self.old.as_ref()).map_or("", |item| item.key())
    }

    /// The event encoded to a form, whose meaning is the caller's (event type, version, media type): made by
    /// the first who asks, while others wait, and kept as long as the event.
    pub fn form<E>(&self, form: Form, make: impl FnOnce() -> Result<Bytes, E>) -> Result<Bytes, E> {
        let mut forms = self.forms.lock();
        if let Some((_, bytes)) = forms.iter().find(|(kept, _)| *kept == form) {
            return Ok(bytes.clone());
        }
        if forms.len() >= FORMS {
            drop(forms);
            return make();
        }
        let bytes = make()?;
        forms.push((form, bytes.clone()));
        self.encoded.fetch_add(bytes.len(), Ordering::Relaxed);
        Ok(bytes)
    }

    /// Bytes this event is booked with when it comes: itself and both values. Its forms are counted as they are made.
    pub(super) fn weight(&self) -> usize {
        let bytes = |item: &Option<Arc<Item<D>>>| item.as_ref().map_or(0, |item| item.value().len());
        OVERHEAD + bytes(&self.old) + bytes(&self.new)
    }
}

impl<D: Decode> Drop for Event<D> {
    fn drop(&mut self) {
        let bytes: usize = self.forms.get_mut().iter().map(|(_, bytes)| bytes.len()).sum();
        self.encoded.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl<D: Decode> fmt::Debug for Event<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("kind", &self.kind())
            .field("key", &self.key())
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}
