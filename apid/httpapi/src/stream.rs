//! Watch response bodies: one JSON document per line, a CBOR sequence, or Protobuf frames.
//!
//! # Concurrency
//!
//! No task runs while the client does not read: apid takes and encodes the next events when the connection
//! asks for more. A slow client therefore holds the send buffer of its connection and one batch of events
//! with their objects. The watch cache owns the initial objects that are not sent yet, and revokes the pin of
//! a slow client. apid ends the watch of a client that falls behind the event history; the client must resume
//! or list again.
//!
//! The large objects of a batch count as unsent, once for each user, until the batch is encoded. A watch takes its next
//! batch when the unsent responses of the user are within the limits. At most two watches of a user read the engine's
//! history at the same time, because watches do not share objects from the history. apid ends a watch that waits longer
//! than [`MAX_BATCH_WAIT`]; the client can resume.
//!
//! The I/O thread encodes small events. The work pool encodes large objects, and initial events in a
//! representation other than the stored form. Each watch converts its own initial events, and a thousand
//! watches of one client must not delay other requests. A large object that is sent in its stored form as an
//! initial event is copied in chunks as the client reads. Other large events have one encoding, which all
//! watches with the same representation share.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::codec;
use apimachinery::status::Status;
use bytes::Bytes;
use futures_util::{Stream, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use serde_json::{Value, json};
use serving::body::Body;
use storage::cache::{EventKind, Form};
use tokio::sync::SemaphorePermit;

use crate::negotiate::{Format, Shape};
use crate::request_context::RequestContext;
use crate::response::chunked_document::CHUNK_TARGET;
use crate::response::list_encoding::Encoding;
use crate::response::protobuf;
use crate::response::representation::{MIN_CHUNKED_BYTES, Representation};
use crate::shares::{HeldVersion, UserShare};
use crate::work_pool::{Flow, WorkPool};
use verbs::{ChangedObject, ResponseObject, WatchEventMetrics, WatchNotice, WatchStart, WatchStream};

/// Parameters for encoding the events of a watch.
pub(super) struct Encoder {
    /// Counts the events.
    pub(super) events: WatchEventMetrics,
    /// The representation of the objects.
    pub(super) representation: Representation,
}

impl Encoder {
    /// Returns the form under which watches share an encoded event; None for an event that is never shared.
    ///
    /// `first`: the event has the first object of the watch. The first Table of a watch has the column
    /// definitions. Tables are shared within one second, because cells show ages.
    fn form(&self, kind: EventKind, first: bool) -> Option<Form> {
        let Representation { http_state, resource, format, shape, include, .. } = &self.representation;
        let media_type = match format {
            Format::Json | Format::Yaml => 0,
            Format::Protobuf(_) => 1,
            Format::Cbor => 2,
        };
        let (shape, second) = match *shape {
            Shape::Own => (0, 0),
            Shape::Metadata("v1") => (1, 0),
            Shape::Metadata(_) => (2, 0),
            Shape::Table(version) => {
                let table = 6 * u8::from(first) + 3 * u8::from(version == "v1") + *include as u8;
                (3 + table, http_state.api_state.clock.monotonic().as_secs())
            }
            Shape::AggregatedDiscovery(_) => return None,
        };
        Some(Form { representation: Arc::as_ptr(resource).addr(), kind, shape, media_type, second })
    }

    /// Returns the work of encoding a notice, in bytes of decoded and encoded objects.
    fn cost(&self, notice: &WatchNotice) -> usize {
        let WatchNotice::Change(change) = notice else { return EVENT_WORK };
        let work = EVENT_WORK + change.item.value().len();
        if self.is_copied() && change.item.is_decoded() { work / COPIED_BYTES_PER_WORK } else { work }
    }

    /// Whether the work pool encodes a notice: a large object, or an initial event that only this watch converts.
    fn is_costly(&self, notice: &WatchNotice, first: bool) -> bool {
        let WatchNotice::Change(change) = notice else { return false };
        match (&change.event, self.form(change.kind, first)) {
            (None, _) if !self.is_copied() => true,
            _ if self.cost(notice) <= MAX_INLINE_WORK => false,
            (Some(event), Some(form)) => !event.is_form_ready(form),
            _ => true,
        }
    }

    /// Whether objects are sent as copies of their stored JSON.
    fn is_copied(&self) -> bool {
        self.representation.format == Format::Json && self.representation.is_stored_form()
    }

    /// Encodes a notice. `first`: no object has been sent yet. A failure becomes an error event.
    fn encode(&self, notice: WatchNotice, first: bool) -> EncodedEvent {
        let format = self.representation.format;
        let encoded = match notice {
            WatchNotice::Change(change) => self.encode_object(change, first),
            WatchNotice::Bookmark { revision, initial } => {
                let object = self.representation.bookmark(revision, initial, first);
                object.map(|object| encode_event("BOOKMARK", &object, format).into())
            }
            WatchNotice::Failed(status) => Err(*status),
        };
        let encoded = encoded.unwrap_or_else(|status| error_event(&status, format).into());
        self.events.observe(encoded.bytes.len() + encoded.rest.len());
        encoded
    }

    fn encode_object(&self, change: ChangedObject, first: bool) -> Result<EncodedEvent, Status> {
        let ChangedObject { kind, item, revision, event: shared } = change;
        let event_type = match kind {
            EventKind::Added => "ADDED",
            EventKind::Modified => "MODIFIED",
            EventKind::Deleted => "DELETED",
        };
        let is_large = item.value().len() > MIN_CHUNKED_BYTES;
        let object = ResponseObject::Cached(item, revision);
        if self.is_copied() && is_large && shared.is_none() {
            return chunked_event(event_type, &object);
        }
        let encode = || {
            if self.is_copied() {
                return copied_event(event_type, &object);
            }
            let encoded = self.representation.event_object(&object, first)?;
            Ok(encode_event(event_type, &encoded, self.representation.format))
        };
        let encoded = match (&shared, self.form(kind, first)) {
            // Encoded once for all watches with the same representation.
            (Some(event), Some(form)) => event.form(form, encode),
            _ => encode(),
        };
        encoded.map(EncodedEvent::from)
    }
}

/// An encoded event.
struct EncodedEvent {
    /// The whole event, or the bytes before `rest`.
    bytes: Bytes,
    /// The remaining bytes of a large object in the watch cache; [`CLOSING`] follows them.
    rest: Bytes,
}

impl From<Bytes> for EncodedEvent {
    fn from(bytes: Bytes) -> Self {
        EncodedEvent { bytes, rest: Bytes::new() }
    }
}

/// The bytes after the object of a JSON event.
const CLOSING: &[u8] = b"}\n";

/// The resources that a watch shares with other requests of its flow and user: the threads of the work pool and the
/// byte limits.
pub(super) struct WatchShare {
    pool: Arc<WorkPool>,
    flow: Flow,
    /// None for a request without a user.
    share: Option<Arc<UserShare>>,
}

impl WatchShare {
    /// Returns what the watch of a request shares.
    pub(super) fn for_request(context: &RequestContext) -> Self {
        let share = context.share.get().cloned();
        WatchShare { pool: Arc::clone(&context.pool), flow: context.flow(), share }
    }

    /// Counts the large objects of a batch as unsent until the guards are dropped.
    fn hold_large_objects(&self, batch: &[WatchNotice]) -> Box<[HeldVersion]> {
        let Some(share) = &self.share else { return Box::default() };
        let changes = batch.iter().filter_map(|notice| match notice {
            WatchNotice::Change(change) => Some(change),
            WatchNotice::Bookmark { .. } | WatchNotice::Failed(_) => None,
        });
        let items = changes.flat_map(|change| match &change.event {
            Some(event) => [event.before(), event.after()],
            None => [Some(&change.item), None],
        });
        let values = items.flatten().map(|item| item.value());
        let large = values.filter(|value| value.len() > MAX_COALESCED_BYTES);
        large.map(|value| share.hold_version(value.clone())).collect()
    }

    /// Whether the unsent responses of the user are within the limits.
    fn is_within_limits(&self) -> bool {
        self.share.as_ref().is_none_or(|share| !share.exceeds_unsent_limit(None))
    }

    /// Waits until a watch of the user may take its next batch; None after [`MAX_BATCH_WAIT`].
    ///
    /// The inner value is a permit if the watch reads the engine's history.
    async fn begin_batch(&self, is_behind: bool) -> Option<Option<SemaphorePermit<'_>>> {
        let begin = async {
            loop {
                while !self.is_within_limits() {
                    tokio::time::sleep(LIMIT_CHECK_INTERVAL).await;
                }
                let share = self.share.as_ref().filter(|_| is_behind)?;
                let permit = share.begin_history_batch().await;
                if self.is_within_limits() {
                    return permit;
                }
            }
        };
        let permit = tokio::time::timeout(MAX_BATCH_WAIT, begin).await;
        permit.inspect_err(|_| tracing::debug!("ending a watch that waited too long for its next batch")).ok()
    }

    /// Encodes notices, each with a flag for the first object of the watch.
    async fn encode(&self, encoder: &Arc<Encoder>, notices: Vec<(WatchNotice, bool)>) -> Vec<EncodedEvent> {
        let format = encoder.representation.format;
        let encoder = Arc::clone(encoder);
        let work =
            async move { notices.into_iter().map(|(notice, first)| encoder.encode(notice, first)).collect() };
        self.pool.run(self.flow, work).await.unwrap_or_else(|shut_down| {
            vec![error_event(&Status::unavailable(shut_down.to_string(), 1), format).into()]
        })
    }
}

