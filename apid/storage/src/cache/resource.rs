//! One cached resource: its map, its rings, and the load of both while writes continue.
//!
//! # Invariants
//!
//! INVARIANT (exact load): rows are read at one revision. That revision is at or after every change observed
//! when the resource began to collect changes. Collected changes at or before that revision are dropped, and
//! later changes are applied. So no change is missed or applied twice.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::past_events::PastEvents;
use super::pin::Pins;
use super::relay::Waiters;
use super::ring::{Rings, in_scope};
use super::snapshot::Items;
use super::{CacheShared, Decode, Event, Item, ItemLease, ItemPage, Snapshot};
use crate::{Change, Error, Page, Result, Revision, RevisionRange, Row, Store, unreadable_reason};

/// Size in bytes at which one read of the history ends while the ring is extended to older events.
const HISTORY_PART_BYTES: usize = 1 << 20;

/// Number of rows in each read of a load.
const LOAD_PAGE: usize = 10_000;

/// Maximum number of events that are undone for a snapshot of an older revision, at about 2 µs each. With
/// more events, the snapshot is not available from memory.
const UNDO_LIMIT: usize = 20_000;

/// Divisor of [`Limits::ring_bytes`](super::Limits::ring_bytes). The quotient is the maximum size in bytes of
/// the events before the load of one resource.
const PAST_EVENTS_DIVISOR: usize = 4;

/// The items below one key prefix.
pub struct Resource<D: Decode> {
    prefix: Arc<str>,
    decode: Arc<D>,
    shared: Arc<CacheShared<D>>,
    state: Mutex<LoadState<D>>,
    /// The lock is held during a load and during an extension of the ring, so that each of them is
    /// single-flight.
    loading: tokio::sync::Mutex<()>,
    repairs: Repairs,
    counts: Counts,
}

/// The repairs of unreadable items ([`Resource::refresh_unreadable`]).
#[derive(Default)]
pub(super) struct Repairs {
    count: AtomicU64,
    /// Revision at the last repair.
    last: AtomicU64,
}

impl Repairs {
    /// Records a repair. The caller has the lock of the state.
    fn record(&self, revision: Revision) {
        self.last.store(revision.0, Ordering::SeqCst);
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// The number of repairs. A watcher that was registered before the last one ends.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// The revision of the last repair. A watch from an earlier one may miss an object.
    pub(super) fn last(&self) -> Revision {
        Revision(self.last.load(Ordering::SeqCst))
    }
}

/// Counters of a resource, for metrics.
#[derive(Default)]
struct Counts {
    loads: AtomicU64,
    received: AtomicU64,
    dispatched: AtomicU64,
}

/// Statistics of a loaded resource, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceStats {
    /// The number of items.
    pub objects: usize,
    /// The newest revision that a read returns.
    pub revision: Revision,
    /// The number of loads from the store.
    pub loads: u64,
    /// The number of observed changes.
    pub received: u64,
    /// The number of changes observed while the resource was loaded: they become events for watchers.
    pub dispatched: u64,
}

/// The load state of a resource.
enum LoadState<D: Decode> {
    /// Not read yet; changes are ignored.
    Cold,
    /// Rows are being read; changes are collected.
    Loading(Vec<Change>),
    /// Changes are applied immediately.
    Loaded(Loaded<D>),
    /// Unregistered. Open watchers read the events that were observed before, if the resource was loaded.
    Retired(Option<Rings<D>>),
}

/// The state of a loaded resource, which follows the store.
pub(super) struct Loaded<D: Decode> {
    items: Items<D>,
    /// The revision of the load: the rows include all changes at or before it.
    loaded_at: Revision,
    /// The newest applied change, or the revision of the load: `items` includes all changes at or before it.
    applied: Revision,
    pub(super) rings: Rings<D>,
    pub(super) pins: Pins<D>,
    /// Whether the extension of the ring to changes before the load was attempted; it happens once.
    pub(super) is_extended_back: bool,
}

