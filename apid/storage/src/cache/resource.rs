//! One cached resource: its map, its rings, and how both are loaded while writes go on.
//!
//! # Invariants
//!
//! INVARIANT (exact load): rows are read at one revision, at or after all that was observed when the resource began to
//! collect changes; collected changes at or before it are dropped, later ones applied. So none is missed or applied twice.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::past::Past;
use super::pin::{Pin, Pins};
use super::relay::Waiters;
use super::ring::{Rings, in_scope};
use super::snapshot::Items;
use super::{Decode, Event, Item, ItemPage, Shared, Snapshot, WatchError, Watcher};
use crate::{Change, Error, Page, Result, Revision, Row, Stretch};

/// Rows read at a time while loading.
const LOAD_PAGE: usize = 10_000;

/// Events undone, at most, for a snapshot of an older revision: some 2 µs each.
const UNDONE: usize = 20_000;

/// The part of the ring's bytes that the past of one resource may take.
const PAST_PART: usize = 4;

/// The items below one key prefix.
pub struct Resource<D: Decode> {
    prefix: Arc<str>,
    decode: Arc<D>,
    shared: Arc<Shared<D>>,
    state: Mutex<State<D>>,
    /// Held by the one who loads.
    loading: tokio::sync::Mutex<()>,
}

/// How far a resource is.
enum State<D: Decode> {
    /// Nobody asked yet: changes pass by.
    Cold,
    /// Rows are being read; changes are collected.
    Loading(Vec<Change>),
    /// Changes are applied as they come.
    Loaded(Loaded<D>),
    /// Nobody serves it any more.
    Retired,
}

/// A resource that follows the store.
pub(super) struct Loaded<D: Decode> {
    items: Items<D>,
    /// The newest change applied, or the revision the rows were read at: what comes at or before it is in `items`.
    applied: Revision,
    pub(super) rings: Rings<D>,
    pins: Pins<D>,
    /// Whether the ring holds what it may of the time before the resource was loaded.
    reached_back: bool,
}

impl<D: Decode> Resource<D> {
    pub(super) fn new(prefix: Arc<str>, decode: D, shared: Arc<Shared<D>>) -> Self {
        Resource {
            prefix,
            decode: Arc::new(decode),
            shared,
            state: Mutex::new(State::Cold),
            loading: tokio::sync::Mutex::new(()),
        }
    }

    /// What all its keys begin with.
    pub fn prefix(&self) -> &Arc<str> {
        &self.prefix
    }

    /// The newest state of a key, and the revision at which it is that.
    pub async fn get(self: &Arc<Self>, key: &str) -> Result<(Option<Arc<Item<D>>>, Revision)> {
        self.loaded(|loaded, revision| (loaded.items.get(key).map(Arc::clone), revision)).await
    }

    /// The newest state of all keys.
    pub async fn snapshot(self: &Arc<Self>) -> Result<Snapshot<D>> {
        self.loaded(|loaded, revision| Snapshot::new(revision, loaded.items.clone())).await
    }

    /// The newest state of a key, without waiting; None while the resource is not loaded.
    pub fn get_now(&self, key: &str) -> Option<Option<Arc<Item<D>>>> {
        self.if_loaded(|loaded, _| loaded.items.get(key).map(Arc::clone))
    }

    /// The number of items, without waiting; None while the resource is not loaded.
    pub fn len_now(&self) -> Option<usize> {
        self.if_loaded(|loaded, _| loaded.items.len())
    }

    /// The newest state of all keys, without waiting; None while the resource is not loaded.
    pub fn snapshot_now(&self) -> Option<Snapshot<D>> {
        self.if_loaded(|loaded, revision| Snapshot::new(revision, loaded.items.clone()))
    }

