//! The watch verb: the existing objects, then each change, in order.
//!
//! # Contract
//!
//! [`watch`] opens a [`WatchStream`]; [`WatchStream::next`] returns the next notices until the watch ends. The
//! notices depend on the client's selectors (requirement D-WEV-7). An object that stops matching is deleted
//! for the client. An object that starts matching is added.
//!
//! # Invariants
//!
//! INVARIANT (fresh watches): no notice has a revision above a policy write unless the authorization is newer
//! than that write. The watch checks the guard before each batch of initial events, each later event and each
//! bookmark. The guard ends the watch within a second of a revocation. A watch that waits for its client, or
//! for the limit of unread responses, ends before its next event. The events of a separate store have revisions of their
//! own: the watch first learns the newest policy, which is then newer than every policy write acknowledged before the event.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::status::{Reason, Status};
use kinds::Kind;
use storage::cache::{EventKind, WatchError};
use storage::{Error, Revision};
use tokio::time::Instant;

use super::Call;
use super::metrics::ReadMetrics;
use super::options::ListOptions;
use super::selection::Selection;
use super::version::{RequestedVersion, parse_or_500};
use super::watch_interrupts::{WatchInterrupt, WatchInterrupts};
use crate::VerbFuture;
use crate::conversion::ObjectConverter;
use crate::{Event, Item, Pin, SeparateStore, Watcher};
use authclient::WatchGuard;

/// Maximum duration of a watch. A longer timeout of the client could overflow the clock.
const MAX_WATCH_DURATION: Duration = Duration::from_secs(366 * 24 * 3600);

/// The result of opening a watch.
pub enum WatchStart {
    /// The watch is open.
    Running(Box<WatchStream>),
    /// The history is compacted; the client gets the Status in the stream.
    Expired(Box<Status>),
}

/// A notice for the client.
#[derive(Debug)]
pub enum WatchNotice {
    /// An object was added, modified or deleted for this client.
    Change(ChangedObject),
    /// All events up to the revision were sent; `initial` marks the end of the initial events.
    Bookmark {
        /// The resourceVersion of the bookmark.
        revision: Revision,
        /// Whether the bookmark ends the initial events.
        initial: bool,
    },
    /// The watch ended with this error.
    Failed(Box<Status>),
}

/// The object of a notice.
#[derive(Debug)]
pub struct ChangedObject {
    /// The change for this client.
    pub kind: EventKind,
    /// The object to send: for a deletion its last state.
    pub item: Arc<Item>,
    /// The resourceVersion to send with it.
    pub revision: Revision,
    /// The event, which caches its encodings for all clients; None for initial events.
    pub event: Option<Arc<Event>>,
}

/// An open watch.
pub struct WatchStream {
    /// The initial events that are not sent yet.
    initial: Option<InitialEvents>,
    watcher: Watcher,
    /// The kind, its version and the namespace, for metrics.
    served: Arc<Kind>,
    version: String,
    namespace: String,
    metrics: ReadMetrics,
    selection: Selection,
    /// Converts the objects of a custom kind.
    converter: Option<Arc<ObjectConverter>>,
    guard: Arc<WatchGuard>,
    /// The store of the objects, if the policy is in another one.
    separate: Option<Arc<SeparateStore>>,
    /// For objects of a separate store: the revision of the main store up to which the policy was known before the batch.
    known_policy: Option<Revision>,
    interrupts: WatchInterrupts,
    /// Whether a bookmark is due; it is sent as soon as no event waits.
    is_bookmark_due: bool,
    has_ended: bool,
}

/// The objects at the start of a watch.
///
/// The watch reads them from the cache as the client reads. The cache revokes the pin of a slow client before the pin
/// would retain objects that the cache no longer needs.
struct InitialEvents {
    pin: Pin,
    /// The first key that is not sent yet.
    start: String,
    /// Whether a bookmark follows the initial events.
    has_end_bookmark: bool,
    started_at: Instant,
}