impl<D: Decode> Resource<D> {
    pub(super) fn new(prefix: Arc<str>, decode: D, shared: Arc<CacheShared<D>>) -> Self {
        Resource {
            prefix,
            decode: Arc::new(decode),
            shared,
            state: Mutex::new(LoadState::Cold),
            loading: tokio::sync::Mutex::new(()),
            repairs: Repairs::default(),
            counts: Counts::default(),
        }
    }

    /// The common prefix of all keys.
    pub fn prefix(&self) -> &Arc<str> {
        &self.prefix
    }

    /// The store of the items.
    ///
    /// # Errors
    ///
    /// `Unavailable`: no store is attached to the cache, or the store was dropped.
    pub fn store(&self) -> Result<Arc<dyn Store>> {
        self.shared.store()
    }

    /// The newest observed revision of the store of the items; see [`Cache::revision`](super::Cache::revision).
    pub fn revision(&self) -> Revision {
        self.shared.revision()
    }

    /// The newest item of a key, if any, and the revision of this read.
    ///
    /// After the resource was unregistered, the item comes from the store. So a write that began before can end.
    pub async fn get(self: &Arc<Self>, key: &str) -> Result<(Option<Arc<Item<D>>>, Revision)> {
        let read = |loaded: &mut Loaded<D>, revision| (loaded.items.get(key).map(Arc::clone), revision);
        match self.with_loaded(read).await {
            Err(_) if self.is_retired() => self.get_from_store(key).await,
            result => result,
        }
    }

    /// Reads the newest item of a key from the store.
    async fn get_from_store(&self, key: &str) -> Result<(Option<Arc<Item<D>>>, Revision)> {
        let Page { rows, revision, .. } = self.first_page(key, 1, self.shared.revision()).await?;
        let row = rows.into_iter().next().filter(|row| *row.key == *key);
        Ok((row.map(|row| Item::new(row, &self.decode)), revision))
    }

    /// The newest state of all keys.
    pub async fn snapshot(self: &Arc<Self>) -> Result<Snapshot<D>> {
        self.with_loaded(|loaded, revision| loaded.snapshot(revision)).await
    }

    /// The newest state of a key, without waiting; None while the resource is not loaded.
    pub fn get_now(&self, key: &str) -> Option<Option<Arc<Item<D>>>> {
        self.if_loaded(|loaded, _| loaded.items.get(key).map(Arc::clone))
    }

    /// The statistics of the resource, without waiting; None while the resource is not loaded.
    pub fn stats(&self) -> Option<ResourceStats> {
        let (objects, revision) = self.if_loaded(|loaded, revision| (loaded.items.len(), revision))?;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counts { loads, received, dispatched } = &self.counts;
        let (loads, received, dispatched) = (count(loads), count(received), count(dispatched));
        Some(ResourceStats { objects, revision, loads, received, dispatched })
    }

    /// The number of watchers that an event of a key wakes, without waiting; 0 while the resource is not loaded.
    pub fn watchers_of(&self, key: &str) -> usize {
        self.if_loaded(|loaded, _| loaded.rings.watchers_of(key)).unwrap_or_default()
    }

    /// The revision of the newest change of any key, or of the load, without waiting; None while the resource
    /// is not loaded.
    pub fn last_change_now(&self) -> Option<Revision> {
        self.if_loaded(|loaded, _| loaded.applied)
    }

    /// The newest state of all keys, without waiting; None while the resource is not loaded.
    pub fn snapshot_now(&self) -> Option<Snapshot<D>> {
        self.if_loaded(|loaded, revision| loaded.snapshot(revision))
    }

