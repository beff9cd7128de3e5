//! The body of a watch: one JSON document a line, one CBOR item after another, or Protobuf in frames.
//!
//! # Concurrency
//!
//! Nothing runs while the client does not read: the next events are taken and encoded when the connection asks for more.
//! So a slow client holds what the connection buffers, one batch of encoded events, and, until it has read them, the objects
//! that existed when the watch began: these are the cache's own, and are kept alive where the cache has moved on. When the
//! history has left a client behind, it is told to read anew.

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

use super::negotiate::{Format, Negotiated, Shape};
use super::protobuf;
use super::represent::Representation;
use crate::plane::Plane;
use crate::verbs::{Change, Notice, Shown, Watching};

/// What a stream needs beside the notices.
pub(super) struct Encoder {
    /// The process.
    pub(super) plane: Arc<Plane>,
    /// The kind watched.
    pub(super) resource: Arc<Resource>,
    /// The version of its objects.
    pub(super) version: String,
    /// How they are represented.
    pub(super) negotiated: Negotiated,
    /// `includeObject` of Tables.
    pub(super) include_object: String,
    /// Held until the stream has ended, however it does.
    pub(super) _finish: Finish,
}

impl Encoder {
    /// What tells the encodings of one event apart: the kind and version that is shown, and the rest as a number. None for
    /// what is made for one watch: the first Table, which has the columns. Others are shared within a second, since cells
    /// show ages.
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
            Shape::Table(version) if !first => {
                let include = match self.include_object.as_str() {
                    "None" => 0,
                    "Object" => 1,
                    _ => 2,
                };
                (3 + 3 * u64::from(version == "v1") + include, self.plane.clock.monotonic().as_secs())
            }
            Shape::Table(_) | Shape::AggregatedDiscovery(_) => return None,
        };
        let shown = Arc::as_ptr(&self.resource).addr();
        Some((shown, (((second << 8) | shape) * 3 + encoding) * 3 + kind as u64))
    }
}

/// Runs a closure when it is dropped.
pub(super) struct Finish(Option<Box<dyn FnOnce() + Send>>);

impl Finish {
    /// Of a closure.
    pub(super) fn new(run: impl FnOnce() + Send + 'static) -> Self {
        Finish(Some(Box::new(run)))
    }
}

impl Drop for Finish {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run();
        }
    }
}

/// The types of events of objects.
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

/// The stream of a watch.
pub(super) fn watch(watching: Box<Watching>, encoder: Encoder) -> Body {
    Body::stream(StreamBody::new(frames(State::new(watching, encoder))))
}

fn frames(state: State) -> impl Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    stream::unfold(state, |mut state| async move {
        let line = state.next().await?;
        Some((Ok(Frame::data(line)), state))
    })
}

/// The events of a watch one by one, without what frames them in a body.
pub(super) fn messages(watching: Box<Watching>, encoder: Encoder) -> impl Stream<Item = Bytes> + Send {
    let state = State::new(watching, encoder);
    stream::unfold(state, |mut state| async move {
        let line = state.event().await?;
        Some((message(line, state.encoder.negotiated.format), state))
    })
}

/// The one message of a watch that cannot begin.
pub(super) fn failed_message(
    status: &Status,
    format: Format,
    finish: Finish,
) -> impl Stream<Item = Bytes> + Send + use<> {
    drop(finish);
    stream::iter([message(error(status, format), format)])
}

/// An event without what frames it in a body.
fn message(line: Bytes, format: Format) -> Bytes {
    match format {
        Format::Protobuf(_) => line.slice(protobuf::FRAME_HEAD.min(line.len())..),
        Format::Json | Format::Yaml | Format::Cbor => line,
    }
}

/// The stream of a watch that cannot begin.
pub(super) fn failed(status: &Status, format: Format, finish: Finish) -> Body {
    drop(finish);
    Body::from(error(status, format))
}

struct State {
    watching: Box<Watching>,
    encoder: Encoder,
    /// No object was sent yet.
    first: bool,
    ready: VecDeque<Bytes>,
    /// What is not encoded yet.
    notices: std::vec::IntoIter<Notice>,
    /// The work that was done since the task yielded, as bytes of objects whose trees are encoded.
    work: usize,
}

/// The work after which a task yields: about a millisecond.
const WORK: usize = 64 * 1024;

/// Bytes of work that an event costs beside those of its object.
const EVENT: usize = 512;

/// Bytes of an object that are copied in the time in which one byte is decoded and encoded.
const COPIED: usize = 16;

