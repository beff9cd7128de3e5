//! Watch response bodies: one JSON document per line, a CBOR sequence, or Protobuf frames.
//!
//! # Concurrency
//!
//! No task runs while the client does not read: apid takes and encodes the next events when the connection
//! asks for more. A slow client therefore holds the send buffer of its connection and one batch of encoded
//! events. Until the client has read them, the watch also holds its initial objects. The watch cache owns
//! these objects; the watch keeps them alive after the cache has replaced them. apid ends the watch of a
//! client that falls behind the event history; the client must resume or list again.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use apimachinery::codec;
use apimachinery::status::Status;
use bytes::Bytes;
use futures_util::{Stream, stream};
use http_body::Frame;
use http_body_util::StreamBody;
use kinds::Resource;
use serde_json::{Value, json};
use serving::body::Body;

use super::negotiate::{Format, Negotiation, Shape};
use super::protobuf;
use super::representation::Representation;
use crate::server_state::ServerState;
use crate::verbs::{ChangedObject, ResponseObject, WatchNotice, WatchStream};

/// Parameters for encoding the events of a watch.
pub(super) struct Encoder {
    /// The shared state of the server.
    pub(super) server_state: Arc<ServerState>,
    /// The watched kind.
    pub(super) resource: Arc<Resource>,
    /// The version of its objects.
    pub(super) version: String,
    /// The representation of its objects.
    pub(super) negotiated: Negotiation,
    /// The `includeObject` parameter of Tables.
    pub(super) include_object: String,
    /// Runs its closure when the stream ends in any way.
    pub(super) _finish: OnDrop,
}

impl Encoder {
    /// Returns the cache key of an encoded event: the kind and version, and the other parameters.
    ///
    /// `first`: the first event of the watch. The first Table of a watch has the column definitions. Tables are shared
    /// within one second, because cells show ages. None: the event is never shared.
    fn form(&self, kind: EventType, first: bool) -> Option<(usize, u64)> {
        let encoding: u64 = match self.negotiated.format {
            Format::Json | Format::Yaml => 0,
            Format::Protobuf(_) => 1,
            Format::Cbor => 2,
        };
        let (shape, second): (u64, u64) = match self.negotiated.shape {
            Shape::Own => (0, 0),
            Shape::Metadata("v1") => (1, 0),
            Shape::Metadata(_) => (2, 0),
            Shape::Table(version) => {
                let include = match self.include_object.as_str() {
                    "None" => 0,
                    "Object" => 1,
                    _ => 2,
                };
                let table = 6 * u64::from(first) + 3 * u64::from(version == "v1") + include;
                (3 + table, self.server_state.clock.monotonic().as_secs())
            }
            Shape::AggregatedDiscovery(_) => return None,
        };
        let shown = Arc::as_ptr(&self.resource).addr();
        Some((shown, (((second << 8) | shape) * 3 + encoding) * 3 + kind as u64))
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

/// The types of object events.
#[derive(Clone, Copy)]
enum EventType {
    Added,
    Modified,
    Deleted,
}

impl EventType {
    fn as_str(self) -> &'static str {
        match self {
            EventType::Added => "ADDED",
            EventType::Modified => "MODIFIED",
            EventType::Deleted => "DELETED",
        }
    }
}

/// Returns the response body of a watch.
pub(super) fn watch(watching: Box<WatchStream>, encoder: Encoder) -> Body {
    Body::stream(StreamBody::new(frames(State::new(watching, encoder))))
}

fn frames(state: State) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    stream::unfold(state, |mut state| async move {
        let line = state.next().await?;
        Some((Ok(Frame::data(line)), state))
    })
}

/// Returns the events of a watch as messages, without the framing of a body.
pub(super) fn messages(watching: Box<WatchStream>, encoder: Encoder) -> impl Stream<Item = Bytes> + Send {
    let state = State::new(watching, encoder);
    stream::unfold(state, |mut state| async move {
        let line = state.event().await?;
        Some((message(line, state.encoder.negotiated.format), state))
    })
}

/// Returns the single message of a watch that cannot start.
pub(super) fn failed_message(
    status: &Status,
    format: Format,
    finish: OnDrop,
) -> impl Stream<Item = Bytes> + Send + use<> {
    drop(finish);
    stream::iter([message(error(status, format), format)])
}

/// Removes the body framing of an event.
fn message(line: Bytes, format: Format) -> Bytes {
    match format {
        Format::Protobuf(_) => line.slice(protobuf::FRAME_HEAD.min(line.len())..),
        Format::Json | Format::Yaml | Format::Cbor => line,
    }
}

/// Returns the response body of a watch that cannot start.
pub(super) fn failed(status: &Status, format: Format, finish: OnDrop) -> Body {
    drop(finish);
    Body::from(error(status, format))
}

struct State {
    watching: Box<WatchStream>,
    encoder: Encoder,
    /// Whether no object has been sent yet.
    first: bool,
    ready: VecDeque<Bytes>,
    /// Notices that are not encoded yet.
    notices: std::vec::IntoIter<WatchNotice>,
    /// Work since the task last yielded, in bytes of decoded and encoded objects.
    work: usize,
}

/// Work after which the task yields, in bytes: about one millisecond.
const WORK_BEFORE_YIELD: usize = 64 * 1024;

/// Work of an event beside its object, in bytes.
const EVENT_WORK: usize = 512;

/// Bytes that are copied in the time of decoding and encoding one byte.
const COPIED_BYTES_PER_WORK: usize = 16;

/// Maximum size of small events that are sent in one frame, in bytes.
const MAX_COALESCED_BYTES: usize = 16 * 1024;

