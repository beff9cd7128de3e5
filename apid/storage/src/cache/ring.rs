//! Watch history rings: the newest events of a resource, one ring for the resource and one for each watched
//! scope.
//!
//! # Invariants
//!
//! INVARIANT (complete above the floor): a ring holds every event of its scope after its floor, in revision
//! order.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::Notify;

use super::relay::Waiters;
use super::{Decode, Event};
use crate::Revision;

/// Number of events to scan from the end before a binary search.
const LINEAR_SCAN_LIMIT: usize = 8;

/// The ring of one scope.
pub(super) struct Ring<D: Decode> {
    events: VecDeque<Arc<Event<D>>>,
    /// The ring holds every event of the scope after this revision.
    floor: Revision,
    watchers: usize,
    notify: Arc<Notify>,
}

impl<D: Decode> Ring<D> {
    pub(super) fn new(floor: Revision) -> Self {
        Ring { events: VecDeque::new(), floor, watchers: 0, notify: Arc::new(Notify::new()) }
    }

    pub(super) fn floor(&self) -> Revision {
        self.floor
    }

    /// The notifier for new events.
    pub(super) fn notify(&self) -> &Arc<Notify> {
        &self.notify
    }

    pub(super) fn last_revision(&self) -> Option<Revision> {
        self.events.back().map(|event| event.revision())
    }

    /// Events after a revision: as many as fit in `bytes`, and at least one if any exists. The events of one revision stay
    /// together. None when the revision is below the floor.
    pub(super) fn read_after(&self, revision: Revision, bytes: usize) -> Option<Vec<Arc<Event<D>>>> {
        if revision < self.floor {
            return None;
        }
        let begin = self.index_after(revision);
        let (mut total, mut newest) = (0, None);
        let events = self.events.range(begin..).take_while(|event| {
            total += event.weight();
            newest.replace(event.revision()).is_none_or(|last| total <= bytes || last == event.revision())
        });
        Some(events.map(Arc::clone).collect())
    }

    /// Index of the first event after a revision. Watchers that keep up read near the end.
    fn index_after(&self, revision: Revision) -> usize {
        let newer = self
            .events
            .iter()
            .rev()
            .take(LINEAR_SCAN_LIMIT)
            .take_while(|event| event.revision() > revision)
            .count();
        if newer < LINEAR_SCAN_LIMIT {
            self.events.len() - newer
        } else {
            self.events.partition_point(|event| event.revision() <= revision)
        }
    }

    /// All events after a revision; None for more than `limit` events or for a revision below the floor.
    pub(super) fn read_all_after(&self, revision: Revision, limit: usize) -> Option<Vec<Arc<Event<D>>>> {
        let begin = self.index_after(revision);
        let is_complete = revision >= self.floor && self.events.len() - begin <= limit;
        is_complete.then(|| self.events.range(begin..).map(Arc::clone).collect())
    }

    /// Extends the ring down to `floor`, which is not below the floor of `whole`, the ring of the resource.
    fn extend_back(&mut self, floor: Revision, scope: &str, whole: &Ring<D>) {
        if floor >= self.floor {
            return;
        }
        let begin = whole.events.partition_point(|event| event.revision() <= floor);
        let end = whole.events.partition_point(|event| event.revision() <= self.floor);
        for event in whole.events.range(begin..end).rev().filter(|event| in_scope(scope, event.key())) {
            self.events.push_front(Arc::clone(event));
        }
        self.floor = floor;
    }

    fn push(&mut self, event: &Arc<Event<D>>, to_wake: &mut Vec<Waiters>) {
        self.events.push_back(Arc::clone(event));
        if self.watchers > 0 {
            to_wake.push((Arc::clone(&self.notify), self.watchers));
        }
    }

    /// Evicts the oldest event if it is at or before a revision.
    fn evict(&mut self, revision: Revision) -> Option<Arc<Event<D>>> {
        let event = self.events.pop_front_if(|event| event.revision() <= revision)?;
        self.floor = event.revision();
        if self.events.is_empty() {
            self.events.shrink_to_fit();
        }
        Some(event)
    }
}

/// The rings of one resource.
pub(super) struct Rings<D: Decode> {
    prefix: Arc<str>,
    /// The ring of the whole resource.
    whole: Ring<D>,
    /// The rings of watched scopes.
    scoped: HashMap<Arc<str>, Ring<D>>,
}

impl<D: Decode> Rings<D> {
    pub(super) fn new(prefix: Arc<str>, floor: Revision) -> Self {
        Rings { prefix, whole: Ring::new(floor), scoped: HashMap::new() }
    }

    /// The ring of a scope; None for an unwatched scope.
    pub(super) fn ring_of(&self, scope: &str) -> Option<&Ring<D>> {
        if *scope == *self.prefix { Some(&self.whole) } else { self.scoped.get(scope) }
    }