/// Small lines are sent together up to this size.
const COALESCED: usize = 16 * 1024;

impl State {
    fn new(watching: Box<Watching>, encoder: Encoder) -> Self {
        let (ready, notices) = (VecDeque::new(), Vec::new().into_iter());
        State { watching, encoder, first: true, ready, notices, work: 0 }
    }

    /// The next events, as large as is good to send at once.
    async fn next(&mut self) -> Option<Bytes> {
        let line = self.event().await?;
        Some(self.coalesce(line))
    }

    /// The next event.
    async fn event(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(line);
            }
            if self.work >= WORK {
                self.work = 0;
                tokio::task::yield_now().await;
            }
            if self.notices.as_slice().is_empty() {
                self.notices = self.watching.next().await?.into_iter();
            }
            self.encode_some();
        }
    }

    /// Encodes notices until the task has to yield.
    fn encode_some(&mut self) {
        while self.work < WORK
            && let Some(notice) = self.notices.next()
        {
            self.work += self.cost(&notice);
            let format = self.encoder.negotiated.format;
            let line = self.encode(notice).unwrap_or_else(|status| error(&status, format));
            self.ready.push_back(line);
        }
    }

    /// The work of encoding a notice.
    fn cost(&self, notice: &Notice) -> usize {
        match notice {
            Notice::Added(change) | Notice::Modified(change) | Notice::Deleted(change) => {
                let size = change.item.value().len();
                if self.is_copied() { (EVENT + size) / COPIED } else { EVENT + size }
            }
            Notice::Bookmark { .. } | Notice::Failed(_) => EVENT,
        }
    }

    /// Whether objects are sent as they are stored.
    fn is_copied(&self) -> bool {
        let Negotiated { format, shape } = self.encoder.negotiated;
        shape == Shape::Own && format == Format::Json && !self.encoder.resource.is_converted()
    }

    /// A line with those after it that are ready, too.
    fn coalesce(&mut self, line: Bytes) -> Bytes {
        if line.len() >= COALESCED || self.ready.is_empty() {
            return line;
        }
        let mut all = Vec::with_capacity(COALESCED);
        all.extend_from_slice(&line);
        while let Some(next) = self.ready.pop_front_if(|next| all.len() + next.len() <= COALESCED) {
            all.extend_from_slice(&next);
        }
        Bytes::from(all)
    }

    fn encode(&mut self, notice: Notice) -> Result<Bytes, Status> {
        match notice {
            Notice::Added(change) => self.object(EventType::Added, change),
            Notice::Modified(change) => self.object(EventType::Modified, change),
            Notice::Deleted(change) => self.object(EventType::Deleted, change),
            Notice::Bookmark { revision, initial } => {
                let object = self.representation()?.bookmark(revision, initial)?;
                Ok(event("BOOKMARK", &object, self.encoder.negotiated.format))
            }
            Notice::Failed(status) => Ok(error(&status, self.encoder.negotiated.format)),
        }
    }

    fn object(&mut self, kind: EventType, change: Change) -> Result<Bytes, Status> {
        let first = std::mem::take(&mut self.first);
        let format = self.encoder.negotiated.format;
        let shown = Shown::Cached(change.item, change.revision);
        let encode = || {
            if self.is_copied() {
                return copied(kind.as_str(), &shown);
            }
            let object = self.representation()?.event_object(&shown, first)?;
            Ok(event(kind.as_str(), &object, format))
        };
        match (&change.event, self.encoder.form(kind, first)) {
            // Encoded once for all who see the same.
            (Some(event), Some(form)) => event.form(form, encode),
            _ => encode(),
        }
    }

    fn representation(&self) -> Result<Representation, Status> {
        let Encoder { plane, resource, version, negotiated, include_object, .. } = &self.encoder;
        Representation::new(plane, resource, version, *negotiated, include_object)
    }
}

/// A line with an object whose bytes are copied.
fn copied(kind: &str, shown: &Shown) -> Result<Bytes, Status> {
    let mut out = begin(kind, 1024);
    shown.write_json(&mut out, true)?;
    out.extend_from_slice(b"}\n");
    Ok(Bytes::from(out))
}

/// An event with an encoded object.
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

    /// What is rarely awaited stands in boxes of its own: there are many watches, and most are idle.
    #[test]
    fn an_idle_watch_is_small() {
        fn size<S>(_: fn(State) -> S) -> usize {
            size_of::<S>()
        }
        let size = size(frames);
        println!("{size} bytes, {} of them the state", size_of::<State>());
        assert!(size <= 1024, "{size} bytes");
    }
}
