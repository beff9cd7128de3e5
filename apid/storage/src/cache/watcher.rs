//! A watcher: a position in the history of a scope.
//!
//! A watcher whose position is below the ring reads the engine's history, one range at a time, until it
//! reaches the ring. From then on it reads only the ring. The first such watcher extends the ring to older
//! events. So a watcher reads the history only when the ring has no space for the events after its position.

use std::fmt;
use std::sync::Arc;

use tokio::sync::Notify;

use super::resource::Loaded;
use super::ring::in_scope;
use super::{Decode, Event, Item, Pin, Resource, Snapshot};
use crate::{Error, Result, Revision, RevisionRange};

/// The reason why a watcher ended.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WatchError {
    /// The reader was too slow: unread events left the ring. A new watch from `position` continues if the
    /// history still reaches back to it.
    #[error("the watcher fell too far behind at revision {position}")]
    Lagged {
        /// All events at or before this revision were delivered.
        position: Revision,
    },
    /// The resource was unregistered, and all events that it observed were delivered.
    #[error("the resource is no longer served")]
    Retired,
    /// The store failed; `Compacted` when its history does not reach back to the position, or when items became readable
    /// that the watcher may have delivered as unreadable.
    #[error(transparent)]
    Store(#[from] Error),
}

/// A watcher of the events of a scope, in order. An idle watcher takes some hundred bytes.
pub struct Watcher<D: Decode> {
    resource: Arc<Resource<D>>,
    scope: Arc<str>,
    /// All events of the scope at or before this revision were delivered.
    position: Revision,
    notify: Arc<Notify>,
    /// The number of repairs of the resource at the registration.
    repairs: u64,
    /// Whether the position has been below the ring since registration; the watcher then reads the engine's
    /// history.
    is_behind: bool,
}

impl<D: Decode> Resource<D> {
    /// Watches a scope after a revision: the watcher delivers past changes first, and then new changes.
    ///
    /// A watch after a future revision delivers nothing until the store passes that revision.
    ///
    /// # Errors
    ///
    /// `Compacted` when the history does not reach back to the revision.
    pub async fn watch(self: &Arc<Self>, scope: &str, after: Revision) -> Result<Watcher<D>, WatchError> {
        let scope: Arc<str> = Arc::from(scope);
        if self.with_loaded(|loaded, _| after < loaded.rings.floor() && !loaded.is_extended_back).await? {
            self.extend_back().await?;
        }
        let watcher = self
            .with_loaded(|loaded, _| Watcher::register(Arc::clone(self), Arc::clone(&scope), after, loaded))
            .await?;
        watcher.check_start()?;
        Ok(watcher)
    }

    /// The newest state of all keys, and the changes of a scope after it.
    pub async fn snapshot_and_watch(self: &Arc<Self>, scope: &str) -> Result<(Snapshot<D>, Watcher<D>)> {
        self.start_watch(scope, |_, snapshot| snapshot).await
    }

    /// As [`Resource::snapshot_and_watch`], with a revocable snapshot for a reader that may be slow.
    pub async fn pin_and_watch(self: &Arc<Self>, scope: &str) -> Result<(Pin<D>, Watcher<D>)> {
        self.start_watch(scope, |loaded, snapshot| loaded.pins.pin(snapshot)).await
    }

    /// Converts the newest state of all keys, and registers a watcher of the changes of a scope after it.
    async fn start_watch<S>(
        self: &Arc<Self>,
        scope: &str,
        convert: impl Fn(&mut Loaded<D>, Snapshot<D>) -> S,
    ) -> Result<(S, Watcher<D>)> {
        let scope: Arc<str> = Arc::from(scope);
        self.with_loaded(|loaded, revision| {
            let snapshot = loaded.snapshot(revision);
            let state = convert(loaded, snapshot);
            (state, Watcher::register(Arc::clone(self), Arc::clone(&scope), revision, loaded))
        })
        .await
    }
}

impl<D: Decode> Watcher<D> {
    fn register(
        resource: Arc<Resource<D>>,
        scope: Arc<str>,
        position: Revision,
        loaded: &mut Loaded<D>,
    ) -> Self {
        let ring = loaded.rings.add_watcher(&scope, position);
        let (notify, is_behind) = (Arc::clone(ring.notify()), position < ring.floor());
        let repairs = resource.repairs().count();
        Watcher { resource, scope, position, notify, repairs, is_behind }
    }

