//! A watch of the engine: history after a revision, then new changes, without a gap and without its own
//! buffer.
//!
//! # Contract
//!
//! A watch holds only a position. The next changes come from the recent changes in memory, or from the log
//! when the watch has fallen behind them. When history is compacted beyond the position, the watch ends with
//! `Compacted`.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::watch;

use super::reader::{self, HistoryLimits};
use super::state::SharedState;
use crate::{Change, Error, Result, Revision, Watch};

/// Maximum number of log entries that one call reads.
const MAX_ENTRIES: usize = 1024;

/// Size in bytes at which a batch of [`FjallWatch`] ends. The last change may exceed it.
const BATCH_BYTES: usize = 1 << 20;

/// The watch; see the module documentation.
pub(super) struct FjallWatch {
    state: Arc<SharedState>,
    prefix: Arc<str>,
    position: u64,
    published: watch::Receiver<u64>,
    /// The error that ended the watch; later calls return it again.
    ended: Option<Error>,
}

impl FjallWatch {
    /// Creates a watch of the changes after a revision; the caller has checked that the revision is readable.
    pub(super) fn new(state: Arc<SharedState>, prefix: &str, after: Revision) -> Self {
        let published = state.published.subscribe();
        FjallWatch { state, prefix: prefix.into(), position: after.0, published, ended: None }
    }

    /// Waits for changes after the position, and moves the position past them.
    async fn advance(&mut self) -> Result<Vec<Change>> {
        loop {
            self.state.check_open()?;
            let upto = *self.published.borrow_and_update();
            if self.position < upto {
                let (changes, through) = self.history(upto, BATCH_BYTES).await?;
                // No await follows: a cancelled caller loses no change.
                self.position = through;
                if !changes.is_empty() {
                    return Ok(changes);
                }
                continue;
            }
            self.published.changed().await.map_err(|_| Error::closed())?;
        }
    }

    /// A part of the changes after the position, and the revision up to which the part is complete.
    ///
    /// `upto` is the last revision to read. A part ends with the change that brings its size to `bytes` or more.
    pub(super) async fn history(&self, upto: u64, bytes: usize) -> Result<(Vec<Change>, u64)> {
        let limits = HistoryLimits { entries: MAX_ENTRIES, bytes };
        if let Some(found) = self.state.recent.lock().history(&self.prefix, self.position, upto, limits) {
            return Ok(found);
        }
        let (state, prefix, after) = (self.state.clone(), self.prefix.clone(), self.position);
        let read = move || {
            let read = |tables: &_, _| reader::history(tables, &prefix, after, upto, limits);
            state.read(Some(Revision(after)), read).map(|(found, _)| found)
        };
        tokio::task::spawn_blocking(read).await.map_err(|error| Error::Unavailable(error.to_string()))?
    }
}

#[async_trait]
impl Watch for FjallWatch {
    async fn next(&mut self) -> Result<Vec<Change>> {
        if let Some(error) = &self.ended {
            return Err(error.clone());
        }
        let found = self.advance().await;
        if let Err(error) = &found {
            self.ended = Some(error.clone());
        }
        found
    }
}