    /// The state of all keys at a revision, from memory: the newest state with the later events undone.
    ///
    /// None when the revision is not observed yet. If the resource has changed after the revision, also None
    /// when the revision is older than [`Limits::snapshot_age`], when it is below the floor of the ring, or
    /// when more than `UNDO_LIMIT` events followed.
    ///
    /// # Errors
    ///
    /// `Compacted` for a compacted revision older than [`Limits::snapshot_age`], also when the resource has
    /// not changed since.
    ///
    /// [`Limits::snapshot_age`]: super::Limits::snapshot_age
    pub async fn snapshot_at(self: &Arc<Self>, at: Revision) -> Result<Option<Snapshot<D>>> {
        let oldest = self.shared.timeline.lock().floor(Instant::now());
        let compacted = self.shared.store()?.compacted();
        if at < compacted.min(oldest) {
            return Err(Error::Compacted { requested: at, compacted });
        }
        let found = self.with_loaded(|loaded, revision| {
            if at > revision {
                return None;
            }
            if loaded.applied <= at {
                return Some((loaded.items.clone(), Vec::new()));
            }
            let events = if at < oldest { None } else { loaded.rings.read_all_after(at, UNDO_LIMIT) };
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

    /// Counts the keys of a scope from the key `start` at a revision, from memory.
    ///
    /// The result is the current count, corrected by the creates and deletes after the revision. None when
    /// the resource is not loaded, when the revision is not observed yet or older than the ring, or when too
    /// many events followed.
    pub fn count_at(&self, scope: &str, start: &str, at: Revision) -> Option<usize> {
        let (current, events) = self.if_loaded(|loaded, revision| {
            let events = if loaded.applied <= at {
                Some(Vec::new())
            } else {
                loaded.rings.read_all_after(at, UNDO_LIMIT)
            };
            let events = events.filter(|_| at <= revision)?;
            Some((loaded.snapshot(revision), events))
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

    /// Reads items of a scope from the engine at a past revision: for the next page of a list, or for a list
    /// at an exact revision.
    ///
    /// The page begins at the key `start` and has at most `limit` items (0: all). It has at most `bytes` bytes of
    /// keys and values, or one larger item. Unchanged items come from memory, and may be decoded already. Only the
    /// page holds the other items.
    ///
    /// # Errors
    ///
    /// `Compacted` or `Future` when the revision is not readable.
    pub async fn page_at(
        self: &Arc<Self>,
        scope: &str,
        start: &str,
        limit: usize,
        bytes: usize,
        at: Revision,
    ) -> Result<ItemPage<D>> {
        if self.is_retired() {
            return Err(retired_error());
        }
        let store = self.shared.store()?;
        let (rows, more) = if scope.ends_with('/') {
            let Page { rows, more, .. } = store.rows_within(scope, start, limit, bytes, at).await?;
            (rows, more)
        } else {
            let row = store.get(scope, Some(at)).await?.filter(|row| *row.key >= *start);
            (row.into_iter().collect(), false)
        };
        let current = self.snapshot_now();
        let items = rows.into_iter().map(|row| {
            let cached = current.as_ref().and_then(|current| current.item(&row.key));
            match cached.filter(|cached| cached.revision() == row.revision) {
                Some(cached) => Arc::clone(cached),
                None => Item::new(row, &self.decode),
            }
        });
        Ok(ItemPage { items: items.collect(), revision: at, more })
    }

    /// Registers a reader that may hold items of a scope for a long time. The items were read at or after a revision.
    pub fn lease(&self, scope: &str, revision: Revision) -> ItemLease {
        self.shared.superseded_items.lock().lease(scope, revision)
    }

    /// Waits until a revision is observed. Cancel-safe; the caller limits the time.
    pub async fn wait_for(&self, revision: Revision) {
        self.shared.wait_for(revision).await;
    }

    pub(super) fn shared(&self) -> &Arc<CacheShared<D>> {
        &self.shared
    }

    pub(super) fn decode(&self) -> &Arc<D> {
        &self.decode
    }

    /// Runs `read` on the loaded state with its revision; None while the resource is not loaded.
    pub(super) fn if_loaded<R>(&self, read: impl FnOnce(&mut Loaded<D>, Revision) -> R) -> Option<R> {
        match &mut *self.state.lock() {
            LoadState::Loaded(loaded) => {
                // INVARIANT (exact revision): all observed changes of this resource are applied, because the
                // observed revision advances under this lock. `applied` is newer only just after a load.
                let revision = self.shared.revision().max(loaded.applied);
                Some(read(loaded, revision))
            }
            LoadState::Cold | LoadState::Loading(_) | LoadState::Retired(_) => None,
        }
    }

    /// Runs `read` on the rings, also after the resource was unregistered. Returns the result, and whether
    /// the resource is unregistered; None if there are no rings.
    pub(super) fn with_rings<R>(&self, read: impl FnOnce(&mut Rings<D>) -> R) -> Option<(R, bool)> {
        match &mut *self.state.lock() {
            LoadState::Loaded(loaded) => Some((read(&mut loaded.rings), false)),
            LoadState::Retired(Some(rings)) => Some((read(rings), true)),
            LoadState::Cold | LoadState::Loading(_) | LoadState::Retired(None) => None,
        }
    }

    pub(super) fn repairs(&self) -> &Repairs {
        &self.repairs
    }

    /// Whether the resource is unregistered.
    pub fn is_retired(&self) -> bool {
        matches!(*self.state.lock(), LoadState::Retired(_))
    }

    /// Retires the resource: later reads fail except those of single keys, pins are revoked, and watchers end after
    /// the events that were observed.
    /// The items are superseded, so the limit of their memory applies to readers that keep them.
    pub(super) fn retire(&self) {
        let Some((items, mut pins, applied)) = self.retire_state() else { return };
        let last_read = self.shared.revision().max(applied);
        let next_revision = Revision(last_read.0 + 1);
        drop(pins.revoke_below(next_revision));
        for item in items.values() {
            self.shared.count_superseded_item(item, next_revision);
        }
    }

    /// Changes the state to [`LoadState::Retired`]. Returns the items, the pins and the newest applied change if the
    /// resource was loaded.
    fn retire_state(&self) -> Option<(Items<D>, Pins<D>, Revision)> {
        let mut state = self.state.lock();
        match mem::replace(&mut *state, LoadState::Retired(None)) {
            LoadState::Loaded(Loaded { items, rings, pins, applied, .. }) => {
                rings.waiters().for_each(|waiters| waiters.notify_waiters());
                *state = LoadState::Retired(Some(rings));
                Some((items, pins, applied))
            }
            LoadState::Retired(rings) => {
                *state = LoadState::Retired(rings);
                None
            }
            LoadState::Cold | LoadState::Loading(_) => None,
        }
    }

    /// Runs `read` on the loaded state, after a load if necessary.
    pub(super) async fn with_loaded<R>(
        self: &Arc<Self>,
        read: impl Fn(&mut Loaded<D>, Revision) -> R,
    ) -> Result<R> {
        if let Some(answer) = self.if_loaded(&read) {
            return Ok(answer);
        }
        self.load().await?;
        self.if_loaded(&read).ok_or_else(|| Error::Unavailable("the resource is not loaded".to_owned()))
    }

    /// Applies the changes at one revision, and advances the observed revision if these are its last changes. Reports the
    /// weight of each new event.
    pub(super) fn apply(
        &self,
        changes: &[Change],
        is_last: bool,
        to_wake: &mut Vec<Waiters>,
        mut add_event: impl FnMut(usize),
    ) {
        let mut state = self.state.lock();
        for change in changes {
            match &mut *state {
                LoadState::Cold | LoadState::Retired(_) => {}
                LoadState::Loading(collected) => collected.push(change.clone()),
                LoadState::Loaded(loaded) => {
                    self.counts.dispatched.fetch_add(1, Ordering::Relaxed);
                    let weight = loaded.apply(change, &self.decode, &self.shared.encoded_bytes, to_wake);
                    weight.into_iter().for_each(&mut add_event);
                }
            }
            self.counts.received.fetch_add(1, Ordering::Relaxed);
        }
        // The state stays locked: a reader of the resource sees either no change at this revision or all of them.
        if is_last && let Some(change) = changes.last() {
            self.shared.advance(change.revision);
        }
    }

    /// Evicts events at or before a revision.
    pub(super) fn evict(&self, revision: Revision) {
        // Each event is freed outside the lock.
        while let Some((Some(event), _)) = self.with_rings(|rings| rings.evict(revision)) {
            let (old_item, superseded_at) = (event.before().map(Arc::clone), event.revision());
            drop(event);
            if let Some(item) = old_item.filter(|item| Arc::strong_count(item) > 1) {
                self.shared.count_superseded_item(&item, superseded_at);
            }
        }
        drop(self.if_loaded(|loaded, _| loaded.pins.revoke_below(loaded.rings.floor())));
    }

    /// Extends the ring with changes before the load, once.
    ///
    /// The extension ends at the compacted revision, or where the events exceed `ring_bytes` divided by
    /// [`PAST_EVENTS_DIVISOR`].
    pub(super) async fn extend_back(self: &Arc<Self>) -> Result<()> {
        let _loading = self.loading.lock().await;
        let floor_before_extension =
            |loaded: &mut Loaded<D>, _| (!loaded.is_extended_back).then(|| loaded.rings.floor());
        let Some(upto) = self.if_loaded(floor_before_extension).flatten() else { return Ok(()) };
        let store = self.shared.store()?;
        let upto = upto.min(store.revision());
        let limit = self.shared.limits.ring_bytes / PAST_EVENTS_DIVISOR;
        let mut position = store.compacted();
        let mut past = PastEvents::new(position, limit);
        while position < upto {
            let range = store.history(&self.prefix, position, upto, HISTORY_PART_BYTES).await;
            let RevisionRange { changes, through } = match range {
                Err(Error::Compacted { compacted, .. }) if compacted > position => {
                    position = compacted;
                    past = PastEvents::new(position, limit);
                    continue;
                }
                range => range?,
            };
            past.add(changes, &self.decode, &self.shared.encoded_bytes);
            position = through;
        }
        let (events, floor) = past.into_events();
        let is_extended = self.if_loaded(|loaded, _| {
            loaded.is_extended_back = true;
            let is_extended = floor < upto && loaded.rings.prepend(&events, floor, upto);
            if is_extended {
                let weights = events.iter().rev();
                let weights = weights.map(|event| (Arc::downgrade(self), event.revision(), event.weight()));
                self.shared.account.lock().account_past(weights);
            }
            is_extended
        });
        if is_extended == Some(true) {
            self.shared.account_and_evict(Vec::new());
        }
        Ok(())
    }

    /// Reads the items that could not be decrypted again, and replaces those that can be decrypted now. Returns the number
    /// of replaced items. A failed read does not stop the reads of the other items.
    ///
    /// Revisions stay, so no event reports a replaced item. All watchers end as if their position were compacted: a reader
    /// that left the item out lists again.
    ///
    /// # Errors
    ///
    /// The store cannot read an item: the last failure.
    pub(super) async fn refresh_unreadable(self: &Arc<Self>) -> Result<usize> {
        let is_unreadable = |item: &&Arc<Item<D>>| unreadable_reason(item.value()).is_some();
        let find = |loaded: &mut Loaded<D>, _| {
            loaded.items.values().filter(is_unreadable).map(Arc::clone).collect::<Vec<_>>()
        };
        let (mut count, mut failure) = (0, None);
        for item in self.if_loaded(find).unwrap_or_default() {
            let row = match self.shared.store()?.get(item.key(), None).await {
                Ok(Some(row)) => row,
                Ok(None) => continue,
                Err(error) => {
                    failure = Some(error);
                    continue;
                }
            };
            if row.revision != item.revision() || unreadable_reason(&row.value).is_some() {
                continue;
            }
            let replace = |loaded: &mut Loaded<D>, _| {
                let is_current =
                    loaded.items.get(item.key()).is_some_and(|current| Arc::ptr_eq(current, &item));
                if is_current {
                    loaded.items.insert(Arc::clone(item.key()), Item::new(row, &self.decode));
                }
                is_current
            };
            count += usize::from(self.if_loaded(replace) == Some(true));
        }
        if count > 0 {
            self.if_loaded(|loaded, revision| {
                self.repairs.record(revision);
                loaded.rings.waiters().for_each(|waiters| waiters.notify_waiters());
            });
        }
        failure.map_or(Ok(count), Err)
    }

    /// Loads all rows, unless a concurrent call has loaded them.
    async fn load(self: &Arc<Self>) -> Result<()> {
        let _loading = self.loading.lock().await;
        let observed = {
            let mut state = self.state.lock();
            match *state {
                LoadState::Loaded(_) => return Ok(()),
                LoadState::Retired(_) => return Err(retired_error()),
                LoadState::Cold | LoadState::Loading(_) => {}
            }
            *state = LoadState::Loading(Vec::new());
            self.shared.revision()
        };
        // On failure or cancellation the state returns to cold.
        let collect_guard = CollectGuard(self);
        let (items, revision) = self.read(observed).await?;
        mem::forget(collect_guard);

        let mut loaded = Loaded {
            items,
            loaded_at: revision,
            applied: revision,
            rings: Rings::new(Arc::clone(&self.prefix), revision),
            pins: Pins::default(),
            is_extended_back: false,
        };
        let mut events = Vec::new();
        let mut state = self.state.lock();
        let LoadState::Loading(collected) = &mut *state else { return Err(retired_error()) };
        for change in &mem::take(collected) {
            if let Some(weight) =
                loaded.apply(change, &self.decode, &self.shared.encoded_bytes, &mut Vec::new())
            {
                events.push((Arc::downgrade(self), change.revision, weight));
            }
        }
        *state = LoadState::Loaded(loaded);
        self.counts.loads.fetch_add(1, Ordering::Relaxed);
        drop(state);
        self.shared.account_and_evict(events);
        self.shared.progress.notify_waiters();
        Ok(())
    }

    /// Reads at most `limit` rows from the key `start`, at a revision that is at least `observed`.
    async fn first_page(&self, start: &str, limit: usize, observed: Revision) -> Result<Page> {
        let store = self.shared.store()?;
        loop {
            let page = store.range(&self.prefix, start, limit, None).await?;
            if page.revision >= observed {
                return Ok(page);
            }
            // The engine publishes a revision after the observer has returned.
            tokio::task::yield_now().await;
        }
    }

    /// Reads all rows at one revision, which is at least `observed`.
    async fn read(&self, observed: Revision) -> Result<(Items<D>, Revision)> {
        let store = self.shared.store()?;
        let mut page = self.first_page("", LOAD_PAGE, observed).await?;
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
    /// The items at a revision: the newest applied change, or a later revision without a change of the items.
    pub(super) fn snapshot(&self, revision: Revision) -> Snapshot<D> {
        Snapshot::new(revision, self.items.clone())
    }

    /// Applies a change and adds its event, unless the loaded rows include the change.
    fn apply(
        &mut self,
        change: &Change,
        decode: &Arc<D>,
        encoded_bytes: &Arc<AtomicUsize>,
        to_wake: &mut Vec<Waiters>,
    ) -> Option<usize> {
        if change.revision <= self.loaded_at {
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
        let event = Event::new(change.revision, old, new, encoded_bytes);
        self.rings.push(&event, to_wake);
        Some(event.weight())
    }
}

/// Returns a loading resource to the cold state when dropped, so that changes are no longer collected.
struct CollectGuard<'a, D: Decode>(&'a Resource<D>);

impl<D: Decode> Drop for CollectGuard<'_, D> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if matches!(*state, LoadState::Loading(_)) {
            *state = LoadState::Cold;
        }
    }
}

/// The error of a read of an unregistered resource.
fn retired_error() -> Error {
    Error::Unavailable("the resource is no longer served".to_owned())
}

impl<D: Decode> fmt::Debug for Resource<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resource").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
