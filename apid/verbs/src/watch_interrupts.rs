//! Interrupts of a watch besides events: shutdown, re-authorization, timeout and bookmarks.
//!
//! # Contract
//!
//! [`WatchInterrupts::next_interrupt`] waits for the next interrupt. Cancel-safe: the pending wait survives between
//! calls, so a busy watch does not register and remove runtime timers with each event.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use authclient::WatchGuard;

/// Interval between bookmarks.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);

/// Time between the last bookmark of a watch and its end.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// Reason for which a watch is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchInterrupt {
    /// The process shuts down.
    Stopping,
    /// The authorization ended, or must be refreshed.
    Reauthorize,
    /// The timeout of the watch has expired.
    Timeout,
    /// A bookmark is due.
    Bookmark,
}

/// Waits for the interrupts of one watch.
pub(super) struct WatchInterrupts {
    guard: Arc<WatchGuard>,
    stopping: watch::Receiver<bool>,
    end: Instant,
    /// None if the client did not request bookmarks.
    bookmarks: Option<Bookmarks>,
    /// The wait for the next interrupt, while one is pending.
    pending: Option<Pin<Box<dyn Future<Output = WatchInterrupt> + Send>>>,
}

impl WatchInterrupts {
    /// Creates the interrupts of a watch that begins at `now`.
    pub(super) fn new(
        guard: Arc<WatchGuard>,
        stopping: watch::Receiver<bool>,
        now: Instant,
        end: Instant,
        bookmarks: bool,
    ) -> Self {
        let bookmarks = bookmarks.then(|| Bookmarks::new(now, end));
        WatchInterrupts { guard, stopping, end, bookmarks, pending: None }
    }

    /// Whether the process shuts down or the timeout of the watch has expired.
    pub(super) fn is_finished(&self) -> bool {
        *self.stopping.borrow() || Instant::now() >= self.end
    }

    /// Returns a future that waits until the process shuts down or the timeout of the watch expires.
    pub(super) fn wait_until_finished(&self) -> impl Future<Output = ()> + Send + use<> {
        let (stopping, end) = (self.stopping.clone(), self.end);
        async move {
            tokio::select! {
                () = wait_until_stopping(stopping) => {}
                () = tokio::time::sleep_until(end) => {}
            }
        }
    }

    /// Waits for the next interrupt.
    pub(super) async fn next_interrupt(&mut self) -> WatchInterrupt {
        let (guard, stopping) = (&self.guard, &self.stopping);
        let (end, bookmark) = (self.end, self.bookmarks.as_ref().map(Bookmarks::due));
        let pending = self.pending.get_or_insert_with(|| {
            Box::pin(wait_for_interrupt(Arc::clone(guard), stopping.clone(), end, bookmark))
        });
        let interrupt = pending.as_mut().await;
        self.pending = None;
        if let (WatchInterrupt::Bookmark, Some(bookmarks)) = (interrupt, &mut self.bookmarks) {
            bookmarks.record_sent(Instant::now());
        }
        interrupt
    }
}

/// Schedule of bookmarks: one per minute, and one before the end.
struct Bookmarks {
    next: Instant,
    /// Time of the final bookmark; None once it was sent.
    last: Option<Instant>,
}

impl Bookmarks {
    fn new(now: Instant, end: Instant) -> Self {
        Bookmarks {
            next: now + BOOKMARK_INTERVAL,
            last: Some(end.checked_sub(BOOKMARK_BEFORE_END).unwrap_or(end)),
        }
    }

    /// Returns the time of the next bookmark.
    fn due(&self) -> Instant {
        self.last.map_or(self.next, |last| last.min(self.next))
    }

    /// Advances the schedule after a bookmark.
    fn record_sent(&mut self, now: Instant) {
        self.last = self.last.filter(|last| now < *last);
        if now >= self.next {
            self.next = now + BOOKMARK_INTERVAL;
        }
    }
}

/// Waits until the process shuts down.
async fn wait_until_stopping(mut stopping: watch::Receiver<bool>) {
    // An error means that the sender was dropped: the process is shutting down.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

async fn wait_for_interrupt(
    guard: Arc<WatchGuard>,
    stopping: watch::Receiver<bool>,
    end: Instant,
    bookmark: Option<Instant>,
) -> WatchInterrupt {
    let (due, timer_interrupt) = match bookmark {
        Some(bookmark) if bookmark < end => (bookmark, WatchInterrupt::Bookmark),
        _ => (end, WatchInterrupt::Timeout),
    };
    tokio::select! {
        biased;
        () = wait_until_stopping(stopping) => WatchInterrupt::Stopping,
        () = guard.changed() => WatchInterrupt::Reauthorize,
        () = tokio::time::sleep_until(due) => timer_interrupt,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bookmarks_are_sent_each_minute_and_before_watch_timeout() {
        for (seconds, expected) in
            [(1, vec![0]), (30, vec![28]), (61, vec![59, 60]), (62, vec![60]), (200, vec![60, 120, 180, 198])]
        {
            let now = Instant::now();
            let end = now + Duration::from_secs(seconds);
            let mut bookmarks = Bookmarks::new(now, end);
            let mut times = Vec::new();
            while bookmarks.due() < end {
                let due = bookmarks.due().max(now);
                bookmarks.record_sent(due);
                times.push((due - now).as_secs());
            }
            assert_eq!(times, expected, "a watch of {seconds} s");
        }
    }
}
