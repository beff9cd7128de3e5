//! A change, shared by all watchers of it, with what they encoded it to.

use std::fmt;
use std::sync::Arc;

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

/// One change of one key.
pub struct Event<D: Decode> {
    revision: Revision,
    old: Option<Arc<Item<D>>>,
    new: Option<Arc<Item<D>>>,
    forms: Mutex<Vec<(u32, Bytes)>>,
}

/// Encoded forms kept of one event: further ones are made for each who asks.
const FORMS: usize = 8;

/// Bytes an event is booked with beside its values: itself, two items, and its places in rings.
const OVERHEAD: usize = 512;

impl<D: Decode> Event<D> {
    pub(super) fn new(revision: Revision, old: Option<Arc<Item<D>>>, new: Option<Arc<Item<D>>>) -> Arc<Self> {
        Arc::new(Event { revision, old, new, forms: Mutex::default() })
    }

    /// From the engine's history.
    pub(super) fn from_change(change: Change, decode: &Arc<D>) -> Arc<Self> {
        let Change { key, old, new, revision } = change;
        let old = old.map(|row| Item::new(row, decode));
        let new = new.map(|value| Item::new(Row { key, value, revision }, decode));
        Event::new(revision, old, new)
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

    /// The event encoded to a form, a number whose meaning is the caller's (event type, version, media type): made by
    /// the first who asks, while others wait, and kept as long as the event.
    pub fn form<E>(&self, form: u32, make: impl FnOnce() -> Result<Bytes, E>) -> Result<Bytes, E> {
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
        Ok(bytes)
    }

    /// Bytes this event is booked with: both values, and one encoded form, which is about as large as the new value.
    pub(super) fn weight(&self) -> usize {
        let bytes = |item: &Option<Arc<Item<D>>>| item.as_ref().map_or(0, |item| item.value().len());
        let (old, new) = (bytes(&self.old), bytes(&self.new));
        OVERHEAD + old + new + old.max(new)
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
