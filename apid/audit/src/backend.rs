//! A backend of the audit log: the form of its events, their truncation, and the mode of their delivery.

use std::sync::Arc;
use std::time::Duration;

use crate::batch::{BatchQueue, Batching, Deliver};
use crate::counts::{Counts, Plugin};
use crate::encode::StageEvent;
use crate::webhook::Webhook;
use crate::writer::LogWriter;

/// Maximum number of batches that are sent to the webhook at the same time.
const CONCURRENT_POSTS: usize = 8;
/// Time limit of the delivery of buffered events when the process ends.
const FINISH_TIMEOUT: Duration = Duration::from_secs(10);

/// How requests and the delivery of their events depend on each other.
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
    /// Maximum size of an event as JSON, in bytes; None: no limit.
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
    fn plugin(&self) -> Plugin {
        match self {
            Destination::Log(..) => Plugin::Log,
            Destination::Webhook(_) => Plugin::Webhook,
        }
    }

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
    api_version: Arc<str>,
    counts: Arc<Counts>,
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
        Backend { destination, options, batches, api_version, counts }
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
        let is_strict = is_receipt && self.options.mode == Mode::BlockingStrict;
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
            Destination::Webhook(_) => {
                deliver(&self.destination, &self.api_version, &self.counts, vec![event]).await || !is_strict
            }
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
            Destination::Webhook(_) => match tokio::runtime::Handle::try_current() {
                Ok(runtime) => {
                    let (destination, version) =
                        (Arc::clone(&self.destination), Arc::clone(&self.api_version));
                    let counts = Arc::clone(&self.counts);
                    runtime.spawn(async move { deliver(&destination, &version, &counts, vec![event]).await });
                }
                Err(error) => self.counts.lose(self.destination.plugin(), 1, &error),
            },
        }
    }

    /// Opens the file of the log again.
    pub(crate) async fn reopen(&self) {
        if let Destination::Log(writer, _) = &*self.destination {
            writer.reopen().await;
        }
    }

    /// Delivers the buffered events, within a time limit.
    pub(crate) async fn finish_batches(&self) {
        if let Some(batches) = &self.batches {
            batches.finish(FINISH_TIMEOUT).await;
        }
    }

    /// Writes the queued lines of the log and ends its thread. Blocks.
    pub(crate) fn close(&self) {
        if let Destination::Log(writer, _) = &*self.destination {
            writer.close();
        }
    }
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
