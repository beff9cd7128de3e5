//! A watcher: a position in the history of a scope.
//!
//! A position below the ring is moved up by reading the engine's history until it reaches the ring; from then on the
//! watcher reads the ring only. The engine is read without a prefix: then the revision that the ring begins after is
//! itself among the changes, so that the watcher knows that it arrived even when its own scope was quiet.

use std::fmt;
use std::sync::Arc;

use tokio::sync::Notify;

use super::resource::Loaded;
use super::ring::in_scope;
use super::{Decode, Event, Resource};
use crate::{Error, Revision, Watch};

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
    /// The engine's history, while the position is below the ring.
    history: Option<Box<dyn Watch>>,
}

impl<D: Decode> Watcher<D> {
    pub(super) fn enter(
        resource: Arc<Resource<D>>,
        scope: Arc<str>,
        position: Revision,
        loaded: &mut Loaded<D>,
    ) -> Self {
        let notify = Arc::clone(loaded.rings.enter(&scope, position).notify());
        Watcher { resource, scope, position, notify, history: None }
    }

    /// Opens the engine's history if the position is below the ring.
    pub(super) async fn begin(&mut self) -> Result<(), WatchError> {
        if !self.in_ring() {
            self.history = Some(self.resource.shared().store()?.watch("", self.position).await?);
        }
        Ok(())
    }

    /// The next events, at least one; waits for them. Cancel-safe. After an error the watcher is over.
    pub async fn next(&mut self) -> Result<Vec<Arc<Event<D>>>, WatchError> {
        while let Some(history) = &mut self.history {
            let changes = history.next().await?;
            let newest = changes.last().map(|change| change.revision);
            let decode = self.resource.decode();
            let events: Vec<_> = changes
                .into_iter()
                .filter(|change| in_scope(&self.scope, &change.key))
                .map(|change| Event::from_change(change, decode))
                .collect();
            self.position = self.position.max(newest.unwrap_or_default());
            if self.in_ring() {
                self.history = None;
            }
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
        if self.history.is_none() {
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

    /// Whether the ring holds all events after the position.
    fn in_ring(&self) -> bool {
        let at_floor = |loaded: &mut Loaded<D>, _| {
            loaded.rings.of(&self.scope).map(|ring| self.position >= ring.floor())
        };
        self.resource.if_loaded(at_floor).flatten().unwrap_or(false)
    }

    fn pending(&self) -> Result<Vec<Arc<Event<D>>>, WatchError> {
        let bytes = self.resource.shared().limits.batch_bytes;
        self.resource
            .if_loaded(|loaded, _| loaded.rings.of(&self.scope)?.after(self.position, bytes))
            .flatten()
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
