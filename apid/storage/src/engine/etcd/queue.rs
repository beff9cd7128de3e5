//! A queue whose items have a size in bytes. A sender waits while the queue has no room.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

/// Minimum size in bytes that an item counts, so that the number of items is limited, too.
const MIN_ITEM_BYTES: usize = 4096;

/// The end that adds items.
pub(super) struct Sender<T> {
    items: mpsc::UnboundedSender<Item<T>>,
    room: Arc<Semaphore>,
    capacity: u32,
}

/// The end that takes items.
pub(super) struct Receiver<T>(mpsc::UnboundedReceiver<Item<T>>);

/// An item, and the room that it occupies until it is processed.
struct Item<T>(T, OwnedSemaphorePermit);

/// A queue of items whose total size is at most `capacity` bytes. A larger item needs an empty queue.
pub(super) fn queue<T>(capacity: u32) -> (Sender<T>, Receiver<T>) {
    let (items, received) = mpsc::unbounded_channel();
    let room = usize::try_from(capacity).unwrap_or(Semaphore::MAX_PERMITS);
    (Sender { items, room: Arc::new(Semaphore::new(room)), capacity }, Receiver(received))
}

impl<T> Sender<T> {
    /// Adds an item as soon as there is room. Returns false if the receiver is gone.
    pub(super) async fn send(&self, item: T, bytes: usize) -> bool {
        let bytes = u32::try_from(bytes.max(MIN_ITEM_BYTES)).unwrap_or(self.capacity).min(self.capacity);
        let Ok(room) = Arc::clone(&self.room).acquire_many_owned(bytes).await else { return false };
        self.items.send(Item(item, room)).is_ok()
    }

    /// Waits until the receiver is gone.
    pub(super) async fn closed(&self) {
        self.items.closed().await;
    }
}

impl<T> Receiver<T> {
    /// Processes each item until the sender is gone. An item occupies its room until it is processed.
    pub(super) fn process(mut self, mut process: impl FnMut(T)) {
        while let Some(Item(item, _room)) = self.0.blocking_recv() {
            process(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sender_waits_until_items_in_the_queue_leave_room() {
        let (sender, receiver) = queue(3 * 4096);
        assert!(sender.send(1, 2 * 4096).await && sender.send(2, 1).await, "both items fit");
        let waiting = tokio::spawn(async move { sender.send(3, usize::MAX).await });
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        assert!(!waiting.is_finished(), "a large item needs an empty queue");
        let processed = tokio::task::spawn_blocking(move || {
            let mut items = Vec::new();
            receiver.process(|item| items.push(item));
            items
        });
        assert!(waiting.await.unwrap());
        assert_eq!(processed.await.unwrap(), [1, 2, 3]);
    }

    #[tokio::test]
    async fn send_fails_after_receiver_is_dropped() {
        let (sender, receiver) = queue(4096);
        assert!(sender.send(1, 4096).await);
        let waiting = async { sender.send(2, 4096).await };
        let end = async { drop(receiver) };
        assert!(!tokio::join!(waiting, end).0);
        sender.closed().await;
    }
}
