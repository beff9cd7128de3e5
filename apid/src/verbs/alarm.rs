//! What interrupts a watch beside events: the end of the process, of its authorization or of its time, and bookmarks.
//!
//! # Contract
//!
//! [`Alarm::rings`] waits for the next of them. Cancel-safe: what was waited for goes on between calls, so that a watch
//! that gets events all the time does not enter and leave the runtime's timers with each.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::auth::WatchGuard;

/// How often a client that wants bookmarks gets one.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// How long before its end a watch sends the last bookmark.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// Why a watch is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ring {
    /// The process stops.
    Stopping,
    /// The authorization ended, or is in doubt.
    Doubt,
    /// Its time is over.
    End,
    /// A bookmark is due.
    Bookmark,
}

/// See the module.
pub(super) struct Alarm {
    guard: Arc<WatchGuard>,
    stopping: watch::Receiver<bool>,
    end: Instant,
    /// When the next bookmark is due; None when none is wanted.
    bookmark: Option<Instant>,
    last_bookmark_sent: bool,
    set: Option<Pin<Box<dyn Future<Output = Ring> + Send>>>,
}

impl Alarm {
    /// Of a watch that begins now.
    pub(super) fn new(
        guard: Arc<WatchGuard>,
        stopping: watch::Receiver<bool>,
        now: Instant,
        end: Instant,
        bookmarks: bool,
    ) -> Self {
        let bookmark = bookmarks.then_some(now + BOOKMARK_EVERY);
        Alarm { guard, stopping, end, bookmark, last_bookmark_sent: false, set: None }
    }

    /// Whether the process stops or the time is over.
    pub(super) fn is_over(&self) -> bool {
        *self.stopping.borrow() || Instant::now() >= self.end
    }

    /// Waits for the next.
    pub(super) async fn rings(&mut self) -> Ring {
        let (guard, stopping) = (&self.guard, &self.stopping);
        let (end, bookmark) = (self.end, self.next_bookmark());
        let set = self
            .set
            .get_or_insert_with(|| Box::pin(ring(Arc::clone(guard), stopping.clone(), end, bookmark)));
        let ring = set.as_mut().await;
        self.set = None;
        if ring == Ring::Bookmark {
            let now = Instant::now();
            self.last_bookmark_sent |= now >= self.last_bookmark();
            if self.bookmark.is_some_and(|due| now >= due) {
                self.bookmark = Some(now + BOOKMARK_EVERY);
            }
        }
        ring
    }

    fn last_bookmark(&self) -> Instant {
        self.end.checked_sub(BOOKMARK_BEFORE_END).unwrap_or(self.end)
    }

    fn next_bookmark(&self) -> Option<Instant> {
        let due = self.bookmark?;
        Some(if self.last_bookmark_sent { due } else { due.min(self.last_bookmark()) })
    }
}

async fn ring(
    guard: Arc<WatchGuard>,
    mut stopping: watch::Receiver<bool>,
    end: Instant,
    bookmark: Option<Instant>,
) -> Ring {
    let (due, what) = match bookmark {
        Some(bookmark) if bookmark < end => (bookmark, Ring::Bookmark),
        _ => (end, Ring::End),
    };
    tokio::select! {
        biased;
        // An error: the sender is gone, and with it the process that would stop.
        _ = stopping.wait_for(|stopping| *stopping) => Ring::Stopping,
        () = guard.changed() => Ring::Doubt,
        () = tokio::time::sleep_until(due) => what,
    }
}