impl State {
    fn new(watching: Box<WatchStream>, encoder: Encoder) -> Self {
        let (ready, notices) = (VecDeque::new(), Vec::new().into_iter());
        State { watching, encoder, first: true, ready, notices, work: 0 }
    }

    /// Returns the next events, coalesced into one frame.
    async fn next(&mut self) -> Option<Bytes> {
        let line = self.event().await?;
        Some(self.coalesce(line))
    }

    /// Returns the next event.
    async fn event(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            if self.work >= WORK_BEFORE_YIELD {
                self.work = 0;
                tokio::task::yield_now().await;
            }
            if self.notices.as_slice().is_empty() {
                self.notices = self.watching.next().await?.into_iter();
            }
            self.encode_some();
        }
    }

    /// Encodes notices until the task must yield.
    fn encode_some(&mut self) {
        while self.work < WORK_BEFORE_YIELD
            && let Some(notice) = self.notices.next()
        {
            self.work += self.cost(&notice);
            let format = self.encoder.negotiated.format;
            let line = self.encode(notice).unwrap_or_else(|status| error(&status, format));
            self.ready.push_back(line);
        }
    }

    /// Returns the work of encoding a notice.
    fn cost(&self, notice: &WatchNotice) -> usize {
        match notice {
            WatchNotice::Added(change) | WatchNotice::Modified(change) | WatchNotice::Deleted(change) => {
                let size = change.item.value().len();
                if self.is_copied() { (EVENT_WORK + size) / COPIED_BYTES_PER_WORK } else { EVENT_WORK + size }
            }
            WatchNotice::Bookmark { .. } | WatchNotice::Failed(_) => EVENT_WORK,
        }
    }

    /// Whether objects are sent in their stored form.
    fn is_copied(&self) -> bool {
        let Negotiation { format, shape } = self.encoder.negotiated;
        shape == Shape::Own && format == Format::Json && !self.encoder.resource.is_converted()
    }

    /// Appends the following encoded events to an event, within the size limit.
    fn coalesce(&mut self, line: Bytes) -> Bytes {
        if line.len() >= MAX_COALESCED_BYTES || self.ready.is_empty() {
            return line;
        }
        let mut all = Vec::with_capacity(MAX_COALESCED_BYTES);
        all.extend_from_slice(&line);
        while let Some(next) = self.ready.pop_front_if(|next| all.len() + next.len() <= MAX_COALESCED_BYTES) {
            all.extend_from_slice(&next);
        }
        Bytes::from(all)
    }

    fn encode(&mut self, notice: WatchNotice) -> Result<Bytes, Status> {
        match notice {
            WatchNotice::Added(change) => self.object(EventType::Added, change),
            WatchNotice::Modified(change) => self.object(EventType::Modified, change),
            WatchNotice::Deleted(change) => self.object(EventType::Deleted, change),
            WatchNotice::Bookmark { revision, initial } => {
                let object = self.representation()?.bookmark(revision, initial)?;
                Ok(event("BOOKMARK", &object, self.encoder.negotiated.format))
            }
            WatchNotice::Failed(status) => Ok(error(&status, self.encoder.negotiated.format)),
        }
    }

    fn object(&mut self, kind: EventType, change: ChangedObject) -> Result<Bytes, Status> {
        let first = std::mem::take(&mut self.first);
        let format = self.encoder.negotiated.format;
        let shown = ResponseObject::Cached(change.item, change.revision);
        let encode = || {
            if self.is_copied() {
                return copied(kind.as_str(), &shown);
            }
            let object = self.representation()?.event_object(&shown, first)?;
            Ok(event(kind.as_str(), &object, format))
        };
        match (&change.event, self.encoder.form(kind, first)) {
            // Encoded once for all watches with the same representation.
            (Some(event), Some(form)) => event.form(form, encode),
            _ => encode(),
        }
    }

    fn representation(&self) -> Result<Representation, Status> {
        let Encoder { server_state, resource, version, negotiated, include_object, .. } = &self.encoder;
        Representation::new(server_state, resource, version, *negotiated, include_object)
    }
}

/// Encodes an event with a copy of the stored JSON.
fn copied(kind: &str, shown: &ResponseObject) -> Result<Bytes, Status> {
    let mut out = begin(kind, 1024);
    shown.write_json(&mut out, true)?;
    out.extend_from_slice(b"}\n");
    Ok(Bytes::from(out))
}

/// Encodes an event with an encoded object.
fn event(kind: &str, object: &[u8], format: Format) -> Bytes {
    match format {
        Format::Protobuf(_) => protobuf::frame(kind, object),
        Format::Json | Format::Yaml => {
            let mut out = begin(kind, object.len());
            out.extend_from_slice(object);
            out.extend_from_slice(b"}\n");
            Bytes::from(out)
        }
        Format::Cbor => {
            let object: Value = serde_json::from_slice(object).unwrap_or_default();
            Bytes::from(codec::cbor::encode(&json!({"type": kind, "object": object})))
        }
    }
}

fn begin(kind: &str, size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(size + 40);
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    out
}

fn error(status: &Status, format: Format) -> Bytes {
    let value = status.to_value();
    match format {
        Format::Protobuf(_) => event("ERROR", &protobuf::document(&value).unwrap_or_default(), format),
        Format::Json | Format::Yaml | Format::Cbor => event("ERROR", value.to_string().as_bytes(), format),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rarely used futures are boxed, because most of the many watches are idle.
    #[test]
    fn idle_watch_state_fits_in_1024_bytes() {
        fn size<S>(_: fn(State) -> S) -> usize {
            size_of::<S>()
        }
        let size = size(frames);
        println!("{size} bytes, state {} bytes", size_of::<State>());
        assert!(size <= 1024, "{size} bytes");
    }
}
