//! The watch verb: the existing objects, then each change, in order.
//!
//! # Contract
//!
//! [`watch`] opens a [`Watching`]; [`Watching::next`] returns the next notices until the watch ends. The
//! notices depend on the client's selectors (requirement D-WEV-7). An object that stops matching is deleted
//! for the client, one that starts matching is added.
//!
//! # Invariants
//!
//! INVARIANT (fresh watches): no notice has a revision above a policy write unless the authorization is newer
//! than that write. Every notice checks the guard, and the guard ends the watch within a second of a
//! revocation.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::status::{Reason, Status};
use kinds::Resource;
use storage::cache::{EventKind, WatchError};
use storage::{Error, Revision};
use tokio::time::Instant;

use super::Call;
use super::alarm::{Alarm, Ring};
use super::metrics::ReadMetrics;
use super::options::ListOptions;
use super::selection::Selection;
use super::version::{Wanted, parse_or_500};
use crate::auth::WatchGuard;
use crate::plane::{Event, Item, Pin, Watcher};

/// Maximum duration of a watch, since the client's timeout may overflow the clock.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// The result of opening a watch.
pub enum Begin {
    /// The watch is open.
    Running(Box<Watching>),
    /// The history is compacted; the client gets the Status in the stream.
    Expired(Box<Status>),
}

/// A notice for the client.
#[derive(Debug)]
pub enum Notice {
    /// An object was added for this client.
    Added(Change),
    /// The object was modified.
    Modified(Change),
    /// The object was deleted for this client.
    Deleted(Change),
    /// All events up to the revision were sent; `initial` marks the end of the initial events.
    Bookmark {
        /// The revision.
        revision: Revision,
        /// Whether the bookmark ends the initial events.
        initial: bool,
    },
    /// The watch is over, and why.
    Failed(Box<Status>),
}

/// A changed object.
#[derive(Debug)]
pub struct Change {
    /// The object to send: for a deletion its last state.
    pub item: Arc<Item>,
    /// The resourceVersion to send with it.
    pub revision: Revision,
    /// The event, which caches its encodings for all clients; None for initial events.
    pub event: Option<Arc<Event>>,
}

/// An open watch.
pub struct Watching {
    /// The initial events that are not sent yet.
    initial: Option<Initial>,
    watcher: Watcher,
    /// The kind, its version and the namespace, for metrics.
    served: Arc<Resource>,
    version: String,
    namespace: String,
    metrics: ReadMetrics,
    selection: Selection,
    guard: Arc<WatchGuard>,
    alarm: Alarm,
    /// Whether a bookmark is sent as soon as no event waits.
    bookmark_due: bool,
    over: bool,
}

/// The objects at the start of a watch.
///
/// They are read from the cache as the client reads. The cache revokes the pin of a slow client before it
/// would cost memory of its own.
struct Initial {
    pin: Pin,
    /// The first key that is not sent yet.
    start: String,
    /// Whether a bookmark follows.
    mark: bool,
    began: Instant,
}