    /// The state of all keys at a revision, from memory: the newest state with the events after the revision undone.
    /// None when memory does not tell: the revision has not been observed; it is older than [`Limits::snapshot_age`] or
    /// than the ring; or the events are too many to undo.
    ///
    /// [`Limits::snapshot_age`]: super::Limits::snapshot_age
    pub async fn snapshot_at(self: &Arc<Self>, at: Revision) -> Result<Option<Snapshot<D>>> {
        let oldest = self.shared.timeline.lock().floor(Instant::now());
        let found = self.loaded(|loaded, revision| {
            if at > revision {
                return None;
            }
            if loaded.applied <= at {
                return Some((loaded.items.clone(), Vec::new()));
            }
            let events = if at < oldest { None } else { loaded.rings.since(at, UNDONE) };
            events.map(|events| (loaded.items.clone(), events))
        });
        Ok(found.await?.map(|(mut items, events)| {
            for event in events.iter().rev() {
                match event.before() {
                    Some(item) => drop(items.insert(Arc::clone(item.key()), Arc::clone(item))),
                    None => drop(items.remove(event.key())),
                }
            }
            Snapshot::new(at, items)
        }))
    }

    /// How many keys of a scope there were at a revision, not before the key `start`, from memory: those there are, less
    /// those that came to be since, and those that ceased to be since. None when memory does not tell: the resource is not
    /// loaded, the revision has not been observed or is older than the ring, or too much happened since.
    pub fn count_at(&self, scope: &str, start: &str, at: Revision) -> Option<usize> {
        let (current, events) = self.if_loaded(|loaded, revision| {
            let events = if loaded.applied <= at { Some(Vec::new()) } else { loaded.rings.since(at, UNDONE) };
            let events = events.filter(|_| at <= revision)?;
            Some((Snapshot::new(revision, loaded.items.clone()), events))
        })??;
        let mut count = current.scope(scope, start).count();
        for event in events.iter().filter(|event| in_scope(scope, event.key()) && event.key() >= start) {
            match (event.before(), event.after()) {
                (None, Some(_)) => count = count.checked_sub(1)?,
                (Some(_), None) => count += 1,
                _ => {}
            }
        }
        Some(count)
    }

    /// Items of a scope, not before the key `start`, at most `limit` (0: all), at a revision that is now or past, read from
    /// the engine: the next chunk of a list, or a list at an exact revision. `Compacted` and `Future` when the revision is
    /// not to be had. Items that have not changed since are those of memory, which may be decoded already.
    pub async fn page_at(
        self: &Arc<Self>,
        scope: &str,
        start: &str,
        limit: usize,
        at: Revision,
    ) -> Result<ItemPage<D>> {
        if self.is_retired() {
            return Err(retired());
        }
        let store = self.shared.store()?;
        let (rows, more) = if scope.ends_with('/') {
            let Page { rows, more, .. } = store.range(scope, start, limit, Some(at)).await?;
            (rows, more)
        } else {
            let row = store.get(scope, Some(at)).await?.filter(|row| *row.key >= *start);
            (row.into_iter().collect(), false)
        };
        let current = self.snapshot_now();
        let items = rows.into_iter().map(|row| {
            let held = current.as_ref().and_then(|current| current.item(&row.key));
            match held.filter(|held| held.revision() == row.revision) {
                Some(held) => Arc::clone(held),
                None => Item::new(row, &self.decode),
            }
        });
        Ok(ItemPage { items: items.collect(), revision: at, more })
    }

    /// Changes of a scope after a revision: those that have happened, then those to come. A revision that has not
    /// happened yet is waited for in silence. `Compacted` when the history does not reach so far back.
    pub async fn watch(self: &Arc<Self>, scope: &str, after: Revision) -> Result<Watcher<D>, WatchError> {
        let scope: Arc<str> = Arc::from(scope);
        if self.loaded(|loaded, _| after < loaded.rings.floor() && !loaded.reached_back).await? {
            self.reach_back().await?;
        }
        let watcher = self
            .loaded(|loaded, _| Watcher::enter(Arc::clone(self), Arc::clone(&scope), after, loaded))
            .await?;
        watcher.begin()?;
        Ok(watcher)
    }

    /// The newest state of all keys, and the changes of a scope after it.
    pub async fn snapshot_and_watch(self: &Arc<Self>, scope: &str) -> Result<(Snapshot<D>, Watcher<D>)> {
        let scope: Arc<str> = Arc::from(scope);
        self.loaded(|loaded, revision| {
            let snapshot = Snapshot::new(revision, loaded.items.clone());
            (snapshot, Watcher::enter(Arc::clone(self), Arc::clone(&scope), revision, loaded))
        })
        .await
    }

