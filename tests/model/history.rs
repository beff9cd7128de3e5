//! What clients did and were told, with times: the input of the checks.
//!
//! # Invariants
//!
//! INVARIANT (nothing of a doomed server): what a client was told after the moment of a power cut is not in the history:
//! the server that told it went on on a disk that was already gone. Its writes may have happened or not.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::collections::{Key, Scope, Seen};

/// Since the history begins.
pub type Time = Duration;

/// Numbers all operations; those that write put it into their object.
pub type WriteId = u64;

/// An operation on one object.
#[derive(Clone, Debug)]
pub struct Operation {
    /// Its number.
    pub id: WriteId,
    /// When it was sent.
    pub begin: Time,
    /// When its answer was there; of an unknown outcome, after which it cannot happen any more.
    pub end: Time,
    /// The object.
    pub key: Key,
    /// What was asked for.
    pub action: Action,
    /// The group that a write puts there.
    pub group: usize,
    /// What came of it.
    pub outcome: Outcome,
}

/// What an operation asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// POST.
    Create,
    /// PUT of a kind that comes to be by it, without a version: only if there is none.
    CreateByPut,
    /// PUT or PATCH, if the object is still what the client saw, or whatever it is.
    Write(Option<Expected>),
    /// PUT of a kind that comes to be by it, with a version: if the object is still that, or if there is none.
    Put(Expected),
    /// DELETE, under the same conditions as [`Action::Write`].
    Delete(Option<Expected>),
    /// GET.
    Get(At),
}

/// What a conditional write rests on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The version.
    pub revision: u64,
    /// What was written there.
    pub write: WriteId,
}

/// Which version a read asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// No resourceVersion.
    MostRecent,
    /// `0`
    Any,
    /// At least this.
    NotOlderThan(u64),
    /// This.
    Exact(u64),
}

/// What came of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Read, created or changed.
    Done(Seen),
    /// Deleted.
    Deleted,
    /// There is no such object.
    Missing,
    /// There is one already.
    Exists,
    /// It is not what was expected.
    Conflict,
    /// Another refusal: nothing happened, and nothing is known.
    Refused(u16, String),
    /// No answer.
    Unknown,
}

impl Operation {
    /// Whether it changes something if it succeeds.
    pub fn writes(&self) -> bool {
        !matches!(self.action, Action::Get(_))
    }
}

/// A delete of a collection.
#[derive(Clone, Debug)]
pub struct Removal {
    /// When it was sent.
    pub begin: Time,
    /// When its answer was there, or after which nothing of it happens any more.
    pub end: Time,
    /// What it was about.
    pub scope: Scope,
    /// What the answer says was deleted; None without an answer.
    pub removed: Option<Vec<Seen>>,
}

/// A list, of one answer or of several pages.
#[derive(Clone, Debug)]
pub struct List {
    /// What it was about.
    pub scope: Scope,
    /// The version asked for.
    pub at: At,
    /// Objects a page may have; 0: all.
    pub limit: usize,
    /// The pages that came.
    pub pages: Vec<ListPage>,
    /// Why there are no more.
    pub ending: ListEnding,
}

/// One answer of a list.
#[derive(Clone, Debug)]
pub struct ListPage {
    /// When it was asked for.
    pub begin: Time,
    /// When it was there.
    pub end: Time,
    /// The version of the list.
    pub revision: u64,
    /// The model's objects.
    pub items: Vec<Seen>,
    /// Whether others' objects were among them.
    pub foreign: bool,
    /// `remainingItemCount`
    pub remaining: Option<usize>,
}

/// How a list ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListEnding {
    /// All pages were read.
    Complete,
    /// The client or the server stopped.
    Cut,
    /// 410 at a time, for a version.
    Expired(Time, u64),
}