/// Opens a watch.
///
/// # Errors
///
/// 400 or 422 for the options, 500 for a malformed version, as in the reference.
pub async fn watch(call: &Call<'_>, options: &ListOptions) -> Result<Begin, Status> {
    let plane = call.plane;
    options.validate_watch(&plane.names, plane.gates.enabled(serving::gates::Gate::WatchList))?;
    let selection = Selection::new(call, options)?;
    let wanted = parse_or_500(&options.resource_version)?;
    let items = &call.collection.items;
    let initial_events = options.send_initial_events;
    let now = Instant::now();
    let (initial, watcher) = match wanted {
        Wanted::At(version) if initial_events != Some(true) => {
            match items.watch(&selection.keys, version).await {
                Ok(watcher) => (None, watcher),
                Err(WatchError::Lagged { .. } | WatchError::Store(Error::Compacted { .. })) => {
                    return Ok(Begin::Expired(Box::new(too_old(version))));
                }
                Err(WatchError::Retired) => return Err(Status::unknown_resource()),
                Err(WatchError::Store(error)) => return Err(call.failure(error)),
            }
        }
        wanted => {
            if let Wanted::At(version) = wanted {
                call.reach(version).await?;
            }
            let (pin, watcher) =
                items.pin_and_watch(&selection.keys).await.map_err(|error| call.failure(error))?;
            let mark = initial_events == Some(true) && options.allow_watch_bookmarks;
            // A watch without a version begins with the existing objects, unless the client disables initial
            // events.
            let wanted = initial_events != Some(false);
            (wanted.then(|| Initial { pin, start: String::new(), mark, began: now }), watcher)
        }
    };
    let guard = Arc::new(plane.auth.guard(call.by));
    let end = now + options.timeout.unwrap_or_else(|| lifetime(call)).min(LONGEST);
    let bookmarks = options.allow_watch_bookmarks;
    let alarm = Alarm::new(Arc::clone(&guard), plane.stopping.clone(), now, end, bookmarks);
    Ok(Begin::Running(Box::new(Watching {
        initial,
        watcher,
        served: Arc::clone(&call.collection.served),
        version: call.version.to_owned(),
        namespace: call.namespace.to_owned(),
        metrics: plane.read_metrics.clone(),
        selection,
        guard,
        alarm,
        bookmark_due: false,
        over: false,
    })))
}

/// Returns a random time between the minimum and twice the minimum.
///
/// The jitter prevents that clients reconnect at once.
fn lifetime(call: &Call<'_>) -> Duration {
    let least = call.plane.min_watch_timeout;
    let part = u32::try_from(call.plane.chance.bits() % 1000).unwrap_or(0);
    least + least * part / 1000
}

/// 410 for a compacted revision.
fn too_old(version: Revision) -> Status {
    Status::failure(Reason::Expired, format!("too old resource version: {version}"))
}

/// Limit in bytes of the initial events of a batch; a batch has at least one.
const INITIAL_BYTES: usize = 32 << 10;

/// The next step of a watch.
enum Next {
    /// Send these notices.
    Tell(Vec<Notice>),
    /// The client is behind the watch history.
    ///
    /// The watch ends, so that the client resumes from its last revision.
    Lagged,
    /// The watch ends.
    Over,
}

