//! A backend of the audit log: the form of its events, their truncation, and the mode of their delivery.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

use crate::batch::{BatchQueue, Batching, Deliver};
use crate::counts::{Counts, Plugin};
use crate::encode::StageEvent;
use crate::webhook::Webhook;
use crate::writer::LogWriter;

/// Maximum number of batches that are sent to the webhook at the same time.
const CONCURRENT_POSTS: usize = 8;
/// Maximum memory of the events in delivery to the webhook outside batches, in bytes. A larger event is delivered alone.
const MAX_DELIVERY_BYTES: usize = 64 << 20;
/// Memory of a delivery besides the bytes of the event.
const DELIVERY_BYTES: usize = 4096;
/// Time limit of the delivery of buffered events when the process ends.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// The mode of delivery: whether requests wait for the delivery of their events.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    /// Requests never wait; events beyond the buffer are lost.
    Batch(Batching),
    /// Requests wait until the backend has taken their events.
    Blocking,
    /// As [`Mode::Blocking`], and a request is rejected if its first event cannot be written.
    BlockingStrict,
}

/// The mode of a backend and the limit of its events.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackendOptions {
    /// The mode of delivery.
    pub mode: Mode,
    /// Maximum size of an event as JSON, in bytes; None means no limit.
    ///
    /// A larger event loses its objects. An event that is too large without objects is lost.
    pub max_event_bytes: Option<usize>,
}

impl BackendOptions {
    /// Blocking, without truncation: the options of the log without flags.
    pub const BLOCKING: BackendOptions = BackendOptions { mode: Mode::Blocking, max_event_bytes: None };
}

/// The format of the lines of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// One JSON event in each line.
    #[default]
    Json,
    /// One line of text for each event, with few of its fields.
    Legacy,
}

/// The destination of events.
pub(crate) enum Destination {
    Log(LogWriter, Format),
    Webhook(Box<Webhook>),
}

impl Destination {
    fn form(&self, event: &StageEvent<'_>) -> Vec<u8> {
        match self {
            Destination::Log(_, Format::Json) => event.json_line(),
            Destination::Log(_, Format::Legacy) => event.legacy_line(),
            Destination::Webhook(_) => event.list_item(),
        }
    }
}

/// An event in the form of a backend; None for an event that is lost because of its size.
pub(crate) type Encoded = Option<Vec<u8>>;

/// A backend.
pub(crate) struct Backend {
    destination: Arc<Destination>,
    options: BackendOptions,
    /// The buffer in [`Mode::Batch`].
    batches: Option<BatchQueue>,
    /// Limits the memory of the events in delivery to the webhook outside batches, in bytes.
    deliveries: Arc<Semaphore>,
    api_version: Arc<str>,
    counts: Arc<Counts>,
}

/// An event that waits for its delivery to the webhook. If the request no longer waits, the delivery begins at once, or
/// the event is lost and counted.
struct UnsentEvent<'b> {
    backend: &'b Backend,
    /// Empty after the delivery has begun.
    event: Vec<u8>,
}

impl Drop for UnsentEvent<'_> {
    fn drop(&mut self) {
        if !self.event.is_empty() {
            self.backend.post_now(std::mem::take(&mut self.event));
        }
    }
}

/// A delivery to the webhook, which the end of the process may interrupt: the event is then lost and counted.
struct Delivery {
    counts: Arc<Counts>,
    is_complete: bool,
}

impl Delivery {
    fn complete(mut self) {
        self.is_complete = true;
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if !self.is_complete {
            self.counts.lose(Plugin::Webhook, 1, &"the delivery did not end before the process");
        }
    }
}

impl Backend {
    /// Creates a backend. [`Mode::Batch`] needs a runtime, in which the caller is.
    pub(crate) fn new(
        destination: Destination,
        options: BackendOptions,
        api_version: &str,
        counts: Arc<Counts>,
    ) -> Self {
        let destination = Arc::new(destination);
        let api_version: Arc<str> = api_version.into();
        let batches = match options.mode {
            Mode::Batch(batching) => {
                let (target, version) = (Arc::clone(&destination), Arc::clone(&api_version));
                let counts_of_task = Arc::clone(&counts);
                let deliver: Deliver = Arc::new(move |batch| {
                    let (target, version) = (Arc::clone(&target), Arc::clone(&version));
                    let counts = Arc::clone(&counts_of_task);
                    Box::pin(async move {
                        deliver(&target, &version, &counts, batch).await;
                    })
                });
                let deliveries = match &*destination {
                    // The lines of the log stay in order.
                    Destination::Log(..) => 1,
                    Destination::Webhook(_) => CONCURRENT_POSTS,
                };
                Some(BatchQueue::start(batching, deliveries, Arc::clone(&counts), deliver))
            }
            Mode::Blocking | Mode::BlockingStrict => None,
        };
        let deliveries = Arc::new(Semaphore::new(MAX_DELIVERY_BYTES));
        Backend { destination, options, batches, deliveries, api_version, counts }
    }

    /// Encodes an event, without its objects if it is too large.
    pub(crate) fn encode(&self, event: &StageEvent<'_>) -> Encoded {
        let is_truncated = event.event.has_oversized_object && event.outcome.is_some();
        let event = StageEvent { is_truncated, ..*event };
        let encoded = self.destination.form(&event);
        let Some(max_bytes) = self.options.max_event_bytes else { return Some(encoded) };
        if self.json_bytes(&event, &encoded) <= max_bytes {
            return Some(encoded);
        }
        let event = StageEvent { is_truncated: true, ..event };
        let encoded = self.destination.form(&event);
        if self.json_bytes(&event, &encoded) <= max_bytes {
            return Some(encoded);
        }
        self.counts.lose(Plugin::Truncate, 1, &"the event is too large even without its objects");
        None
    }