/// A watch.
#[derive(Clone, Debug)]
pub struct Stream {
    /// Its number.
    pub id: u64,
    /// What it was about.
    pub scope: Scope,
    /// Where it begins.
    pub start: Start,
    /// The stream that it continues.
    pub resumes: Option<u64>,
    /// Whether it asked for bookmarks.
    pub bookmarks: bool,
    /// When it was asked for.
    pub begin: Time,
    /// What it told.
    pub notices: Vec<(Time, Notice)>,
    /// How it ended.
    pub ending: StreamEnding,
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// After a version.
    After(u64),
    /// With the state of now.
    State(At),
    /// With the state of now and a mark behind it.
    Streamed,
}

/// What a watch tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// ADDED.
    Added(Seen),
    /// MODIFIED.
    Modified(Seen),
    /// DELETED.
    Deleted(Seen),
    /// BOOKMARK.
    Bookmark {
        /// All up to here was told.
        revision: u64,
        /// It is the one behind the initial state.
        initial: bool,
    },
}

impl Notice {
    /// Its version.
    pub fn revision(&self) -> u64 {
        match self {
            Notice::Added(seen) | Notice::Modified(seen) | Notice::Deleted(seen) => seen.revision,
            Notice::Bookmark { revision, .. } => *revision,
        }
    }
}

/// How a watch ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StreamEnding {
    /// One of the two stopped.
    Closed,
    /// 410 instead of a beginning.
    Expired(Time),
    /// 410 in its course: it was too slow.
    Lagged(Time),
}

impl Stream {
    /// Up to where all was told, so that another stream can continue; None while only a part of the state of the
    /// beginning may have been told.
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

/// All of it.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Operations on objects.
    pub operations: Vec<Operation>,
    /// Deletes of collections.
    pub removals: Vec<Removal>,
    /// Lists.
    pub lists: Vec<List>,
    /// Watches.
    pub streams: Vec<Stream>,
    /// The last writes, which every watcher waited for: collections, and revisions there.
    pub fences: Vec<(usize, u64)>,
    /// When so much was written elsewhere that slow watches may be told to begin anew.
    pub floods: Vec<(Time, Time)>,
    /// What no check is needed for.
    pub complaints: Vec<String>,
}

impl History {
    /// Takes in what happened on one server, which is dead. `cut` is the moment of a power cut.
    pub fn append(&mut self, mut part: History, cut: Option<Time>, dead: Time) {
        let cut = cut.unwrap_or(Time::MAX);
        // INVARIANT (nothing of a doomed server).
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
        self.complaints.append(&mut part.complaints);
    }

    /// Versions that clients were told of.
    pub fn revisions(&self) -> Vec<u64> {
        let written = self.operations.iter().filter_map(|operation| match &operation.outcome {
            Outcome::Done(seen) => Some(seen.revision),
            _ => None,
        });
        let listed = self.lists.iter().flat_map(|list| &list.pages).map(|page| page.revision);
        let told =
            self.streams.iter().flat_map(|stream| &stream.notices).map(|(_, notice)| notice.revision());
        let mut revisions: Vec<u64> = written.chain(listed).chain(told).collect();
        revisions.sort_unstable();
        revisions.dedup();
        revisions
    }
}

/// Takes down what happens on one server.
pub struct Recorder {
    begun: Instant,
    ids: AtomicU64,
    part: Mutex<History>,
}

impl Recorder {
    /// Of a history that begins now.
    pub fn new() -> Recorder {
        Recorder { begun: Instant::now(), ids: AtomicU64::new(1), part: Mutex::default() }
    }

    /// Now.
    pub fn now(&self) -> Time {
        self.begun.elapsed()
    }

    /// A number that nothing else has.
    pub fn id(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Adds to what happened.
    pub fn note(&self, add: impl FnOnce(&mut History)) {
        add(&mut self.part.lock());
    }

    /// What happened since this was asked last.
    pub fn take(&self) -> History {
        std::mem::take(&mut *self.part.lock())
    }
}
