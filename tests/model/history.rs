//! History of client operations and responses with times: the input of the checks.
//!
//! # Invariants
//!
//! INVARIANT (no response of a failed server): the history contains no response after the moment of a power
//! cut. That server continued on a disk that the cut discarded. The outcome of its writes is unknown.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::model::collections::{Key, ObservedObject, Scope, WriteId};

/// Time since the start of the history.
pub type Time = Duration;

/// Operation on one object.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Number of the operation.
    pub id: WriteId,
    /// Time of the request.
    pub begin: Time,
    /// Time of the response; for an unknown outcome, the time after which the operation cannot happen.
    pub end: Time,
    /// Key of the object.
    pub key: Key,
    /// Requested action.
    pub action: Action,
    /// Group that a write sets, as index in [`crate::model::collections::GROUPS`].
    pub group: usize,
    /// Outcome of the operation according to the response.
    pub outcome: Outcome,
}

/// Action of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// POST.
    Create,
    /// PUT without a resourceVersion, of a kind that PUT can create: succeeds only if the object does not
    /// exist.
    CreateByPut,
    /// PUT or PATCH, conditional on the state in [`Expected`], or unconditional.
    Write(Option<Expected>),
    /// PUT with a resourceVersion, of a kind that PUT can create: succeeds on this state, or if the object
    /// does not exist.
    Put(Expected),
    /// DELETE, under the same conditions as [`Action::Write`].
    Delete(Option<Expected>),
    /// GET.
    Get(At),
}

/// Precondition of a write: the state of the object that the client observed last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Revision of the object.
    pub revision: u64,
    /// Number of the write that wrote the observed content.
    pub write: WriteId,
}

/// Revision that a read requests by `resourceVersion` and `resourceVersionMatch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// No resourceVersion.
    MostRecent,
    /// `resourceVersion=0`: any state.
    Any,
    /// At least this revision.
    NotOlderThan(u64),
    /// Exactly this revision.
    Exact(u64),
}

/// Outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The object in the response was read, created or changed.
    Done(ObservedObject),
    /// The object was deleted.
    Deleted,
    /// The object does not exist.
    Missing,
    /// The object exists already.
    Exists,
    /// The precondition failed.
    Conflict,
    /// Another rejection, with code and message. It has no effect, and says nothing about the object.
    Refused(u16, String),
    /// There is no usable response: the operation may or may not have taken effect.
    Unknown,
}

impl Operation {
    /// Whether the operation changes the object on success.
    pub fn writes(&self) -> bool {
        !matches!(self.action, Action::Get(_))
    }
}

/// A deletecollection request.
#[derive(Clone, Debug)]
pub struct CollectionDelete {
    /// Time of the request.
    pub begin: Time,
    /// Time of the response; without a response, the time after which no object is deleted any more.
    pub end: Time,
    /// Scope of the deleted objects.
    pub scope: Scope,
    /// Deleted objects in the response; None without a response.
    pub removed: Option<Vec<ObservedObject>>,
}

/// A list, read in one or several pages.
#[derive(Clone, Debug)]
pub struct List {
    /// Scope of the list.
    pub scope: Scope,
    /// Requested revision.
    pub at: At,
    /// Requested page size (`limit`); 0: none.
    pub limit: usize,
    /// Received pages.
    pub pages: Vec<ListPage>,
    /// Reason why no further page was read.
    pub ending: ListEnding,
}

/// Page of a list.
#[derive(Clone, Debug)]
pub struct ListPage {
    /// Time of the request.
    pub begin: Time,
    /// Time of the response.
    pub end: Time,
    /// Revision of the list.
    pub revision: u64,
    /// Objects of the model.
    pub items: Vec<ObservedObject>,
    /// Whether the page contained objects that do not belong to the model.
    pub foreign: bool,
    /// The field `remainingItemCount` of the page.
    pub remaining: Option<usize>,
}

/// End of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListEnding {
    /// All pages were read.
    Complete,
    /// The client or the server stopped.
    Cut,
    /// The server returned 410 at this time, for this revision.
    Expired(Time, u64),
}

/// A watch request and its events.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Number of the stream.
    pub id: u64,
    /// Scope of the watch.
    pub scope: Scope,
    /// Start position.
    pub start: Start,
    /// Number of the stream that this stream continues.
    pub resumes: Option<u64>,
    /// Whether bookmarks were requested.
    pub bookmarks: bool,
    /// Time of the request.
    pub begin: Time,
    /// Received notices.
    pub notices: Vec<(Time, Notice)>,
    /// End of the stream.
    pub ending: StreamEnding,
}

/// Start position of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// The changes after this revision.
    After(u64),
    /// Without a resourceVersion or with 0: the current state, then changes.
    State(At),
    /// With `sendInitialEvents`: the current state, a bookmark, then changes.
    Streamed,
}

/// An event of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// ADDED.
    Added(ObservedObject),
    /// MODIFIED.
    Modified(ObservedObject),
    /// DELETED.
    Deleted(ObservedObject),
    /// BOOKMARK.
    Bookmark {
        /// All events up to this revision were delivered.
        revision: u64,
        /// Marks the end of the initial events.
        initial: bool,
    },
}

