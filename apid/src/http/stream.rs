//! The body of a watch: one JSON document a line.
//!
//! # Concurrency
//!
//! Nothing runs while the client does not read: the next events are taken and encoded when the connection asks for more.
//! So a slow client costs no memory; when the history has left it behind, it is told to read anew.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;

use apimachinery::status::Status;
use bytes::Bytes;
use futures_util::stream;
use http_body::Frame;
use http_body_util::StreamBody;
use kinds::Resource;
use serving::body::Body;

use super::negotiate::Shape;
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
    pub(super) shape: Shape,
    /// `includeObject` of Tables.
    pub(super) include_object: String,
    /// Held until the stream has ended, however it does.
    pub(super) _finish: Finish,
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

/// The forms of an event that all watchers of the plain kind share, by type.
const FORM_ADDED: u32 = 0;
const FORM_MODIFIED: u32 = 1;
const FORM_DELETED: u32 = 2;

/// The stream of a watch.
pub(super) fn watch(watching: Box<Watching>, encoder: Encoder) -> Body {
    let state = State { watching, encoder, first: true, ready: VecDeque::new() };
    let lines = stream::unfold(state, |mut state| async move {
        let line = state.next().await?;
        Some((Ok::<_, Infallible>(Frame::data(line)), state))
    });
    Body::stream(StreamBody::new(lines))
}

/// The stream of a watch that cannot begin.
pub(super) fn failed(status: &Status, finish: Finish) -> Body {
    drop(finish);
    Body::from(error_line(status))
}

struct State {
    watching: Box<Watching>,
    encoder: Encoder,
    /// No object was sent yet.
    first: bool,
    ready: VecDeque<Bytes>,
}

/// Small lines are sent together up to this size.
const COALESCED: usize = 16 * 1024;

impl State {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                return Some(self.coalesce(line));
            }
            for notice in self.watching.next().await? {
                let line = self.encode(notice).unwrap_or_else(|status| Bytes::from(error_line(&status)));
                self.ready.push_back(line);
            }
        }
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
            Notice::Added(change) => self.object("ADDED", FORM_ADDED, change),
            Notice::Modified(change) => self.object("MODIFIED", FORM_MODIFIED, change),
            Notice::Deleted(change) => self.object("DELETED", FORM_DELETED, change),
            Notice::Bookmark { revision, initial } => {
                let object = self.representation()?.bookmark(revision, initial);
                Ok(line("BOOKMARK", &object))
            }
            Notice::Failed(status) => Ok(Bytes::from(error_line(&status))),
        }
    }

    fn object(&mut self, kind: &str, form: u32, change: Change) -> Result<Bytes, Status> {
        let first = std::mem::take(&mut self.first);
        let shown = Shown::Cached(change.item, change.revision);
        match (&change.event, self.encoder.shape) {
            // Encoded once for all who watch it.
            (Some(event), Shape::Own) => event.form(form, || own(kind, &shown)),
            (None, Shape::Own) => own(kind, &shown),
            _ => Ok(line(kind, &self.representation()?.event_object(&shown, first)?)),
        }
    }

    fn representation(&self) -> Result<Representation<'_>, Status> {
        let Encoder { plane, resource, version, shape, include_object, .. } = &self.encoder;
        Representation::new(plane, resource, version, *shape, include_object)
    }
}

fn own(kind: &str, shown: &Shown) -> Result<Bytes, Status> {
    let mut out = begin(kind, 1024);
    shown.write_json(&mut out, true)?;
    out.extend_from_slice(b"}\n");
    Ok(Bytes::from(out))
}

fn line(kind: &str, object: &[u8]) -> Bytes {
    let mut out = begin(kind, object.len());
    out.extend_from_slice(object);
    out.extend_from_slice(b"}\n");
    Bytes::from(out)
}

fn begin(kind: &str, size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(size + 40);
    out.extend_from_slice(b"{\"type\":\"");
    out.extend_from_slice(kind.as_bytes());
    out.extend_from_slice(b"\",\"object\":");
    out
}

fn error_line(status: &Status) -> Vec<u8> {
    line("ERROR", status.to_value().to_string().as_bytes()).into()
}