/// Opens a watch.
///
/// # Errors
///
/// 400 or 422 for the options, 500 for a malformed version, as in kube-apiserver.
pub fn watch<'a>(call: &'a Call<'a>, options: &'a ListOptions) -> VerbFuture<'a, WatchStart> {
    Box::pin(async move {
        let api_state = call.api_state;
        options.validate_watch(&api_state.names, api_state.gates.enabled(serving::gates::Gate::WatchList))?;
        let selection = Selection::new(call, options)?;
        let requested = parse_or_500(&options.resource_version)?;
        let items = &call.collection.items;
        let initial_events = options.send_initial_events;
        let now = Instant::now();
        let (initial, watcher) = match requested {
            RequestedVersion::At(version) if initial_events != Some(true) => {
                match items.watch(&selection.keys, version).await {
                    Ok(watcher) => (None, watcher),
                    Err(WatchError::Lagged { .. } | WatchError::Store(Error::Compacted { .. })) => {
                        return Ok(WatchStart::Expired(Box::new(expired_status(version))));
                    }
                    Err(WatchError::Retired) => return Err(Status::unknown_resource()),
                    Err(WatchError::Store(error)) => return Err(call.failure(error)),
                }
            }
            requested => {
                if let RequestedVersion::At(version) = requested {
                    call.wait_for_version(version).await?;
                }
                let (pin, watcher) =
                    items.pin_and_watch(&selection.keys).await.map_err(|error| call.failure(error))?;
                let has_end_bookmark = initial_events == Some(true) && options.allow_watch_bookmarks;
                // A watch without a version begins with the existing objects, unless the client disables initial
                // events.
                let has_initial_events = initial_events != Some(false);
                let initial = InitialEvents { pin, start: String::new(), has_end_bookmark, started_at: now };
                (has_initial_events.then_some(initial), watcher)
            }
        };
        let guard = Arc::new(api_state.auth.guard(call.authorized));
        let end = now + options.timeout.unwrap_or_else(|| lifetime(call)).min(MAX_WATCH_DURATION);
        let bookmarks = options.allow_watch_bookmarks;
        let interrupts =
            WatchInterrupts::new(Arc::clone(&guard), api_state.stopping.clone(), now, end, bookmarks);
        Ok(WatchStart::Running(Box::new(WatchStream {
            initial,
            watcher,
            served: Arc::clone(&call.collection.kind),
            version: call.version.to_owned(),
            namespace: call.namespace.to_owned(),
            metrics: api_state.read_metrics.clone(),
            selection,
            converter: call.collection.converter.clone(),
            guard,
            separate: call.separate_store().map(Arc::clone),
            known_policy: None,
            interrupts,
            is_bookmark_due: false,
            has_ended: false,
        })))
    })
}

/// Returns a random duration of a watch between `min_watch_timeout` and twice that time.
///
/// The jitter keeps clients from reconnecting all at the same time.
fn lifetime(call: &Call<'_>) -> Duration {
    let min = call.api_state.min_watch_timeout;
    let thousandths = u32::try_from(call.api_state.rng.bits() % 1000).unwrap_or(0);
    min + min * thousandths / 1000
}

/// 410 for a compacted revision, with the message of kube-apiserver for watches.
fn expired_status(version: Revision) -> Status {
    Status::failure(Reason::Expired, format!("too old resource version: {version}"))
}

/// Maximum total size of the objects in a batch of initial events, in stored bytes. A single larger object is
/// a batch of its own.
const INITIAL_BATCH_BYTES: usize = 32 << 10;

/// The next step of a watch.
enum WatchStep {
    /// Send these notices, possibly none.
    Send(Vec<WatchNotice>),
    /// The client is behind the watch history.
    ///
    /// The watch ends, so the client resumes from its last revision.
    Lagged,
    /// The watch ends.
    Ended,
}

impl WatchStream {
    /// Whether the next events come from the engine's history. Only this watch holds such events.
    pub fn is_behind(&self) -> bool {
        self.initial.is_none() && self.watcher.is_behind()
    }

    /// Returns a future that waits until the process shuts down or the timeout of the watch expires.
    pub fn wait_until_finished(&self) -> impl Future<Output = ()> + Send + use<> {
        self.interrupts.wait_until_finished()
    }

    /// Returns the next batch of notices. It is empty after a wait for an event, a read of a part of the
    /// history, or a batch without selected objects. None when the watch has ended.
    pub async fn next(&mut self) -> Option<Vec<WatchNotice>> {
        if self.has_ended {
            return None;
        }
        let step = self.next_step().await;
        self.has_ended = !matches!(step, Ok(WatchStep::Send(_)));
        match step {
            Ok(WatchStep::Send(notices)) => Some(notices),
            Ok(WatchStep::Lagged) => {
                self.metrics.count_terminated_watch(&self.served);
                None
            }
            Ok(WatchStep::Ended) => None,
            // No error event: the client may open a new watch and resume if its credentials are still valid.
            Err(_) if self.guard.is_outdated() => None,
            Err(status) => Some(vec![WatchNotice::Failed(status)]),
        }
    }

