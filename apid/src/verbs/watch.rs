//! Watching a collection or an object: what exists, then each change, in order.
//!
//! # Contract
//!
//! [`watch`] opens a [`Watching`]; [`Watching::next`] gives what to tell the client until the watch is over. What a client
//! is told depends on its selectors: an object that stops matching is deleted for it, one that starts matching is added
//! (requirements D-WEV-7).
//!
//! # Invariants
//!
//! INVARIANT (fresh watches): nothing is told of a revision above a policy write on an authorization older than that write:
//! every notice asks the guard, and the guard ends the watch within a second of a revocation.

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

/// No watch lasts longer, whatever the client asks for: what it asks for may be beyond the end of the clock.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

/// How a watch begins.
pub enum Begin {
    /// It runs.
    Running(Box<Watching>),
    /// The history does not reach back: the client is told in the stream.
    Expired(Box<Status>),
}

/// What a client is told.
#[derive(Debug)]
pub enum Notice {
    /// An object came to be, for this client.
    Added(Change),
    /// It has another content.
    Modified(Change),
    /// It ceased to be, for this client.
    Deleted(Change),
    /// Everything up to the revision was told; `initial` marks the end of what existed at the beginning.
    Bookmark {
        /// The revision.
        revision: Revision,
        /// Whether it is the first one of a watch with initial events.
        initial: bool,
    },
    /// The watch is over, and why.
    Failed(Box<Status>),
}

/// A changed object.
#[derive(Debug)]
pub struct Change {
    /// What is shown: the content before, when it is gone.
    pub item: Arc<Item>,
    /// The version that is shown with it.
    pub revision: Revision,
    /// The event, which keeps what it was encoded to for all clients; None for what existed at the beginning.
    pub event: Option<Arc<Event>>,
}

/// An open watch.
pub struct Watching {
    /// What existed at the beginning and is not told yet.
    initial: Option<Initial>,
    watcher: Watcher,
    /// The kind, its version and the namespace, for counting.
    served: Arc<Resource>,
    version: String,
    namespace: String,
    metrics: ReadMetrics,
    selection: Selection,
    guard: Arc<WatchGuard>,
    alarm: Alarm,
    /// One is sent as soon as no event waits.
    bookmark_due: bool,
    over: bool,
}

/// The objects that existed when a watch began. They are walked as the client reads; the cache takes them back from a
/// client that reads so slowly that they would cost memory of their own.
struct Initial {
    pin: Pin,
    /// The first key that is not told yet.
    start: String,
    /// A bookmark follows.
    mark: bool,
    began: Instant,
}

/// Opens a watch.
///
/// # Errors
///
/// 400 or 422 for the options, 500 for a version that is none, as the reference answers.
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
            // Without a version a watch begins with what exists, unless it says that it does not want to.
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

/// Between the least time and twice that, so that clients do not come back all at once.
fn lifetime(call: &Call<'_>) -> Duration {
    let least = call.plane.min_watch_timeout;
    let part = u32::try_from(call.plane.chance.bits() % 1000).unwrap_or(0);
    least + least * part / 1000
}

/// 410 for a version whose history is gone.
fn too_old(version: Revision) -> Status {
    Status::failure(Reason::Expired, format!("too old resource version: {version}"))
}

/// Bytes of the objects of the beginning that are told at once; one always is.
const INITIAL_BYTES: usize = 32 << 10;

/// How a watch goes on.
enum Next {
    /// With something to tell.
    Tell(Vec<Notice>),
    /// The history has left the client behind: it is closed, so that it comes again from where it is.
    Lagged,
    /// Not at all.
    Over,
}

impl Watching {
    /// What to tell next: at least one notice, or None when the watch has ended. Cancel-safe.
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
            // Its user may come again with the same credentials, and go on from here if they still count.
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
                // Before the events: where they never pause a watch ends all the same.
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
                        // The client is behind the history that is kept: it reads anew.
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
                    // A watch from a version that has not come has nothing to mark.
                    if !self.watcher.is_ahead() {
                        return self.bookmark().await.map(|notice| Next::Tell(vec![notice]));
                    }
                }
            }
        }
    }

    /// Some of what existed at the beginning, and after the last of it the mark.
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

    /// What the events of a batch are to this client.
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

    /// In a box: it asks who and what may, which is rare, and an idle watch is not to have the room for it.
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
    /// What an event is to a client with this selection.
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