    /// The same for a reader that may be slow.
    pub async fn pin_and_watch(self: &Arc<Self>, scope: &str) -> Result<(Pin<D>, Watcher<D>)> {
        let scope: Arc<str> = Arc::from(scope);
        self.loaded(|loaded, revision| {
            let pin = loaded.pins.pin(Snapshot::new(revision, loaded.items.clone()));
            (pin, Watcher::enter(Arc::clone(self), Arc::clone(&scope), revision, loaded))
        })
        .await
    }

    /// Waits until a revision has been observed. Cancel-safe; bounding the time is the caller's.
    pub async fn wait_for(&self, revision: Revision) {
        self.shared.wait_for(revision).await;
    }

    pub(super) fn shared(&self) -> &Arc<Shared<D>> {
        &self.shared
    }

    pub(super) fn decode(&self) -> &Arc<D> {
        &self.decode
    }

    /// Runs on the loaded state, with the revision it is of; None before it is loaded.
    pub(super) fn if_loaded<R>(&self, read: impl FnOnce(&mut Loaded<D>, Revision) -> R) -> Option<R> {
        match &mut *self.state.lock() {
            State::Loaded(loaded) => {
                // INVARIANT (exact revision): all observed changes of this resource are applied, for the observed
                // revision advances under this lock; `applied` is ahead of it only just after loading.
                let revision = self.shared.revision().max(loaded.applied);
                Some(read(loaded, revision))
            }
            State::Cold | State::Loading(_) | State::Retired => None,
        }
    }

    /// Whether nobody serves it any more.
    pub(super) fn is_retired(&self) -> bool {
        matches!(*self.state.lock(), State::Retired)
    }

    /// Ends it: reads fail from now on, and watchers end.
    pub(super) fn retire(&self) {
        let was = mem::replace(&mut *self.state.lock(), State::Retired);
        if let State::Loaded(loaded) = &was {
            loaded.rings.waiters().for_each(|waiters| waiters.notify_waiters());
        }
    }

    /// The same, after loading if need be.
    async fn loaded<R>(self: &Arc<Self>, read: impl Fn(&mut Loaded<D>, Revision) -> R) -> Result<R> {
        if let Some(answer) = self.if_loaded(&read) {
            return Ok(answer);
        }
        self.load().await?;
        self.if_loaded(&read).ok_or_else(|| Error::Unavailable("the resource is not loaded".to_owned()))
    }

    /// Applies a change, advances the observed revision, and answers the weight of the event if one is kept.
    pub(super) fn apply(&self, change: &Change, woken: &mut Vec<Waiters>) -> Option<usize> {
        let mut state = self.state.lock();
        let weight = match &mut *state {
            State::Cold | State::Retired => None,
            State::Loading(collected) => {
                collected.push(change.clone());
                None
            }
            State::Loaded(loaded) => loaded.apply(change, &self.decode, &self.shared.encoded, woken),
        };
        self.shared.advance(change.revision);
        weight
    }

    /// Drops events at or before a revision.
    pub(super) fn evict(&self, revision: Revision) {
        // Each event is freed after the lock is given back.
        while let Some(Some(_event)) = self.if_loaded(|loaded, _| loaded.rings.evict(revision)) {}
        drop(self.if_loaded(|loaded, _| loaded.pins.take_back(loaded.rings.floor())));
    }

    /// Extends the ring to the past before the resource was loaded, unless somebody else just did: as far as the engine's
    /// history goes and bytes allow.
    async fn reach_back(self: &Arc<Self>) -> Result<()> {
        let _loading = self.loading.lock().await;
        let begin = |loaded: &mut Loaded<D>, _| (!loaded.reached_back).then(|| loaded.rings.floor());
        let Some(upto) = self.if_loaded(begin).flatten() else { return Ok(()) };
        let store = self.shared.store()?;
        let upto = upto.min(store.revision());
        let limit = self.shared.limits.ring_bytes / PAST_PART;
        let mut position = store.compacted();
        let mut past = Past::new(position, limit);
        while position < upto {
            let Stretch { changes, through } = match store.history(&self.prefix, position, upto).await {
                Err(Error::Compacted { compacted, .. }) if compacted > position => {
                    position = compacted;
                    past = Past::new(position, limit);
                    continue;
                }
                stretch => stretch?,
            };
            past.add(changes, &self.decode, &self.shared.encoded);
            position = through;
        }
        let (events, floor) = past.into_events();
        let kept = self.if_loaded(|loaded, _| {
            loaded.reached_back = true;
            let kept = floor < upto && loaded.rings.prepend(&events, floor, upto);
            if kept {
                let weights = events.iter().rev();
                let weights = weights.map(|event| (Arc::downgrade(self), event.revision(), event.weight()));
                self.shared.account.lock().book_past(weights);
            }
            kept
        });
        if kept == Some(true) {
            self.shared.retain(Vec::new());
        }
        Ok(())
    }

