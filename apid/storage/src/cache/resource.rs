//! One cached resource: its map, its rings, and how both are loaded while writes go on.
//!
//! # Invariants
//!
//! INVARIANT (exact load): rows are read at one revision, at or after all that was observed when the resource began to
//! collect changes; collected changes at or before it are dropped, later ones applied. So none is missed or applied twice.

use std::fmt;
use std::mem;
use std::sync::Arc;

use parking_lot::Mutex;

use super::relay::Waiters;
use super::ring::Rings;
use super::snapshot::Items;
use super::{Decode, Event, Item, ItemPage, Shared, Snapshot, WatchError, Watcher};
use crate::{Change, Error, Page, Result, Revision, Row};

/// Rows read at a time while loading.
const LOAD_PAGE: usize = 10_000;

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
}

/// A resource that follows the store.
pub(super) struct Loaded<D: Decode> {
    items: Items<D>,
    /// The newest change applied, or the revision the rows were read at: what comes at or before it is in `items`.
    applied: Revision,
    pub(super) rings: Rings<D>,
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

    /// The newest state of all keys, without waiting; None while the resource is not loaded.
    pub fn snapshot_now(&self) -> Option<Snapshot<D>> {
        self.if_loaded(|loaded, revision| Snapshot::new(revision, loaded.items.clone()))
    }

    /// Items of a scope, not before the key `start`, at most `limit` (0: all), at a revision that is now or past: the next
    /// chunk of a list, or a list at an exact revision. Read from memory if the resource has not changed since, else
    /// from the engine; `Compacted` and `Future` when the revision is not to be had.
    pub async fn page_at(
        self: &Arc<Self>,
        scope: &str,
        start: &str,
        limit: usize,
        at: Revision,
    ) -> Result<ItemPage<D>> {
        let unchanged = self
            .loaded(|loaded, revision| {
                (loaded.applied <= at && at <= revision).then(|| Snapshot::new(at, loaded.items.clone()))
            })
            .await?;
        if let Some(snapshot) = unchanged {
            let mut rest = snapshot.scope(scope, start);
            let items: Vec<_> =
                rest.by_ref().take(if limit == 0 { usize::MAX } else { limit }).map(Arc::clone).collect();
            let remaining = rest.count();
            return Ok(ItemPage { items, revision: at, more: remaining > 0, remaining: Some(remaining) });
        }
        if !scope.ends_with('/') {
            let row = self.shared.store()?.get(scope, Some(at)).await?.filter(|row| *row.key >= *start);
            let items = row.into_iter().map(|row| Item::new(row, &self.decode)).collect();
            return Ok(ItemPage { items, revision: at, more: false, remaining: Some(0) });
        }
        let Page { rows, more, .. } = self.shared.store()?.range(scope, start, limit, Some(at)).await?;
        let items = rows.into_iter().map(|row| Item::new(row, &self.decode)).collect();
        Ok(ItemPage { items, revision: at, more, remaining: (!more).then_some(0) })
    }

    /// Changes of a scope after a revision: those that have happened, then those to come. A revision that has not
    /// happened yet is waited for in silence. `Compacted` when the history does not reach so far back.
    pub async fn watch(self: &Arc<Self>, scope: &str, after: Revision) -> Result<Watcher<D>, WatchError> {
        let scope: Arc<str> = Arc::from(scope);
        let mut watcher = self
            .loaded(|loaded, _| Watcher::enter(Arc::clone(self), Arc::clone(&scope), after, loaded))
            .await?;
        watcher.begin().await?;
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
            State::Cold | State::Loading(_) => None,
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
            State::Cold => None,
            State::Loading(collected) => {
                collected.push(change.clone());
                None
            }
            State::Loaded(loaded) => loaded.apply(change, &self.decode, woken),
        };
        self.shared.advance(change.revision);
        weight
    }

    /// Drops events at or before a revision.
    pub(super) fn evict(&self, revision: Revision) {
        // Each event is freed after the lock is given back.
        while let Some(Some(_event)) = self.if_loaded(|loaded, _| loaded.rings.evict(revision)) {}
    }

    /// Reads all rows, unless somebody else just did.
    async fn load(self: &Arc<Self>) -> Result<()> {
        let _loading = self.loading.lock().await;
        let observed = {
            let mut state = self.state.lock();
            if matches!(*state, State::Loaded(_)) {
                return Ok(());
            }
            *state = State::Loading(Vec::new());
            self.shared.revision()
        };
        // If this fails or is dropped half way, changes pass by again.
        let collecting = Collecting(self);
        let (items, revision) = self.read(observed).await?;
        mem::forget(collecting);

        let mut loaded =
            Loaded { items, applied: revision, rings: Rings::new(Arc::clone(&self.prefix), revision) };
        let mut retained = Vec::new();
        let mut state = self.state.lock();
        if let State::Loading(collected) = mem::replace(&mut *state, State::Cold) {
            for change in &collected {
                if let Some(weight) = loaded.apply(change, &self.decode, &mut Vec::new()) {
                    retained.push((Arc::downgrade(self), change.revision, weight));
                }
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
    fn apply(&mut self, change: &Change, decode: &Arc<D>, woken: &mut Vec<Waiters>) -> Option<usize> {
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
        let event = Event::new(change.revision, old, new);
        self.rings.push(&event, woken);
        Some(event.weight())
    }
}

/// Stops collecting changes when dropped.
struct Collecting<'a, D: Decode>(&'a Resource<D>);

impl<D: Decode> Drop for Collecting<'_, D> {
    fn drop(&mut self) {
        *self.0.state.lock() = State::Cold;
    }
}

impl<D: Decode> fmt::Debug for Resource<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resource").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}
