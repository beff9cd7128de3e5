//! A watcher: a position in the history of a scope.
//!
//! A position below the ring is moved up by reading the engine's history, a stretch at a time, until it reaches the ring;
//! from then on the watcher reads the ring only. It comes to that only where the ring, which reaches back when the first
//! watcher needs it, had no room for so old events.

use std::fmt;
use std::sync::Arc;

use tokio::sync::Notify;

use super::resource::Loaded;
use super::ring::in_scope;
use super::{Decode, Event, Item, Resource};
use crate::{Error, Revision, Stretch};

/// Why a watcher ended.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WatchError {
    /// The reader was too slow: events it has not seen left the ring. A new watch from `position` continues, if the
    /// history still reaches there.
    #[error("the watcher fell too far behind at revision {position}")]
    Lagged {
        /// All events at or before it were delivered.
        position: Revision,
    },
    /// The resource was given up.
    #[error("the resource is not served any more")]
    Retired,
    /// The store cannot tell what happened; `Compacted` when its history does not reach back to the position.
    #[error(transparent)]
    Store(#[from] Error),
}

/// The events of a scope, in order. Idle, it is some hundred bytes; dropping it frees them.
pub struct Watcher<D: Decode> {
    resource: Arc<Resource<D>>,
    scope: Arc<str>,
    /// All events of the scope at or before it were delivered.
    position: Revision,
    notify: Arc<Notify>,
    /// Whether the position is below the ring since the beginning.
    behind: bool,
}

impl<D: Decode> Watcher<D> {
    pub(super) fn enter(
        resource: Arc<Resource<D>>,
        scope: Arc<str>,
        position: Revision,
        loaded: &mut Loaded<D>,
    ) -> Self {
        let ring = loaded.rings.enter(&scope, position);
        let (notify, behind) = (Arc::clone(ring.notify()), position < ring.floor());
        Watcher { resource, scope, position, notify, behind }
    }

    /// Whether the history reaches back to the position. What the engine has given up is not told, even where the ring
    /// still holds it: so how far back a watch begins depends on the store alone.
    pub(super) fn begin(&self) -> Result<(), WatchError> {
        let compacted = self.resource.shared().store()?.compacted();
        if self.position < compacted {
            return Err(Error::Compacted { asked: self.position, compacted }.into());
        }
        Ok(())
    }

    /// The next events, at least one; waits for them. Cancel-safe. After an error the watcher is over.
    pub async fn next(&mut self) -> Result<Vec<Arc<Event<D>>>, WatchError> {
        while self.behind {
            let Some(floor) = self.floor()?.filter(|floor| *floor > self.position) else {
                self.behind = false;
                break;
            };
            let store = self.resource.shared().store()?;
            let upto = floor.min(store.revision());
            if upto <= self.position {
                // The engine lets itself be observed before it lets itself be read.
                tokio::task::yield_now().await;
                continue;
            }
            let Stretch { changes, through } = store.history(&self.scope, self.position, upto).await?;
            self.position = through;
            let (decode, encoded) = (self.resource.decode(), &self.resource.shared().encoded);
            let changes = changes.into_iter().filter(|change| in_scope(&self.scope, &change.key));
            let events: Vec<_> = changes
                .map(|change| Event::from_change(change, encoded, |row| Item::new(row, decode)))
                .collect();
            if !events.is_empty() {
                return Ok(events);
            }
        }
        loop {
            let notify = Arc::clone(&self.notify);
            // Before the look at the ring: what comes after the look wakes it.
            let woken = notify.notified();
            let events = self.pending()?;
            if let Some(last) = events.last() {
                self.position = last.revision();
                return Ok(events);
            }
            woken.await;
        }
    }

    /// Moves up to the newest revision if nothing is left to deliver. All events at or before the answer were delivered:
    /// what a bookmark may say.
    pub fn progress(&mut self) -> Revision {
        if !self.behind {
            let position = self.position;
            let newest = self.resource.if_loaded(|loaded, revision| {
                let ring = loaded.rings.of(&self.scope)?;
                let idle = position >= ring.floor() && ring.last().is_none_or(|last| last <= position);
                idle.then_some(revision)
            });
            self.position = newest.flatten().map_or(position, |newest| newest.max(position));
        }
        self.position
    }

    /// Whether it waits for a revision that has not happened.
    pub fn is_ahead(&self) -> bool {
        self.position > self.resource.shared().revision()
    }

    /// The revision after which the ring of the scope is whole.
    fn floor(&self) -> Result<Option<Revision>, WatchError> {
        let floor = |loaded: &mut Loaded<D>, _| loaded.rings.of(&self.scope).map(|ring| ring.floor());
        self.resource.if_loaded(floor).ok_or(WatchError::Retired)
    }

    fn pending(&self) -> Result<Vec<Arc<Event<D>>>, WatchError> {
        let bytes = self.resource.shared().limits.batch_bytes;
        self.resource
            .if_loaded(|loaded, _| loaded.rings.of(&self.scope)?.after(self.position, bytes))
            .ok_or(WatchError::Retired)?
            .ok_or(WatchError::Lagged { position: self.position })
    }
}

impl<D: Decode> Drop for Watcher<D> {
    fn drop(&mut self) {
        self.resource.if_loaded(|loaded, _| loaded.rings.leave(&self.scope));
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