/// Runs a closure when it is dropped.
pub(super) struct OnDrop(Option<Box<dyn FnOnce() + Send>>);

impl OnDrop {
    /// Wraps a closure.
    pub(super) fn new(run: impl FnOnce() + Send + 'static) -> Self {
        OnDrop(Some(Box::new(run)))
    }
}

impl Drop for OnDrop {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run();
        }
    }
}

/// Returns the response body of a watch. `finish` runs when the stream ends in any way.
///
/// The body of a watch that cannot start is its error event.
pub(super) fn watch(start: WatchStart, encoder: Encoder, shared: WatchShare, finish: OnDrop) -> Body {
    match start {
        WatchStart::Expired(status) => Body::from(error_event(&status, encoder.representation.format)),
        WatchStart::Running(_) => {
            Body::stream(StreamBody::new(frames(WatchBody::new(start, encoder, shared, finish))))
        }
    }
}

fn frames(state: WatchBody) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    stream::unfold(state, |mut state| async move {
        let line = state.next_frame().await?;
        Some((Ok(Frame::data(line)), state))
    })
}

/// Returns the events of a watch as messages, without the framing of a body.
pub(super) fn messages(
    start: WatchStart,
    encoder: Encoder,
    shared: WatchShare,
    finish: OnDrop,
) -> impl Stream<Item = Bytes> + Send {
    let state = WatchBody::new(start, encoder, shared, finish);
    stream::unfold(state, |mut state| async move {
        let event = state.next_event().await?;
        Some((message(into_buffer(event), state.encoder.representation.format), state))
    })
}

