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
    /// None when none is wanted.
    bookmarks: Option<Bookmarks>,
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
        let bookmarks = bookmarks.then(|| Bookmarks::new(now, end));
        Alarm { guard, stopping, end, bookmarks, set: None }
    }

    /// Whether the process stops or the time is over.
    pub(super) fn is_over(&self) -> bool {
        *self.stopping.borrow() || Instant::now() >= self.end
    }

    /// Waits for the next.
    pub(super) async fn rings(&mut self) -> Ring {
        let (guard, stopping) = (&self.guard, &self.stopping);
        let (end, bookmark) = (self.end, self.bookmarks.as_ref().map(Bookmarks::due));
        let set = self
            .set
            .get_or_insert_with(|| Box::pin(ring(Arc::clone(guard), stopping.clone(), end, bookmark)));
        let ring = set.as_mut().await;
        self.set = None;
        if let (Ring::Bookmark, Some(bookmarks)) = (ring, &mut self.bookmarks) {
            bookmarks.sent(Instant::now());
        }
        ring
    }
}

/// When bookmarks are due: one in a minute, and one before the end.
struct Bookmarks {
    next: Instant,
    /// When the one before the end is due; None when it was sent.
    last: Option<Instant>,
}

impl Bookmarks {
    fn new(now: Instant, end: Instant) -> Self {
        Bookmarks {
            next: now + BOOKMARK_EVERY,
            last: Some(end.checked_sub(BOOKMARK_BEFORE_END).unwrap_or(end)),
        }
    }

    /// When the next one is due.
    fn due(&self) -> Instant {
        self.last.map_or(self.next, |last| last.min(self.next))
    }

    /// It was.
    fn sent(&mut self, now: Instant) {
        self.last = self.last.filter(|last| now < *last);
        if now >= self.next {
            self.next = now + BOOKMARK_EVERY;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bookmarks_are_due_each_minute_and_before_the_end() {
        for (seconds, expected) in
            [(1, vec![0]), (30, vec![28]), (61, vec![59, 60]), (62, vec![60]), (200, vec![60, 120, 180, 198])]
        {
            let now = Instant::now();
            let end = now + Duration::from_secs(seconds);
            let mut bookmarks = Bookmarks::new(now, end);
            let mut times = Vec::new();
            while bookmarks.due() < end {
                let due = bookmarks.due().max(now);
                bookmarks.sent(due);
                times.push((due - now).as_secs());
            }
            assert_eq!(times, expected, "a watch of {seconds} s");
        }
    }
}