impl Notice {
    /// Returns the revision of the event.
    pub fn revision(&self) -> u64 {
        match self {
            Notice::Added(seen) | Notice::Modified(seen) | Notice::Deleted(seen) => seen.revision,
            Notice::Bookmark { revision, .. } => *revision,
        }
    }
}

/// End of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEnding {
    /// The client or the server stopped.
    Closed,
    /// 410 before the first event.
    Expired(Time),
    /// 410 after events: the watch was too slow for the event buffer.
    Lagged(Time),
}

impl Stream {
    /// Returns the revision from which a new stream can continue.
    ///
    /// None if the stream may have delivered only a part of the initial events.
    pub fn position(&self) -> Option<u64> {
        let last = self.notices.last().map(|(_, notice)| notice.revision());
        match self.start {
            Start::After(revision) => Some(last.unwrap_or(revision).max(revision)),
            Start::State(_) | Start::Streamed => {
                let is_bookmark = |(_, notice): &(Time, Notice)| matches!(notice, Notice::Bookmark { .. });
                self.notices.iter().any(is_bookmark).then_some(last).flatten()
            }
        }
    }
}

/// Complete history.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Operations on objects.
    pub operations: Vec<Operation>,
    /// Deletes of collections.
    pub removals: Vec<CollectionDelete>,
    /// Lists.
    pub lists: Vec<List>,
    /// Watches.
    pub streams: Vec<Stream>,
    /// Fences: collections and revisions of the last writes, for whose delivery a session waits.
    pub fences: Vec<(usize, u64)>,
    /// Begin and end of each flood, after which slow watches may get 410.
    pub floods: Vec<(Time, Time)>,
    /// Violations that clients noticed themselves, such as unexpected status codes.
    pub direct_violations: Vec<String>,
}

impl History {
    /// Adds the history of one server, which ended before `dead`. `cut` is the time of a power cut, if any.
    pub fn append(&mut self, mut part: History, cut: Option<Time>, dead: Time) {
        let cut = cut.unwrap_or(Time::MAX);
        // INVARIANT (no response of a failed server): drop what was received after the cut.
        for operation in &mut part.operations {
            if operation.outcome == Outcome::Unknown || operation.end > cut {
                operation.outcome = Outcome::Unknown;
                operation.end = dead;
            }
        }
        part.operations.retain(|operation| operation.writes() || operation.outcome != Outcome::Unknown);
        for removal in &mut part.removals {
            if removal.removed.is_none() || removal.end > cut {
                removal.removed = None;
                removal.end = dead;
            }
        }
        for list in &mut part.lists {
            let whole = list.pages.len();
            list.pages.retain(|page| page.end <= cut);
            let late = matches!(list.ending, ListEnding::Expired(at, _) if at > cut);
            if list.pages.len() < whole || late {
                list.ending = ListEnding::Cut;
            }
        }
        part.streams.retain(|stream| stream.begin <= cut);
        for stream in &mut part.streams {
            stream.notices.retain(|(at, _)| *at <= cut);
            if matches!(stream.ending, StreamEnding::Expired(at) | StreamEnding::Lagged(at) if at > cut) {
                stream.ending = StreamEnding::Closed;
            }
        }
        self.operations.append(&mut part.operations);
        self.removals.append(&mut part.removals);
        self.lists.append(&mut part.lists);
        self.streams.append(&mut part.streams);
        self.fences.append(&mut part.fences);
        self.floods.append(&mut part.floods);
        self.direct_violations.append(&mut part.direct_violations);
    }

    /// Returns all observed revisions, sorted.
    pub fn revisions(&self) -> Vec<u64> {
        let written = self.operations.iter().filter_map(|operation| match &operation.outcome {
            Outcome::Done(seen) => Some(seen.revision),
            _ => None,
        });
        let listed = self.lists.iter().flat_map(|list| &list.pages).map(|page| page.revision);
        let known =
            self.streams.iter().flat_map(|stream| &stream.notices).map(|(_, notice)| notice.revision());
        let mut revisions: Vec<u64> = written.chain(listed).chain(known).collect();
        revisions.sort_unstable();
        revisions.dedup();
        revisions
    }
}

/// Recorder of the observations of all clients and watchers.
pub struct Recorder {
    begun: Instant,
    ids: AtomicU64,
    part: Mutex<History>,
}

impl Recorder {
    /// Starts a history now.
    pub fn new() -> Recorder {
        Recorder { begun: Instant::now(), ids: AtomicU64::new(1), part: Mutex::default() }
    }

    /// Returns the time since the recorder was created.
    pub fn now(&self) -> Time {
        self.begun.elapsed()
    }

    /// Returns a unique number, for an operation or a stream.
    pub fn next_id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Applies `add` to the history recorded since the last [`Recorder::take`].
    pub fn record(&self, add: impl FnOnce(&mut History)) {
        add(&mut self.part.lock());
    }

    /// Takes the history since the last call.
    pub fn take(&self) -> History {
        std::mem::take(&mut *self.part.lock())
    }
}