/// Removes the body framing of an event.
fn message(line: Bytes, format: Format) -> Bytes {
    match format {
        Format::Protobuf(_) => line.slice(protobuf::FRAME_HEAD.min(line.len())..),
        Format::Json | Format::Yaml | Format::Cbor => line,
    }
}

struct WatchBody {
    /// None for a watch that cannot start: `ready` has its error event.
    watch_stream: Option<Box<WatchStream>>,
    encoder: Arc<Encoder>,
    /// Boxed, because most watches are idle and do not need it.
    shared: Box<WatchShare>,
    /// Whether no object has been sent yet.
    first: bool,
    /// Encoded events that are not sent yet.
    ready: VecDeque<EncodedEvent>,
    /// The unsent bytes of a large object in the watch cache.
    rest: Bytes,
    /// Guards that count the large objects of the batch as unsent.
    held_versions: Box<[HeldVersion]>,
    /// Notices that are not encoded yet.
    notices: std::vec::IntoIter<WatchNotice>,
    /// Work since the task last yielded, in bytes of decoded and encoded objects.
    work: usize,
    _finish: OnDrop,
}

/// Work after which the task yields, in bytes: about one millisecond.
const WORK_BEFORE_YIELD: usize = 64 * 1024;

/// Maximum work of an event that an I/O thread encodes, in bytes: about one millisecond.
const MAX_INLINE_WORK: usize = 64 * 1024;

