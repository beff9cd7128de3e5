//! The events before the load of a resource, from the engine's history: the newest ones within a limit of
//! bytes.
//!
//! # Invariants
//!
//! INVARIANT (bounded): memory is limited to the retained events, whose bytes are within the limit after each
//! [`PastEvents::add`]. An item outlives its event only as the `before` item of a later retained event.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::{Decode, Event, Item};
use crate::{Change, Revision};

/// The past events; see the module documentation.
pub(super) struct PastEvents<D: Decode> {
    events: VecDeque<Arc<Event<D>>>,
    /// The `after` item of the newest retained event of each key: it is the `before` item of the key's next
    /// event.
    newest: HashMap<Arc<str>, Arc<Item<D>>>,
    /// The revision after which no event is missing.
    floor: Revision,
    bytes: usize,
    limit: usize,
}

impl<D: Decode> PastEvents<D> {
    /// Creates an empty collection of the events after the revision `floor`, limited to `limit` bytes.
    pub(super) fn new(floor: Revision, limit: usize) -> Self {
        PastEvents { events: VecDeque::new(), newest: HashMap::new(), floor, bytes: 0, limit }
    }

    /// Adds the changes of one history range, in order. Evicts the oldest events while all events together
    /// exceed the limit in bytes.
    pub(super) fn add(&mut self, changes: Vec<Change>, decode: &Arc<D>, encoded_bytes: &Arc<AtomicUsize>) {
        for change in changes {
            let event = Event::from_change(change, encoded_bytes, |row| {
                let cached = self.newest.get(&row.key).filter(|cached| cached.revision() == row.revision);
                cached.map_or_else(|| Item::new(row, decode), Arc::clone)
            });
            match event.after() {
                Some(item) => drop(self.newest.insert(Arc::clone(item.key()), Arc::clone(item))),
                None => drop(self.newest.remove(event.key())),
            }
            self.bytes += event.weight();
            self.events.push_back(event);
        }
        while self.bytes > self.limit
            && let Some(oldest) = self.events.pop_front()
        {
            self.bytes -= oldest.weight();
            self.floor = oldest.revision();
            if self.newest.get(oldest.key()).is_some_and(|item| item.revision() == oldest.revision()) {
                self.newest.remove(oldest.key());
            }
        }
    }

    /// The retained events, in order, and the revision after which no event is missing.
    pub(super) fn into_events(self) -> (Vec<Arc<Event<D>>>, Revision) {
        (self.events.into(), self.floor)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::super::DecodeError;
    use super::*;
    use crate::Row;

    struct Text;

    impl Decode for Text {
        type Entry = Bytes;

        fn decode(&self, _: &str, value: &Bytes) -> Result<Bytes, DecodeError> {
            Ok(value.clone())
        }
    }

    /// The change of a key at a revision; `before` is the revision of its previous row.
    fn change(key: &str, revision: u64, before: Option<u64>, after: bool) -> Change {
        let key: Arc<str> = Arc::from(key);
        let value = |revision: u64| Bytes::from(vec![u8::try_from(revision % 251).unwrap(); 1000]);
        let old = before.map(|at| Row { key: Arc::clone(&key), value: value(at), revision: Revision(at) });
        Change { key, old, new: after.then(|| value(revision)), revision: Revision(revision) }
    }

    #[test]
    fn past_events_memory_is_limited_to_retained_events() {
        let (decode, encoded) = (Arc::new(Text), Arc::default());
        let mut past = PastEvents::new(Revision(0), 20_000);
        for key in 1..=1_000 {
            past.add(vec![change(&format!("/r/{key}"), key, None, true)], &decode, &encoded);
            assert!(past.bytes <= past.limit);
            assert_eq!(past.newest.len(), past.events.len(), "one item for each retained event");
        }
        let (events, floor) = past.into_events();
        assert_eq!(events.first().unwrap().revision().0, floor.0 + 1);
        assert_eq!(events.last().unwrap().revision(), Revision(1_000));
    }

    #[test]
    fn consecutive_past_events_of_a_key_share_an_item() {
        let (decode, encoded) = (Arc::new(Text), Arc::default());
        let mut past = PastEvents::new(Revision(0), 6_000);
        let changes = vec![
            change("/r/a", 1, None, true),
            change("/r/b", 2, None, true),
            change("/r/a", 3, Some(1), true),
            change("/r/a", 4, Some(3), false),
        ];
        past.add(changes, &decode, &encoded);
        assert!(!past.newest.contains_key("/r/a"), "a deleted key has no item");
        let (events, _) = past.into_events();
        let [.., modified, deleted] = events.as_slice() else { panic!("two events fit") };
        assert!(Arc::ptr_eq(modified.after().unwrap(), deleted.before().unwrap()));
        assert_eq!((modified.revision(), deleted.revision()), (Revision(3), Revision(4)));
    }

    #[test]
    fn past_item_outlives_evicted_event_until_next_event() {
        let (decode, encoded) = (Arc::new(Text), Arc::default());
        let mut past = PastEvents::new(Revision(0), 3_500);
        past.add(vec![change("/r/a", 1, None, true), change("/r/a", 2, Some(1), true)], &decode, &encoded);
        assert_eq!(
            (past.events.len(), past.newest["/r/a"].revision()),
            (1, Revision(2)),
            "the event of revision 1 is evicted"
        );
        past.add(vec![change("/r/a", 3, Some(2), true)], &decode, &encoded);
        assert_eq!((past.events.len(), past.newest["/r/a"].revision()), (1, Revision(3)));
    }
}