impl Watching {
    /// Returns the next notices, at least one, or None when the watch has ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<Vec<Notice>> {
        if self.over {
            return None;
        }
        match self.wait().await {
            Ok(Next::Tell(notices)) => Some(notices),
            Ok(Next::Lagged) => {
                self.over = true;
                self.metrics.terminated(&self.served);
                None
            }
            Ok(Next::Over) => None,
            // The client may reconnect and resume if its credential is still valid.
            Err(_) if self.guard.is_outdated() => {
                self.over = true;
                None
            }
            Err(status) => {
                self.over = true;
                Some(vec![Notice::Failed(status)])
            }
        }
    }

    async fn wait(&mut self) -> Result<Next, Box<Status>> {
        while self.initial.is_some() {
            if self.alarm.is_over() {
                return Ok(Next::Over);
            }
            match self.begin().await? {
                Next::Tell(notices) if notices.is_empty() => tokio::task::consume_budget().await,
                next => return Ok(next),
            }
        }
        loop {
            tokio::select! {
                // Interrupts come first, so that a watch with continuous events ends, too.
                biased;
                ring = self.alarm.rings() => match ring {
                    Ring::Stopping | Ring::End => return Ok(Next::Over),
                    Ring::Doubt => {
                        let upto = self.watcher.progress();
                        self.renew(upto).await?;
                    }
                    Ring::Bookmark => self.bookmark_due = true,
                },
                events = self.watcher.next() => {
                    let events = match events {
                        Ok(events) => events,
                        Err(WatchError::Lagged { .. }) => return Ok(Next::Lagged),
                        Err(WatchError::Retired) => return Ok(Next::Over),
                        // The client is behind the retained history and must list again.
                        Err(WatchError::Store(Error::Compacted { asked, .. })) => {
                            return Err(Box::new(too_old(asked)));
                        }
                        Err(WatchError::Store(error)) => {
                            return Err(Box::new(Status::unavailable(error.to_string(), 1)));
                        }
                    };
                    let notices = self.tell(events).await?;
                    if !notices.is_empty() {
                        return Ok(Next::Tell(notices));
                    }
                }
                () = std::future::ready(()), if self.bookmark_due => {
                    self.bookmark_due = false;
                    // A watch from a future revision has no bookmark yet.
                    if !self.watcher.is_ahead() {
                        return self.bookmark().await.map(|notice| Next::Tell(vec![notice]));
                    }
                }
            }
        }
    }

    /// Returns a batch of initial events, and the bookmark after the last one.
    async fn begin(&mut self) -> Result<Next, Box<Status>> {
        let Some(initial) = &self.initial else { return Ok(Next::Tell(Vec::new())) };
        let revision = initial.pin.revision();
        self.admit(revision).await?;
        let Some(initial) = &mut self.initial else { return Ok(Next::Tell(Vec::new())) };
        let Some(items) = initial.pin.items(&self.selection.keys, &initial.start, INITIAL_BYTES) else {
            return Ok(Next::Lagged);
        };
        if let Some(last) = items.last() {
            initial.start = format!("{}\0", last.key());
        }
        let mut notices = Vec::new();
        if items.is_empty() {
            if initial.mark {
                notices.push(Notice::Bookmark { revision, initial: true });
                let (served, took) = (&self.served, initial.began.elapsed());
                self.metrics.initial(served, &self.version, &self.namespace, took);
            }
            self.initial = None;
        }
        for item in items {
            if self.selection.selects(&item)? {
                let revision = item.revision();
                notices.push(Notice::Added(Change { item, revision, event: None }));
            }
        }
        Ok(Next::Tell(notices))
    }

    /// Converts a batch of events to notices for this client.
    async fn tell(&mut self, events: Vec<Arc<Event>>) -> Result<Vec<Notice>, Box<Status>> {
        let mut notices = Vec::new();
        for event in events {
            let Some(notice) = self.selection.notice(event)? else { continue };
            if let Some(revision) = notice.revision() {
                // INVARIANT (fresh watches).
                self.admit(revision).await?;
            }
            notices.push(notice);
        }
        Ok(notices)
    }

    async fn bookmark(&mut self) -> Result<Notice, Box<Status>> {
        let revision = self.watcher.progress();
        self.admit(revision).await?;
        Ok(Notice::Bookmark { revision, initial: false })
    }

    async fn admit(&mut self, revision: Revision) -> Result<(), Box<Status>> {
        if self.guard.admits(revision) { Ok(()) } else { self.renew(revision).await }
    }

    /// Boxed, because re-authorization is rare and its large future would enlarge every idle watch.
    async fn renew(&mut self, upto: Revision) -> Result<(), Box<Status>> {
        Ok(Box::pin(self.guard.renew(upto)).await?)
    }
}

impl Notice {
    fn revision(&self) -> Option<Revision> {
        match self {
            Notice::Added(change) | Notice::Modified(change) | Notice::Deleted(change) => {
                Some(change.revision)
            }
            Notice::Bookmark { revision, .. } => Some(*revision),
            Notice::Failed(_) => None,
        }
    }
}

impl Selection {
    /// Converts an event to a notice for a client with this selection.
    fn notice(&self, event: Arc<Event>) -> Result<Option<Notice>, Box<Status>> {
        let selects = |item: Option<&Arc<Item>>| match item {
            Some(item) => self.selects(item).map(|selected| selected.then(|| Arc::clone(item))),
            None => Ok(None),
        };
        let (old, new) = (selects(event.before())?, selects(event.after())?);
        let revision = event.revision();
        let change = |item: Arc<Item>| Change { item, revision, event: Some(Arc::clone(&event)) };
        Ok(match (old, new) {
            (_, Some(new)) if event.kind() == EventKind::Added => Some(Notice::Added(change(new))),
            (Some(_), Some(new)) => Some(Notice::Modified(change(new))),
            (None, Some(new)) => Some(Notice::Added(change(new))),
            (Some(old), None) => Some(Notice::Deleted(change(old))),
            (None, None) => None,
        })
    }
}