    async fn next_step(&mut self) -> Result<WatchStep, Box<Status>> {
        if self.initial.is_some() {
            if self.interrupts.is_finished() {
                return Ok(WatchStep::Ended);
            }
            return self.next_initial_events().await;
        }
        loop {
            tokio::select! {
                // Interrupts come first, so a watch with continuous events ends, too.
                biased;
                interrupt = self.interrupts.next_interrupt() => match interrupt {
                    WatchInterrupt::Stopping | WatchInterrupt::Timeout => return Ok(WatchStep::Ended),
                    WatchInterrupt::Reauthorize => {
                        let min_revision = self.watcher.progress();
                        self.learn_newest_policy().await?;
                        self.reauthorize(self.known_policy.unwrap_or(min_revision)).await?;
                        return Ok(WatchStep::Send(Vec::new()));
                    }
                    WatchInterrupt::Bookmark => self.is_bookmark_due = true,
                },
                events = self.watcher.advance() => {
                    let events = match events {
                        Ok(events) => events,
                        Err(WatchError::Lagged { .. }) => return Ok(WatchStep::Lagged),
                        Err(WatchError::Retired) => return Ok(WatchStep::Ended),
                        // The client is behind the retained history and must list again.
                        Err(WatchError::Store(Error::Compacted { requested: requested_revision, .. })) => {
                            return Err(Box::new(expired_status(requested_revision)));
                        }
                        Err(WatchError::Store(error)) => {
                            return Err(Box::new(Status::unavailable(error.to_string(), 1)));
                        }
                    };
                    return self.convert_events(events).await.map(WatchStep::Send);
                }
                () = std::future::ready(()), if self.is_bookmark_due => {
                    self.is_bookmark_due = false;
                    // A watch from a revision that the cache has not reached gets no bookmark.
                    if !self.watcher.is_ahead() {
                        return self.bookmark().await.map(|notice| WatchStep::Send(vec![notice]));
                    }
                }
            }
        }
    }

    /// Returns a batch of initial events, and the bookmark after the last one.
    async fn next_initial_events(&mut self) -> Result<WatchStep, Box<Status>> {
        let Some(initial) = &self.initial else { return Ok(WatchStep::Send(Vec::new())) };
        let revision = initial.pin.revision();
        // The objects of the pin do not change, so one read covers every batch of them.
        if self.known_policy.is_none() {
            self.learn_newest_policy().await?;
        }
        self.ensure_authorized(revision).await?;
        let Some(initial) = &mut self.initial else { return Ok(WatchStep::Send(Vec::new())) };
        let Some(mut items) = initial.pin.items(&self.selection.keys, &initial.start, INITIAL_BATCH_BYTES)
        else {
            return Ok(WatchStep::Lagged);
        };
        if let Some(last) = items.last() {
            initial.start = format!("{}\0", last.key());
        }
        let is_end = items.is_empty();
        items.retain(|item| is_readable(item));
        if let Some(converter) = &self.converter {
            items = converter.items(items).await?;
        }
        let mut notices = Vec::new();
        if is_end {
            if initial.has_end_bookmark {
                notices.push(WatchNotice::Bookmark { revision, initial: true });
                let (served, version, namespace) = (&self.served, &self.version, &self.namespace);
                let duration = initial.started_at.elapsed();
                self.metrics.observe_initial_events_duration(served, version, namespace, duration);
            }
            self.initial = None;
        }
        self.metrics.count_initial_events(&self.served, items.len());
        for item in items {
            if self.selection.selects(&item)? {
                let revision = item.revision();
                let change = ChangedObject { kind: EventKind::Added, item, revision, event: None };
                notices.push(WatchNotice::Change(change));
            }
        }
        Ok(WatchStep::Send(notices))
    }

    /// Converts a batch of events to notices for this client.
    async fn convert_events(&mut self, events: Vec<Arc<Event>>) -> Result<Vec<WatchNotice>, Box<Status>> {
        let mut notices = Vec::new();
        let events = readable_events(events)?;
        let changes = match &self.converter {
            Some(converter) => converted_changes(converter, events).await?,
            None => events.into_iter().map(ObjectChange::from_event).collect(),
        };
        self.learn_newest_policy().await?;
        for change in changes {
            let Some(change) = self.selection.select_change(change)? else { continue };
            // INVARIANT (fresh watches).
            self.ensure_authorized(change.revision).await?;
            notices.push(WatchNotice::Change(change));
        }
        Ok(notices)
    }

