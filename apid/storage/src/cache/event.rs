//! An event of the watch cache: one change, shared by all its watchers, with its encoded forms.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;

use super::{Decode, Item};
use crate::{Change, Revision, Row};

/// The kind of a change of a key.
///
/// The event type for a client also depends on its selectors: an item that leaves a selector is deleted for
/// that client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// The key was created.
    Added,
    /// The key was updated.
    Modified,
    /// The key was deleted.
    Deleted,
}

/// One encoding of an event. Callers define the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Form {
    /// The representation of the value, for example its kind and version.
    pub representation: usize,
    /// The kind of the change that the encoding names.
    pub kind: EventKind,
    /// The structure of the encoding.
    pub shape: u8,
    /// The media type.
    pub media_type: u8,
    /// The second in which the encoding is valid; 0 without a limit.
    pub second: u64,
}

/// One change of one key.
pub struct Event<D: Decode> {
    revision: Revision,
    old: Option<Arc<Item<D>>>,
    new: Option<Arc<Item<D>>>,
    forms: Mutex<Vec<(Form, EncodedForm)>>,
    /// Size in bytes of the cached encoded forms of all events of the cache: a counter that the events share.
    encoded_bytes: Arc<AtomicUsize>,
}

/// The state of one encoded form of an event.
enum EncodedForm {
    /// A caller encodes the form and holds the lock; other callers of this form wait for the lock.
    Pending(Arc<Mutex<Option<Bytes>>>),
    Ready(Bytes),
}

/// Maximum number of cached encoded forms of one event. Further forms are encoded for each request.
const MAX_CACHED_FORMS: usize = 8;

/// Bytes accounted for an event in addition to its values: the event, two items, and its entries in rings.
const EVENT_OVERHEAD: usize = 512;

impl<D: Decode> Event<D> {
    pub(super) fn new(
        revision: Revision,
        old: Option<Arc<Item<D>>>,
        new: Option<Arc<Item<D>>>,
        encoded_bytes: &Arc<AtomicUsize>,
    ) -> Arc<Self> {
        Arc::new(Event {
            revision,
            old,
            new,
            forms: Mutex::default(),
            encoded_bytes: Arc::clone(encoded_bytes),
        })
    }

    /// Builds an event from a change of the engine's history; `item` builds the items before and after.
    pub(super) fn from_change(
        change: Change,
        encoded_bytes: &Arc<AtomicUsize>,
        mut item: impl FnMut(Row) -> Arc<Item<D>>,
    ) -> Arc<Self> {
        let Change { key, old, new, revision } = change;
        let old = old.map(&mut item);
        let new = new.map(|value| item(Row { key, value, revision }));
        Event::new(revision, old, new, encoded_bytes)
    }

    /// The revision of the change. It is the resourceVersion of the event, also when the client receives the
    /// item before the change.
    ///
    /// The row of [`Event::after`] has this revision; the row of [`Event::before`] has an earlier one.
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// The item before the change; None when the key was created.
    pub fn before(&self) -> Option<&Arc<Item<D>>> {
        self.old.as_ref()
    }

    /// The item after the change; None when the key was deleted.
    pub fn after(&self) -> Option<&Arc<Item<D>>> {
        self.new.as_ref()
    }

    /// The kind of the change.
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

    /// The event in an encoded form; `make` encodes it. The caller defines the meaning of `form`: event type,
    /// version, media type.
    ///
    /// Single-flight: the first caller of a form encodes while other callers of this form wait. Callers of
    /// other forms never wait. The form is cached for the lifetime of the event. The number of cached forms
    /// is limited: each further form is encoded at each call.
    pub fn form<E>(&self, form: Form, make: impl FnOnce() -> Result<Bytes, E>) -> Result<Bytes, E> {
        let pending = {
            let mut forms = self.forms.lock();
            match forms.iter().find(|(known, _)| *known == form) {
                Some((_, EncodedForm::Ready(bytes))) => return Ok(bytes.clone()),
                Some((_, EncodedForm::Pending(pending))) => Some(Arc::clone(pending)),
                None if forms.len() >= MAX_CACHED_FORMS => None,
                None => {
                    let pending = Arc::default();
                    forms.push((form, EncodedForm::Pending(Arc::clone(&pending))));
                    Some(pending)
                }
            }
        };
        let Some(pending) = pending else { return make() };
        let mut cached = pending.lock();
        if let Some(bytes) = &*cached {
            return Ok(bytes.clone());
        }
        let bytes = make()?;
        *cached = Some(bytes.clone());
        self.encoded_bytes.fetch_add(bytes.len(), Ordering::Relaxed);
        if let Some((_, state)) = self.forms.lock().iter_mut().find(|(known, _)| *known == form) {
            *state = EncodedForm::Ready(bytes.clone());
        }
        Ok(bytes)
    }

    /// Whether a form is cached: [`Event::form`] then returns it without encoding.
    pub fn is_form_ready(&self, form: Form) -> bool {
        let forms = self.forms.lock();
        forms.iter().any(|(known, state)| *known == form && matches!(state, EncodedForm::Ready(_)))
    }

    /// Bytes accounted at creation: the event and both values. Forms are accounted when they are encoded.
    pub(super) fn weight(&self) -> usize {
        let bytes = |item: &Option<Arc<Item<D>>>| item.as_ref().map_or(0, |item| item.value().len());
        EVENT_OVERHEAD + bytes(&self.old) + bytes(&self.new)
    }
}

impl<D: Decode> Drop for Event<D> {
    fn drop(&mut self) {
        let ready = self.forms.get_mut().iter().map(|(_, state)| match state {
            EncodedForm::Ready(bytes) => bytes.len(),
            EncodedForm::Pending(_) => 0,
        });
        let bytes: usize = ready.sum();
        self.encoded_bytes.fetch_sub(bytes, Ordering::Relaxed);
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