    /// Reads all rows, unless somebody else just did.
    async fn load(self: &Arc<Self>) -> Result<()> {
        let _loading = self.loading.lock().await;
        let observed = {
            let mut state = self.state.lock();
            match *state {
                State::Loaded(_) => return Ok(()),
                State::Retired => return Err(retired()),
                State::Cold | State::Loading(_) => {}
            }
            *state = State::Loading(Vec::new());
            self.shared.revision()
        };
        // If this fails or is dropped half way, changes pass by again.
        let collecting = Collecting(self);
        let (items, revision) = self.read(observed).await?;
        mem::forget(collecting);

        let mut loaded = Loaded {
            items,
            applied: revision,
            rings: Rings::new(Arc::clone(&self.prefix), revision),
            pins: Pins::default(),
            reached_back: false,
        };
        let mut retained = Vec::new();
        let mut state = self.state.lock();
        let State::Loading(collected) = &mut *state else { return Err(retired()) };
        for change in &mem::take(collected) {
            if let Some(weight) = loaded.apply(change, &self.decode, &self.shared.encoded, &mut Vec::new()) {
                retained.push((Arc::downgrade(self), change.revision, weight));
            }
        }
        *state = State::Loaded(loaded);
        drop(state);
        self.shared.retain(retained);
        self.shared.progress.notify_waiters();
        Ok(())
    }

    /// All rows at one revision, which is at least `observed`.
    async fn read(&self, observed: Revision) -> Result<(Items<D>, Revision)> {
        let store = self.shared.store()?;
        let mut page = store.range(&self.prefix, "", LOAD_PAGE, None).await?;
        while page.revision < observed {
            // The engine lets itself be observed before it lets itself be read.
            tokio::task::yield_now().await;
            page = store.range(&self.prefix, "", LOAD_PAGE, None).await?;
        }
        let revision = page.revision;
        let mut items = Items::new();
        loop {
            let next = page.rows.last().filter(|_| page.more).map(|row| format!("{}\0", row.key));
            for row in page.rows {
                items.insert(Arc::clone(&row.key), Item::new(row, &self.decode));
            }
            match next {
                Some(start) => page = store.range(&self.prefix, &start, LOAD_PAGE, Some(revision)).await?,
                None => return Ok((items, revision)),
            }
        }
    }
}

impl<D: Decode> Loaded<D> {
    /// The change as an event, unless the rows already held it.
    fn apply(
        &mut self,
        change: &Change,
        decode: &Arc<D>,
        encoded: &Arc<AtomicUsize>,
        woken: &mut Vec<Waiters>,
    ) -> Option<usize> {
        if change.revision <= self.applied {
            return None;
        }
        let (old, new) = match &change.new {
            Some(value) => {
                let row =
                    Row { key: Arc::clone(&change.key), value: value.clone(), revision: change.revision };
                let new = Item::new(row, decode);
                (self.items.insert(Arc::clone(&change.key), Arc::clone(&new)), Some(new))
            }
            None => (self.items.remove(&*change.key), None),
        };
        self.applied = change.revision;
        let event = Event::new(change.revision, old, new, encoded);
        self.rings.push(&event, woken);
        Some(event.weight())
    }
}

/// Stops collecting changes when dropped.
struct Collecting<'a, D: Decode>(&'a Resource<D>);

impl<D: Decode> Drop for Collecting<'_, D> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if matches!(*state, State::Loading(_)) {
            *state = State::Cold;
        }
    }
}

/// The answer of a resource that is not served any more.
fn retired() -> Error {
    Error::Unavailable("the resource is not served any more".to_owned())
}

impl<D: Decode> fmt::Debug for Resource<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resource").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