    async fn bookmark(&mut self) -> Result<WatchNotice, Box<Status>> {
        let revision = self.watcher.progress();
        self.learn_newest_policy().await?;
        self.ensure_authorized(revision).await?;
        Ok(WatchNotice::Bookmark { revision, initial: false })
    }

    /// For objects of a separate store, waits for the newest policy.
    async fn learn_newest_policy(&mut self) -> Result<(), Box<Status>> {
        if let Some(separate) = &self.separate {
            // Boxed, because few watches need this future.
            self.known_policy = Some(Box::pin(separate.newest_policy()).await?);
        }
        Ok(())
    }

    /// Ensures that the authorization permits events up to a revision of the watcher.
    async fn ensure_authorized(&mut self, revision: Revision) -> Result<(), Box<Status>> {
        let revision = self.known_policy.unwrap_or(revision);
        if self.guard.admits(revision) { Ok(()) } else { self.reauthorize(revision).await }
    }

    /// Renews the authorization. The future is boxed, because it is large and would enlarge every idle watch.
    async fn reauthorize(&mut self, min_revision: Revision) -> Result<(), Box<Status>> {
        Ok(Box::pin(self.guard.renew(min_revision)).await?)
    }
}

/// A change of an object, in the version of the watch.
struct ObjectChange {
    kind: EventKind,
    revision: Revision,
    old: Option<Arc<Item>>,
    new: Option<Arc<Item>>,
    /// The event of the watch cache; None if its objects were converted.
    event: Option<Arc<Event>>,
}

impl ObjectChange {
    fn from_event(event: Arc<Event>) -> Self {
        ObjectChange {
            kind: event.kind(),
            revision: event.revision(),
            old: event.before().cloned(),
            new: event.after().cloned(),
            event: Some(event),
        }
    }
}

/// Converts the objects of events, in one batch.
/// Whether an item can be decrypted and decoded. The log names an item that a watch leaves out.
fn is_readable(item: &Item) -> bool {
    item.entry().inspect_err(|error| tracing::warn!(%error, "a watch leaves out a stored object")).is_ok()
}

/// Leaves out the events that no client can read.
///
/// # Errors
///
/// 410 after a change of an object that cannot be read: a client may hold an earlier state, and must list again.
fn readable_events(mut events: Vec<Arc<Event>>) -> Result<Vec<Arc<Event>>, Box<Status>> {
    let is_damaged_before = |event: &&Arc<Event>| event.before().is_some_and(|item| item.entry().is_err());
    if let Some(event) = events.iter().find(is_damaged_before) {
        tracing::warn!(
            key = event.key(),
            "an unreadable object was changed or deleted; the watch ends with 410"
        );
        return Err(Box::new(expired_status(event.revision())));
    }
    events.retain(|event| event.after().is_none_or(|item| is_readable(item)));
    Ok(events)
}

async fn converted_changes(
    converter: &ObjectConverter,
    events: Vec<Arc<Event>>,
) -> Result<Vec<ObjectChange>, Box<Status>> {
    let both_items = |event: &Arc<Event>| [event.before().cloned(), event.after().cloned()];
    let items: Vec<Arc<Item>> = events.iter().flat_map(both_items).flatten().collect();
    let mut converted = converter.items(items).await?.into_iter();
    let changes = events.into_iter().map(|event| {
        let mut change = ObjectChange { event: None, ..ObjectChange::from_event(event) };
        change.old = change.old.and_then(|_| converted.next());
        change.new = change.new.and_then(|_| converted.next());
        change
    });
    Ok(changes.collect())
}

impl Selection {
    /// Returns a change as a client with this selection sees it; None if the selection excludes the object.
    fn select_change(&self, change: ObjectChange) -> Result<Option<ChangedObject>, Box<Status>> {
        let selects = |item: Option<Arc<Item>>| match item {
            Some(item) => self.selects(&item).map(|selected| selected.then_some(item)),
            None => Ok(None),
        };
        let ObjectChange { kind, revision, old, new, event } = change;
        let (old, new) = (selects(old)?, selects(new)?);
        let (kind, item) = match (old, new) {
            (Some(_), Some(new)) if kind != EventKind::Added => (EventKind::Modified, new),
            (_, Some(new)) => (EventKind::Added, new),
            (Some(old), None) => (EventKind::Deleted, old),
            (None, None) => return Ok(None),
        };
        Ok(Some(ChangedObject { kind, item, revision, event }))
    }
}
