//! Changes that are no longer in memory, read from etcd, and the watches of the contract.
//!
//! A read of older changes watches the whole store, because only an event shows that all earlier ones have arrived. The
//! last results stay in memory, so that a reader with small limits does not open a watch for each call.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;

use super::Shared;
use super::changes::Changes;
use super::client::{Client, Failure};
use super::feed::{Events, Message, change, event_revision};
use crate::{Change, Error, Result, Revision, RevisionRange, Watch};

/// Size in bytes of the changes at which one read of older changes ends.
const SEGMENT_BYTES: usize = 8 << 20;
/// Size in bytes of the changes that a watch returns at once.
const WATCH_BYTES: usize = 1 << 20;
/// Time limit for the next message of a watch that reads older changes.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(10);

impl Shared {
    /// The changes of a prefix after a readable revision, as [`crate::Store::history`].
    pub(super) async fn history(
        self: &Arc<Self>,
        client: &Arc<Client>,
        prefix: &str,
        (after, upto): (u64, u64),
        bytes: usize,
    ) -> Result<RevisionRange> {
        loop {
            self.check_readable(Revision(after))?;
            if let Some(range) = self.recent.lock().read(prefix, after, upto, bytes) {
                return Ok(range);
            }
            if let Some(range) = self.past.lock().await.read(prefix, after, upto, bytes) {
                return Ok(range);
            }
            // A cancelled call does not end the read: many cancelled streams would end the connection to etcd.
            let (shared, client) = (Arc::clone(self), Arc::clone(client));
            let load = tokio::spawn(async move { shared.load_past(&client, after, upto).await });
            load.await.unwrap_or_else(|_| Err(Error::closed()))?;
        }
    }

    /// Loads the part of the history that begins at a revision, unless another call has loaded it.
    async fn load_past(&self, client: &Client, after: u64, upto: u64) -> Result<()> {
        let mut past = self.past.lock().await;
        if past.read("", after, upto, 0).is_none() {
            past.add(self.read_past(client, after, upto).await?);
        }
        Ok(())
    }

    /// Reads the changes after a revision from etcd: up to another, or as many as fit in memory.
    async fn read_past(&self, client: &Client, after: u64, upto: u64) -> Result<Changes> {
        let mut segment = Changes::new(after);
        // After the newest change there is nothing to wait for.
        let target = upto.min(self.newest_change());
        if target <= after {
            segment.push([], upto);
            return Ok(segment);
        }
        let open = Events::open(client, self.keys.root(), Revision(after));
        let (mut events, _) = open.await.map_err(Failure::into_error)?;
        loop {
            let message = tokio::time::timeout(MESSAGE_TIMEOUT, events.next()).await;
            let message = message.map_err(|_| Error::Unavailable("etcd sends no history".to_owned()))?;
            let events = match message.map_err(Failure::into_error)? {
                Message::Compacted(compacted) => {
                    self.raise_compacted(compacted);
                    return Err(Error::Compacted { requested: Revision(after), compacted });
                }
                Message::Created | Message::Progress(_) => continue,
                Message::Events(events) => events,
            };
            let through = events.last().map_or(0, event_revision);
            for event in events.into_iter().filter(|event| event_revision(event) > after) {
                let change = change(event, &self.keys).map_err(|_| Error::Compacted {
                    requested: Revision(after),
                    compacted: self.compacted(),
                })?;
                segment.push(change, after);
            }
            segment.push([], through);
            if through >= target {
                segment.push([], upto);
                return Ok(segment);
            }
            if segment.bytes() >= SEGMENT_BYTES {
                return Ok(segment);
            }
        }
    }
}

/// A watch of the contract: a position in the history.
pub(super) struct EtcdWatch {
    pub(super) shared: Arc<Shared>,
    pub(super) client: Arc<Client>,
    pub(super) prefix: String,
    pub(super) position: u64,
    pub(super) published: watch::Receiver<u64>,
}

#[async_trait]
impl Watch for EtcdWatch {
    async fn next(&mut self) -> Result<Vec<Change>> {
        loop {
            let upto = *self.published.borrow_and_update();
            // `close` marks the store and then notifies: a mark after this check wakes the wait below.
            self.shared.check_open()?;
            if self.position < upto {
                let span = (self.position, upto);
                let range = self.shared.history(&self.client, &self.prefix, span, WATCH_BYTES).await?;
                self.position = range.through.0;
                if !range.changes.is_empty() {
                    return Ok(range.changes);
                }
                continue;
            }
            if self.published.changed().await.is_err() {
                return Err(Error::closed());
            }
        }
    }
}