    fn json_bytes(&self, event: &StageEvent<'_>, encoded: &[u8]) -> usize {
        match &*self.destination {
            Destination::Log(_, Format::Json) => encoded.len(),
            Destination::Log(_, Format::Legacy) => event.json_line().len(),
            Destination::Webhook(_) => event.json_bytes_of_item(encoded),
        }
    }

    /// Delivers an event as the mode requires. Returns false if the request must be rejected, for the first event of
    /// a request (`is_receipt`) in [`Mode::BlockingStrict`].
    pub(crate) async fn send(&self, event: Encoded, is_receipt: bool) -> bool {
        let is_strict = is_receipt && self.is_strict();
        let Some(event) = event else { return !is_strict };
        if let Some(batches) = &self.batches {
            batches.push(event);
            return true;
        }
        match &*self.destination {
            Destination::Log(writer, _) if is_strict => writer.write_confirmed(event).await,
            Destination::Log(writer, _) => {
                writer.write(event).await;
                true
            }
            Destination::Webhook(_) => self.post(event).await || !is_strict,
        }
    }

    /// Delivers an event without waiting.
    pub(crate) fn send_now(&self, event: Encoded) {
        let Some(event) = event else { return };
        if let Some(batches) = &self.batches {
            batches.push(event);
            return;
        }
        match &*self.destination {
            Destination::Log(writer, _) => writer.write_now(event),
            Destination::Webhook(_) => self.post_now(event),
        }
    }

    /// Posts an event to the webhook, and continues the delivery if the caller no longer waits. Returns false if the
    /// event is lost.
    async fn post(&self, event: Vec<u8>) -> bool {
        let mut unsent = UnsentEvent { backend: self, event };
        let share = share_of(unsent.event.len());
        let Ok(share) = Arc::clone(&self.deliveries).acquire_many_owned(share).await else { return false };
        match self.start_delivery(std::mem::take(&mut unsent.event), share) {
            Some(delivery) => delivery.await.unwrap_or(false),
            None => false,
        }
    }

    /// Posts an event to the webhook without waiting. If too many events are in delivery, the event is lost and counted.
    fn post_now(&self, event: Vec<u8>) {
        match Arc::clone(&self.deliveries).try_acquire_many_owned(share_of(event.len())) {
            Ok(share) => drop(self.start_delivery(event, share)),
            Err(_) => {
                let reason = "the audit events in delivery have too many bytes";
                self.counts.lose(Plugin::Webhook, 1, &reason);
            }
        }
    }

    /// Starts a task that posts an event. Returns None without a runtime; the event is then lost and counted.
    fn start_delivery(&self, event: Vec<u8>, share: OwnedSemaphorePermit) -> Option<JoinHandle<bool>> {
        let runtime = tokio::runtime::Handle::try_current();
        let runtime = runtime.inspect_err(|error| self.counts.lose(Plugin::Webhook, 1, error)).ok()?;
        let (destination, version) = (Arc::clone(&self.destination), Arc::clone(&self.api_version));
        let delivery = Delivery { counts: Arc::clone(&self.counts), is_complete: false };
        Some(runtime.spawn(async move {
            let _share = share;
            let is_delivered = deliver(&destination, &version, &delivery.counts, vec![event]).await;
            delivery.complete();
            is_delivered
        }))
    }

    /// Whether the backend rejects a request whose first event cannot be written.
    pub(crate) fn is_strict(&self) -> bool {
        self.options.mode == Mode::BlockingStrict
    }

    /// Opens the file of the log again.
    pub(crate) async fn reopen(&self) {
        if let Destination::Log(writer, _) = &*self.destination {
            writer.reopen().await;
        }
    }

    /// Delivers the buffered events and those in delivery, within a time limit.
    pub(crate) async fn finish_batches(&self) {
        if let Some(batches) = &self.batches {
            batches.finish(FINISH_TIMEOUT).await;
        }
        // The end of the runtime counts the deliveries that do not end in time.
        let all = u32::try_from(MAX_DELIVERY_BYTES).unwrap_or(u32::MAX);
        let _ = tokio::time::timeout(FINISH_TIMEOUT, self.deliveries.acquire_many(all)).await;
    }

    /// Writes the queued lines of the log and ends its thread. Blocks.
    pub(crate) fn close(&self) {
        if let Destination::Log(writer, _) = &*self.destination {
            writer.close();
        }
    }
}

/// The share of [`MAX_DELIVERY_BYTES`] of an event with this size.
fn share_of(size: usize) -> u32 {
    u32::try_from(size.saturating_add(DELIVERY_BYTES).min(MAX_DELIVERY_BYTES)).unwrap_or(u32::MAX)
}

/// Delivers events; counts them as lost if that fails, and then returns false.
async fn deliver(
    destination: &Destination,
    api_version: &str,
    counts: &Counts,
    events: Vec<Vec<u8>>,
) -> bool {
    match destination {
        Destination::Log(writer, _) => {
            for line in events {
                writer.write(line).await;
            }
            true
        }
        Destination::Webhook(webhook) => match webhook.post(api_version, &events).await {
            Ok(()) => true,
            Err(error) => {
                counts.lose(Plugin::Webhook, u64::try_from(events.len()).unwrap_or(u64::MAX), &error);
                false
            }
        },
    }
}
