//! Queue of a background task: keys from reflectors, and failed keys again after a pause.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::time::Duration;

use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

/// Longest pause before a retry. A lasting failure of a key, such as a full store, causes one attempt a minute.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(60);

/// A queue of keys to process. A failed key has at most one pending retry, so retries of a key that changes
/// often do not accumulate. The pause doubles with each consecutive failure of a key, up to [`MAX_PAUSE`].
pub(super) struct RetryQueue<K> {
    keys: UnboundedReceiver<K>,
    retry_sender: UnboundedSender<K>,
    retries: UnboundedReceiver<K>,
    pending_retries: HashSet<K>,
    /// The pause before the next retry of each key whose last attempt failed.
    pauses: HashMap<K, Duration>,
    first_pause: Duration,
}

impl<K: Clone + Eq + Hash + Send + 'static> RetryQueue<K> {
    /// Creates a queue of the keys from a channel. `first_pause`: the time before the first retry of a key.
    pub(super) fn new(keys: UnboundedReceiver<K>, first_pause: Duration) -> Self {
        let (retry_sender, retries) = mpsc::unbounded_channel();
        RetryQueue {
            keys,
            retry_sender,
            retries,
            pending_retries: HashSet::new(),
            pauses: HashMap::new(),
            first_pause,
        }
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

    /// Queues a failed key again after its pause.
    pub(super) fn retry(&mut self, key: K) {
        if self.pending_retries.insert(key.clone()) {
            let pause = self.take_pause(&key);
            let retry_sender = self.retry_sender.clone();
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                let _ = retry_sender.send(key);
            });
        }
    }

    /// Records the success of a key: its next failure is retried after the first pause.
    pub(super) fn forget_failures(&mut self, key: &K) {
        self.pauses.remove(key);
    }

    /// Returns the pause before the next retry of a key, and doubles the pause after that.
    fn take_pause(&mut self, key: &K) -> Duration {
        let next_pause = self.pauses.entry(key.clone()).or_insert(self.first_pause);
        let pause = *next_pause;
        *next_pause = (pause * 2).min(MAX_PAUSE);
        pause
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

    #[test]
    fn pause_doubles_up_to_a_minute_until_the_key_succeeds() {
        let (_sender, keys) = mpsc::unbounded_channel();
        let mut queue = RetryQueue::new(keys, Duration::from_secs(1));
        let mut pauses =
            |count: usize| (0..count).map(|_| queue.take_pause(&"a").as_secs()).collect::<Vec<_>>();
        assert_eq!(pauses(9), [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(queue.take_pause(&"b").as_secs(), 1, "each key has its own pause");
        queue.forget_failures(&"a");
        assert_eq!(queue.take_pause(&"a").as_secs(), 1);
    }
}