/// Work of an event without its object, in bytes.
const EVENT_WORK: usize = 512;

/// Bytes that are copied in the time of decoding and encoding one byte.
const COPIED_BYTES_PER_WORK: usize = 16;

/// Maximum time for which a watch waits until it may take its next batch.
const MAX_BATCH_WAIT: Duration = Duration::from_secs(10);

/// Interval at which a waiting watch checks the unsent responses of its user.
const LIMIT_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Maximum total size of the small events in one frame, in bytes. An object that is larger counts as unsent.
const MAX_COALESCED_BYTES: usize = 16 * 1024;

impl WatchBody {
    fn new(start: WatchStart, encoder: Encoder, shared: WatchShare, finish: OnDrop) -> Self {
        let (watch_stream, ready) = match start {
            WatchStart::Running(watch_stream) => (Some(watch_stream), VecDeque::new()),
            WatchStart::Expired(status) => {
                let event = error_event(&status, encoder.representation.format);
                (None, VecDeque::from([event.into()]))
            }
        };
        WatchBody {
            watch_stream,
            encoder: Arc::new(encoder),
            shared: Box::new(shared),
            first: true,
            ready,
            rest: Bytes::new(),
            held_versions: Box::default(),
            notices: Vec::new().into_iter(),
            work: 0,
            _finish: finish,
        }
    }

    /// Returns the next frame: a chunk of a large object, or the next events, coalesced.
    async fn next_frame(&mut self) -> Option<Bytes> {
        if !self.rest.is_empty() {
            return Some(self.next_chunk());
        }
        let EncodedEvent { bytes, rest } = self.next_event().await?;
        if rest.is_empty() {
            let frame = self.coalesce(bytes);
            if self.ready.is_empty() && self.notices.as_slice().is_empty() {
                self.held_versions = Box::default();
            }
            return Some(frame);
        }
        self.rest = rest;
        Some(bytes)
    }

    /// Copies the next chunk of a large object, so that a buffered chunk does not keep the object in memory.
    fn next_chunk(&mut self) -> Bytes {
        let part = self.rest.split_to(self.rest.len().min(CHUNK_TARGET));
        self.work += part.len() / COPIED_BYTES_PER_WORK;
        if !self.rest.is_empty() {
            return Bytes::copy_from_slice(&part);
        }
        self.rest = Bytes::new();
        Bytes::from([&part, CLOSING].concat())
    }

    /// Returns the next event, already encoded; None at the end of the watch.
    async fn next_event(&mut self) -> Option<EncodedEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.work >= WORK_BEFORE_YIELD {
                self.work = 0;
                tokio::task::yield_now().await;
            }
            if self.notices.as_slice().is_empty() {
                self.take_batch().await?;
                tokio::task::consume_budget().await;
                continue;
            }
            self.encode_cheap();
            if self.ready.is_empty() {
                let notices = self.take_costly();
                // This seldom used future is boxed, because it would enlarge the state of every idle watch.
                let encoded = Box::pin(self.shared.encode(&self.encoder, notices)).await;
                self.ready.extend(encoded);
            }
        }
    }

    /// Takes the next batch of notices; None at the end of the watch.
    async fn take_batch(&mut self) -> Option<()> {
        self.held_versions = Box::default();
        let watch_stream = self.watch_stream.as_mut()?;
        let is_behind = watch_stream.is_behind();
        let permit = if is_behind || !self.shared.is_within_limits() {
            let watch_end = watch_stream.wait_until_finished();
            let permit_or_end = async {
                tokio::select! {
                    permit = self.shared.begin_batch(is_behind) => permit,
                    () = watch_end => None,
                }
            };
            // The box keeps this rarely used future out of the state of idle watches.
            Box::pin(permit_or_end).await?
        } else {
            None
        };
        let batch = watch_stream.next().await?;
        self.held_versions = self.shared.hold_large_objects(&batch);
        drop(permit);
        self.notices = batch.into_iter();
        Some(())
    }

    /// Encodes notices until the task must yield or the next notice is costly.
    fn encode_cheap(&mut self) {
        while self.work < WORK_BEFORE_YIELD
            && let Some((notice, first)) = self.take_notice(false)
        {
            self.work += self.encoder.cost(&notice);
            self.ready.push_back(self.encoder.encode(notice, first));
        }
    }

    /// Returns the next notices that the work pool encodes as one unit.
    fn take_costly(&mut self) -> Vec<(WatchNotice, bool)> {
        let (mut notices, mut work) = (Vec::new(), 0);
        while work < MAX_INLINE_WORK
            && let Some((notice, first)) = self.take_notice(true)
        {
            work += self.encoder.cost(&notice);
            notices.push((notice, first));
        }
        notices
    }

    /// Takes the next notice, with a flag for the first object of the watch.
    ///
    /// Returns None if there is no notice, or if the cost of the notice is not as requested.
    fn take_notice(&mut self, is_costly: bool) -> Option<(WatchNotice, bool)> {
        if self.encoder.is_costly(self.notices.as_slice().first()?, self.first) != is_costly {
            return None;
        }
        let notice = self.notices.next()?;
        let first = !matches!(notice, WatchNotice::Failed(_)) && std::mem::take(&mut self.first);
        Some((notice, first))
    }

    /// Appends the following encoded events to an event, within the size limit.
    fn coalesce(&mut self, event: Bytes) -> Bytes {
        if event.len() >= MAX_COALESCED_BYTES || self.ready.is_empty() {
            return event;
        }
        let mut frame = Vec::with_capacity(MAX_COALESCED_BYTES);
        frame.extend_from_slice(&event);
        while let Some(next) = self.ready.pop_front_if(|next| {
            next.rest.is_empty() && frame.len() + next.bytes.len() <= MAX_COALESCED_BYTES
        }) {
            frame.extend_from_slice(&next.bytes);
        }
        Bytes::from(frame)
    }
}