    /// Checks that the store's history reaches back to the position, and that no item became readable after it.
    ///
    /// Compacted events are not delivered even if the ring still contains them: whether a watch can start
    /// depends only on the store.
    fn check_start(&self) -> Result<(), WatchError> {
        let compacted = self.resource.shared().store()?.compacted();
        let oldest = compacted.max(self.resource.repairs().last());
        if self.position < oldest {
            return Err(Error::Compacted { requested: self.position, compacted: oldest }.into());
        }
        Ok(())
    }

    /// Checks that no item became readable since the registration.
    fn check_repairs(&self) -> Result<(), WatchError> {
        let repairs = self.resource.repairs();
        if repairs.count() == self.repairs {
            return Ok(());
        }
        Err(Error::Compacted { requested: self.position, compacted: repairs.last() }.into())
    }

    /// Whether the next events come from the engine's history. Only this watcher holds such events; watchers share the
    /// events of the ring.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Waits for the next events, and returns at least one event. Cancel-safe. An error ends the watcher.
    pub async fn next(&mut self) -> Result<Vec<Arc<Event<D>>>, WatchError> {
        loop {
            let events = self.advance().await?;
            if !events.is_empty() {
                return Ok(events);
            }
        }
    }

    /// Returns the next events, or none after one step towards them: a wait for an event, or a read of a part of the
    /// history. So the caller can wait without events in memory. Cancel-safe. An error ends the watcher.
    pub async fn advance(&mut self) -> Result<Vec<Arc<Event<D>>>, WatchError> {
        if self.is_behind {
            self.check_repairs()?;
            let Some(floor) = self.floor()?.filter(|floor| *floor > self.position) else {
                self.is_behind = false;
                return Ok(Vec::new());
            };
            let limits = self.resource.shared().limits;
            let store = self.resource.shared().store()?;
            let upto = floor.min(store.revision());
            if upto <= self.position {
                // The engine publishes a revision after the observer has returned.
                tokio::task::yield_now().await;
                return Ok(Vec::new());
            }
            let RevisionRange { changes, through } =
                store.history(&self.scope, self.position, upto, limits.batch_bytes).await?;
            self.position = through;
            let (decode, encoded_bytes) = (self.resource.decode(), &self.resource.shared().encoded_bytes);
            let changes = changes.into_iter().filter(|change| in_scope(&self.scope, &change.key));
            let events: Vec<_> = changes
                .map(|change| Event::from_change(change, encoded_bytes, |row| Item::new(row, decode)))
                .collect();
            return Ok(events);
        }
        let notify = Arc::clone(&self.notify);
        // The waiter is registered before the ring is read: an event after the read wakes it.
        let notified = notify.notified();
        self.check_repairs()?;
        let events = self.pending_events()?;
        match events.last() {
            Some(last) => self.position = last.revision(),
            None => notified.await,
        }
        Ok(events)
    }

    /// Advances to the newest revision if no event is pending, and returns the position, for bookmarks.
    ///
    /// All events at or before the returned revision were delivered.
    pub fn progress(&mut self) -> Revision {
        if !self.is_behind {
            let position = self.position;
            let newest = self.resource.if_loaded(|loaded, revision| {
                let ring = loaded.rings.ring_of(&self.scope)?;
                let idle =
                    position >= ring.floor() && ring.last_revision().is_none_or(|last| last <= position);
                idle.then_some(revision)
            });
            self.position = newest.flatten().map_or(position, |newest| newest.max(position));
        }
        self.position
    }

    /// Whether the watcher waits for a future revision.
    pub fn is_ahead(&self) -> bool {
        self.position > self.resource.shared().revision()
    }

    /// The floor of the ring of the scope.
    fn floor(&self) -> Result<Option<Revision>, WatchError> {
        let floor = self.resource.with_rings(|rings| rings.ring_of(&self.scope).map(|ring| ring.floor()));
        floor.map(|(floor, _)| floor).ok_or(WatchError::Retired)
    }

    /// The next events of the ring, possibly none.
    fn pending_events(&self) -> Result<Vec<Arc<Event<D>>>, WatchError> {
        let bytes = self.resource.shared().limits.batch_bytes;
        let pending =
            self.resource.with_rings(|rings| rings.ring_of(&self.scope)?.read_after(self.position, bytes));
        // The boolean is true if the resource is unregistered.
        match pending.ok_or(WatchError::Retired)? {
            (None, _) => Err(WatchError::Lagged { position: self.position }),
            (Some(events), true) if events.is_empty() => Err(WatchError::Retired),
            (Some(events), _) => Ok(events),
        }
    }
}

impl<D: Decode> Drop for Watcher<D> {
    fn drop(&mut self) {
        self.resource.with_rings(|rings| rings.remove_watcher(&self.scope));
    }
}

impl<D: Decode> fmt::Debug for Watcher<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher")
            .field("scope", &self.scope)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}
