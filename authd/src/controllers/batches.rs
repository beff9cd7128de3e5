//! The batches of one group of controllers: which is open, and when the next may be asked for.
//!
//! # Invariants
//!
//! INVARIANT (one at a time): one batch is open at most; the next is computed from a mirror that has seen its writes.

use std::time::Duration;

use authproto::auth;

/// The first pause after a failure; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// See the module. `T` is what a group remembers of its open batch.
#[derive(Debug)]
pub(super) struct Batches<T> {
    synced: bool,
    open: Option<(u64, T)>,
    /// The id of the last one.
    last: u64,
    /// Nothing is asked for before this time.
    not_before: Duration,
    failures: u32,
    /// Nothing is computed before the mirror is here: it must see the last batch's writes.
    not_below: u64,
}

impl<T> Batches<T> {
    /// Before the snapshot. The ids follow `base`: those of two groups on one stream must differ.
    pub(super) fn new(base: u64) -> Self {
        Batches {
            synced: false,
            open: None,
            last: base,
            not_before: Duration::ZERO,
            failures: 0,
            not_below: 0,
        }
    }

    /// The snapshot is complete.
    pub(super) fn synced(&mut self) {
        self.synced = true;
    }

    /// Whether it is.
    pub(super) fn is_synced(&self) -> bool {
        self.synced
    }

    /// Whether only time and the mirror's revision stand between now and the next batch.
    pub(super) fn is_idle(&self) -> bool {
        self.synced && self.open.is_none()
    }

    /// Whether a batch may be opened now, at this revision of the mirror.
    pub(super) fn may_open(&self, now: Duration, revision: u64) -> bool {
        self.is_idle() && now >= self.not_before && revision >= self.not_below
    }

    /// The end of the pause after a failure; None when the last batch did not fail.
    pub(super) fn retry_at(&self) -> Option<Duration> {
        (self.failures > 0).then_some(self.not_before)
    }

    /// Opens a batch.
    pub(super) fn open(
        &mut self,
        note: T,
        controller: &str,
        system: bool,
        writes: Vec<auth::ObjectWrite>,
    ) -> auth::WriteBatch {
        self.last += 1;
        self.open = Some((self.last, note));
        auth::WriteBatch { id: self.last, controller: controller.to_owned(), system, writes }
    }

    /// Closes the batch of this result. None: it is of no open batch.
    pub(super) fn close(&mut self, result: &auth::WriteResult) -> Option<T> {
        let (_, note) = self.open.take_if(|(id, _)| *id == result.id)?;
        self.not_below = result.revision;
        Some(note)
    }

    /// What was asked for is done.
    pub(super) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// It failed: the next waits, longer each time.
    pub(super) fn failed(&mut self, now: Duration) {
        let pause = FIRST_PAUSE.saturating_mul(1 << self.failures.min(16)).min(LONGEST_PAUSE);
        self.failures += 1;
        self.not_before = now + pause;
    }
}