/// Encodes an event with a copy of the stored JSON.
fn copied_event(event_type: &str, object: &ResponseObject) -> Result<Bytes, Status> {
    let mut out = begin_json_event(event_type, 1024);
    object.write_json(&mut out, true)?;
    out.extend_from_slice(CLOSING);
    Ok(Bytes::from(out))
}

/// Encodes the beginning of an event; the rest of the object remains in the watch cache.
fn chunked_event(event_type: &str, object: &ResponseObject) -> Result<EncodedEvent, Status> {
    let mut out = begin_json_event(event_type, 1024);
    let rest = object.split_json(&mut out, true)?;
    if rest.is_empty() {
        out.extend_from_slice(CLOSING);
    }
    Ok(EncodedEvent { bytes: Bytes::from(out), rest })
}

/// Returns an event with all its bytes in one buffer.
fn into_buffer(event: EncodedEvent) -> Bytes {
    let EncodedEvent { bytes, rest } = event;
    if rest.is_empty() { bytes } else { Bytes::from([&bytes, &rest, CLOSING].concat()) }
}

/// Encodes an event with an encoded object.
fn encode_event(event_type: &str, object: &[u8], format: Format) -> Bytes {
    match format {
        Format::Protobuf(_) => protobuf::frame(event_type, object),
        Format::Json | Format::Yaml => {
            let mut out = begin_json_event(event_type, object.len());
            out.extend_from_slice(object);
            out.extend_from_slice(CLOSING);
            Bytes::from(out)
        }
        Format::Cbor => {
            let object: Value = serde_json::from_slice(object).unwrap_or_default();
            Bytes::from(codec::cbor::encode(&json!({"type": event_type, "object": object})))
        }
    }
}

fn begin_json_event(event_type: &str, size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(size + 40);
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(event_type.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    out
}

fn error_event(status: &Status, format: Format) -> Bytes {
    let value = status.to_value();
    match format {
        Format::Protobuf(_) => encode_event("ERROR", &protobuf::document(&value).unwrap_or_default(), format),
        Format::Json | Format::Yaml | Format::Cbor => {
            encode_event("ERROR", &Encoding::Compact.document(&value), format)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Most watches are idle, so rarely used futures are boxed and not part of the state of a watch.
    #[test]
    fn idle_watch_state_fits_in_1024_bytes() {
        fn size<S>(_: fn(WatchBody) -> S) -> usize {
            size_of::<S>()
        }
        let size = size(frames);
        println!("{size} bytes, state {} bytes", size_of::<WatchBody>());
        assert!(size <= 1024, "{size} bytes");
    }
}