    /// Adds a watcher to the ring of a scope. Extends that ring back to `after`, or as far as the ring of the
    /// whole resource reaches.
    pub(super) fn add_watcher(&mut self, scope: &Arc<str>, after: Revision) -> &Ring<D> {
        if *scope == self.prefix {
            self.whole.watchers += 1;
            return &self.whole;
        }
        let whole = &self.whole;
        let new_ring = || Ring::new(whole.last_revision().unwrap_or(whole.floor));
        let ring = self.scoped.entry(Arc::clone(scope)).or_insert_with(new_ring);
        ring.watchers += 1;
        ring.extend_back(after.max(whole.floor), scope, whole);
        ring
    }

    /// Prepends all events after `floor` up to `upto` to the ring of the whole resource. Returns false when
    /// the floor of that ring is not `upto`.
    pub(super) fn prepend(&mut self, events: &[Arc<Event<D>>], floor: Revision, upto: Revision) -> bool {
        if self.whole.floor != upto {
            return false;
        }
        events.iter().rev().for_each(|event| self.whole.events.push_front(Arc::clone(event)));
        self.whole.floor = floor;
        true
    }

    /// The floor of the ring of the whole resource.
    pub(super) fn floor(&self) -> Revision {
        self.whole.floor
    }

    /// The notifiers of all rings.
    pub(super) fn waiters(&self) -> impl Iterator<Item = &Arc<Notify>> {
        std::iter::once(&self.whole).chain(self.scoped.values()).map(|ring| &ring.notify)
    }

    /// All events after a revision; None when they are more than `limit`, or when the ring of the whole
    /// resource lacks some of them.
    pub(super) fn read_all_after(&self, revision: Revision, limit: usize) -> Option<Vec<Arc<Event<D>>>> {
        self.whole.read_all_after(revision, limit)
    }

    /// Removes a watcher from the ring of a scope.
    pub(super) fn remove_watcher(&mut self, scope: &str) {
        if *scope == *self.prefix {
            self.whole.watchers = self.whole.watchers.saturating_sub(1);
        } else if let Some(ring) = self.scoped.get_mut(scope) {
            ring.watchers = ring.watchers.saturating_sub(1);
            if ring.watchers == 0 {
                self.scoped.remove(scope);
            }
        }
    }

    /// The number of watchers that an event of a key wakes.
    pub(super) fn watchers_of(&self, key: &str) -> usize {
        let scoped = scopes(&self.prefix, key).filter_map(|scope| self.scoped.get(scope));
        self.whole.watchers + scoped.map(|ring| ring.watchers).sum::<usize>()
    }

    /// Adds the newest event, and collects the notifiers to wake.
    pub(super) fn push(&mut self, event: &Arc<Event<D>>, to_wake: &mut Vec<Waiters>) {
        self.whole.push(event, to_wake);
        if self.scoped.is_empty() {
            return;
        }
        for scope in scopes(&self.prefix, event.key()) {
            if let Some(ring) = self.scoped.get_mut(scope) {
                ring.push(event, to_wake);
            }
        }
    }

    /// Evicts the oldest event if it is at or before a revision.
    pub(super) fn evict(&mut self, revision: Revision) -> Option<Arc<Event<D>>> {
        let event = self.whole.evict(revision)?;
        for scope in scopes(&self.prefix, event.key()) {
            if let Some(ring) = self.scoped.get_mut(scope) {
                ring.evict(event.revision());
            }
        }
        Some(event)
    }
}

/// Whether a scope selects a key; the documentation of [`super`] defines scopes.
pub(super) fn in_scope(scope: &str, key: &str) -> bool {
    if scope.ends_with('/') { key.starts_with(scope) } else { key == scope }
}

/// The scopes that select a key, without the scope of the whole resource: the parents of the key, which end
/// with `/`, and the key itself.
fn scopes<'a>(prefix: &str, key: &'a str) -> impl Iterator<Item = &'a str> {
    let from = prefix.len();
    let below = key.match_indices('/').map(|(slash, _)| slash + 1).filter(move |end| *end > from);
    below.chain([key.len()]).filter_map(|end| key.get(..end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_of_key_are_parents_below_resource_and_key() {
        let scopes_of = |key| scopes("/r/", key).collect::<Vec<_>>();
        assert_eq!(scopes_of("/r/name"), ["/r/name"]);
        assert_eq!(scopes_of("/r/ns/name"), ["/r/ns/", "/r/ns/name"]);
        assert_eq!(scopes_of("/r/a/b/c"), ["/r/a/", "/r/a/b/", "/r/a/b/c"]);
        for scope in scopes_of("/r/a/b/c") {
            assert!(in_scope(scope, "/r/a/b/c"), "{scope}");
        }
        assert!(!in_scope("/r/na", "/r/name"), "a scope without a slash is one key");
    }
}
