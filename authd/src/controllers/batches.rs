//! The state of the write batches of one group of controllers: the open batch, and when the next may open.
//!
//! # Invariants
//!
//! INVARIANT (one at a time): at most one batch is open. The next batch is computed only when the mirror has
//! applied the writes of the last one.

use std::time::Duration;

use authproto::auth;
use serving::backoff::Backoff;

/// The pauses after failed batches.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(250), longest: Duration::from_secs(30) };

/// The batch state of one group. `T` is the data that the group keeps for its open batch.
#[derive(Debug)]
pub(super) struct Batches<T> {
    synced: bool,
    open: Option<(u64, T)>,
    /// The id of the last batch.
    last_id: u64,
    /// No batch opens before this monotonic time.
    not_before: Duration,
    failures: u32,
    /// No batch opens before the mirror reaches this revision, which contains the writes of the last batch.
    min_revision: u64,
}

impl<T> Batches<T> {
    /// Creates the state; no batch opens before [`Batches::mark_synced`].
    /// Ids of batches count up from `base + 1`: two groups on one stream need different ids.
    pub(super) fn new(base: u64) -> Self {
        Batches {
            synced: false,
            open: None,
            last_id: base,
            not_before: Duration::ZERO,
            failures: 0,
            min_revision: 0,
        }
    }

    /// Records that the snapshot of the mirror is complete.
    pub(super) fn mark_synced(&mut self) {
        self.synced = true;
    }

    /// Whether the snapshot of the mirror is complete.
    pub(super) fn is_synced(&self) -> bool {
        self.synced
    }

    /// Whether no batch is open and the snapshot is complete.
    /// The next batch may still have to wait for the end of the back-off, or for a revision of the mirror.
    pub(super) fn is_idle(&self) -> bool {
        self.synced && self.open.is_none()
    }

    /// Whether a batch may open now, at this revision of the mirror.
    pub(super) fn can_open(&self, now: Duration, revision: u64) -> bool {
        self.is_idle() && now >= self.not_before && revision >= self.min_revision
    }

    /// The monotonic time at which the back-off ends; None if the last batch did not fail.
    pub(super) fn retry_at(&self) -> Option<Duration> {
        (self.failures > 0).then_some(self.not_before)
    }

    /// Opens a batch with the next id; `data` is kept until the batch is closed.
    pub(super) fn open(
        &mut self,
        data: T,
        controller: &str,
        writes: Vec<auth::ObjectWrite>,
    ) -> auth::WriteBatch {
        self.last_id += 1;
        self.open = Some((self.last_id, data));
        auth::WriteBatch { id: self.last_id, controller: controller.to_owned(), writes }
    }

    /// Closes the batch of this result and returns its data. Returns None if no open batch has the id of the result.
    pub(super) fn close(&mut self, result: &auth::WriteResult) -> Option<T> {
        let (_, data) = self.open.take_if(|(id, _)| *id == result.id)?;
        self.min_revision = result.revision;
        Some(data)
    }

    /// Records the success of a batch, which ends the back-off.
    pub(super) fn record_success(&mut self) {
        self.failures = 0;
    }

    /// Records the failure of a batch and starts a longer back-off.
    pub(super) fn record_failure(&mut self, now: Duration) {
        self.not_before = now + BACKOFF.pause(self.failures);
        self.failures = self.failures.saturating_add(1);
    }
}
