//! Queue of a background task: keys from reflectors, and failed keys again after a pause.

use std::collections::HashSet;
use std::hash::Hash;
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

/// A queue of keys to process. A failed key has at most one pending retry, so retries of a key that changes
/// often do not accumulate.
pub(super) struct RetryQueue<K> {
    keys: UnboundedReceiver<K>,
    retry_sender: UnboundedSender<K>,
    retries: UnboundedReceiver<K>,
    pending_retries: HashSet<K>,
    pause: Duration,
}

impl<K: Clone + Eq + Hash + Send + 'static> RetryQueue<K> {
    /// Creates a queue of the keys from a channel. `pause`: the time before a retry.
    pub(super) fn new(keys: UnboundedReceiver<K>, pause: Duration) -> Self {
        let (retry_sender, retries) = mpsc::unbounded_channel();
        RetryQueue { keys, retry_sender, retries, pending_retries: HashSet::new(), pause }
    }

    /// Returns the next key or retry; None when the channel of the keys is closed.
    pub(super) async fn next(&mut self) -> Option<K> {
        tokio::select! {
            Some(key) = self.retries.recv() => {
                self.pending_retries.remove(&key);
                Some(key)
            }
            key = self.keys.recv() => key,
        }
    }

    /// Queues a failed key again after the pause.
    pub(super) fn retry(&mut self, key: K) {
        if self.pending_retries.insert(key.clone()) {
            let (retry_sender, pause) = (self.retry_sender.clone(), self.pause);
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                let _ = retry_sender.send(key);
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn key_that_fails_twice_within_the_pause_is_retried_once() {
        let (sender, keys) = mpsc::unbounded_channel();
        let mut queue = RetryQueue::new(keys, Duration::from_millis(1));
        queue.retry("a");
        queue.retry("a");
        assert_eq!(queue.next().await, Some("a"));
        queue.retry("a");
        assert_eq!(queue.next().await, Some("a"));
        sender.send("b").unwrap();
        assert_eq!(queue.next().await, Some("b"));
        drop(sender);
        assert_eq!(queue.next().await, None);
    }
}
