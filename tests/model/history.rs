//! History of client operations and responses with times: the input of the checks.
//!
//! # Invariants
//!
//! INVARIANT (no response of a failed server): the history does not contain responses after the moment of a power
//! cut, because that server continued on a lost disk. The outcome of its writes is unknown.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::collections::{Key, ObservedObject, Scope};

/// Time since the start of the history.
pub type Time = Duration;

/// Number of an operation; writes store it in their object.
pub type WriteId = u64;

/// Operation on one object.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Number.
    pub id: WriteId,
    /// Time of the request.
    pub begin: Time,
    /// Time of the response; for an unknown outcome, the time after which the operation cannot happen.
    pub end: Time,
    /// Object.
    pub key: Key,
    /// Requested action.
    pub action: Action,
    /// Group of a write.
    pub group: usize,
    /// Outcome.
    pub outcome: Outcome,
}

/// Action of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// POST.
    Create,
    /// PUT without a version, of a kind that PUT creates: succeeds only if the object does not exist.
    CreateByPut,
    /// PUT or PATCH, conditional on the observed state, or unconditional.
    Write(Option<Expected>),
    /// PUT with a version, of a kind that PUT creates: succeeds on this state, or if the object does not
    /// exist.
    Put(Expected),
    /// DELETE, under the same conditions as [`Action::Write`].
    Delete(Option<Expected>),
    /// GET.
    Get(At),
}

/// Precondition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Version.
    pub revision: u64,
    /// Write of the observed content.
    pub write: WriteId,
}

/// Requested version of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// No resourceVersion.
    MostRecent,
    /// `0`
    Any,
    /// At least this version.
    NotOlderThan(u64),
    /// Exactly this version.
    Exact(u64),
}

/// Outcome of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Read, created or changed.
    Done(ObservedObject),
    /// Deleted.
    Deleted,
    /// The object does not exist.
    Missing,
    /// The object exists already.
    Exists,
    /// The precondition failed.
    Conflict,
    /// Other rejection: no effect, and no information about the object.
    Refused(u16, String),
    /// No response.
    Unknown,
}

impl Operation {
    /// Whether the operation changes the object on success.
    pub fn writes(&self) -> bool {
        !matches!(self.action, Action::Get(_))
    }
}

/// Delete of a collection.
#[derive(Clone, Debug)]
pub struct CollectionDelete {
    /// Time of the request.
    pub begin: Time,
    /// Time of the response, or time after which no part of it happens.
    pub end: Time,
    /// Scope.
    pub scope: Scope,
    /// Deleted objects in the response; None without a response.
    pub removed: Option<Vec<ObservedObject>>,
}

/// List of one or several pages.
#[derive(Clone, Debug)]
pub struct List {
    /// Scope.
    pub scope: Scope,
    /// Requested version.
    pub at: At,
    /// Page limit; 0: none.
    pub limit: usize,
    /// Received pages.
    pub pages: Vec<ListPage>,
    /// Reason of the end.
    pub ending: ListEnding,
}

/// Page of a list.
#[derive(Clone, Debug)]
pub struct ListPage {
    /// Time of the request.
    pub begin: Time,
    /// Time of the response.
    pub end: Time,
    /// Version of the list.
    pub revision: u64,
    /// Objects of the model.
    pub items: Vec<ObservedObject>,
    /// Whether the page contained other objects.
    pub foreign: bool,
    /// `remainingItemCount`
    pub remaining: Option<usize>,
}

/// End of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListEnding {
    /// All pages were read.
    Complete,
    /// The client or the server stopped.
    Cut,
    /// 410 at a time, for a version.
    Expired(Time, u64),
}

/// Watch.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Number.
    pub id: u64,
    /// Scope.
    pub scope: Scope,
    /// Start position.
    pub start: Start,
    /// Stream that this stream continues.
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
    /// After a version.
    After(u64),
    /// With the current state.
    State(At),
    /// With the current state and a bookmark after it.
    Streamed,
}

/// Event of a watch.
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
    /// Returns the version.
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
    /// 410 at the start.
    Expired(Time),
    /// 410 in the stream: the watch was too slow.
    Lagged(Time),
}

impl Stream {
    /// Returns the revision from which a new stream can continue.
    ///
    /// None: possibly only a part of the initial events was delivered.
    pub fn position(&self) -> Option<u64> {
        let last = self.notices.last().map(|(_, notice)| notice.revision());
        match self.start {
            Start::After(revision) => Some(last.unwrap_or(revision).max(revision)),
            Start::State(_) | Start::Streamed => {
                let marked = |(_, notice): &(Time, Notice)| matches!(notice, Notice::Bookmark { .. });
                self.notices.iter().any(marked).then_some(last).flatten()
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
    /// Last writes, for which every watcher waited: collections and revisions.
    pub fences: Vec<(usize, u64)>,
    /// Times of floods, after which slow watches may get 410.
    pub floods: Vec<(Time, Time)>,
    /// Violations that need no check.
    pub direct_violations: Vec<String>,
}

impl History {
    /// Adds the history of one server, which has ended. `cut` is the time of a power cut.
    pub fn append(&mut self, mut part: History, cut: Option<Time>, dead: Time) {
        let cut = cut.unwrap_or(Time::MAX);
        // INVARIANT (no response of a failed server).
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

    /// Returns all observed versions.
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

/// Recorder of the events on one server.
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

    /// Returns the time since the start.
    pub fn now(&self) -> Time {
        self.begun.elapsed()
    }

    /// Returns a unique number.
    pub fn id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds to the history.
    pub fn note(&self, add: impl FnOnce(&mut History)) {
        add(&mut self.part.lock());
    }

    /// Takes the history since the last call.
    pub fn take(&self) -> History {
        std::mem::take(&mut *self.part.lock())
    }
}
