//! The watch of the whole store, and the publication of its changes.
//!
//! # Contract
//!
//! One watch follows all keys of the store, so that the observer sees all changes in the order of their revisions. The
//! watch asks for fragments and joins them: the changes of one revision stay together. A watch that ends is opened
//! again after the last received revision, at another member. If etcd has compacted that revision meanwhile, changes are
//! lost, and so is the store.
//!
//! The revision of the store advances with changes and with progress notices. A notice is requested when a reader waits
//! for a revision, and in pauses without changes. For a member of a release with unordered notices, the engine writes
//! a key of its own instead; the event of this write arrives after all earlier ones.
//!
//! # Concurrency
//!
//! One task receives changes. A blocking task calls the observer and then publishes the changes, until the last received
//! change is published. The queue between the tasks is bounded in bytes: a slow observer stops the stream of the member.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use super::client::{Client, Failure};
use super::keys::Keys;
use super::protocol as pb;
use super::queue::{Sender, queue};
use super::status::has_ordered_progress;
use super::{Shared, from_etcd, revision_of, to_etcd, write_mark};
use crate::{Change, Observer, Revision, Row};

/// Pause between two requests for progress while a reader waits for it.
const REQUEST_INTERVAL: Duration = Duration::from_millis(50);
/// Pause without messages after which the task asks for progress.
const IDLE_INTERVAL: Duration = Duration::from_secs(5);
/// Pause without changes after which the task writes the key of the engine, for old releases.
const MARK_INTERVAL: Duration = Duration::from_secs(60);
/// Time after which the watch leaves a member that answers no request for progress, while no caller waits.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time without messages after which the watch leaves a member, while a caller waits for a revision.
const WAIT_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause before a watch that ended is opened again; doubled for each further failure.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause before a watch is opened again.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Maximum size in bytes of the changes that wait for the observer.
const QUEUE_BYTES: u32 = 32 << 20;
/// Maximum number of requests to a watch stream that wait to be sent.
const REQUESTS: usize = 4;

/// Changes for the observer, with the revision up to which they are complete.
struct Batch {
    changes: Vec<Change>,
    through: u64,
    /// Whether an event of the store, and not only a progress notice, has the last revision.
    is_event: bool,
}

/// The reason why the watch ended.
#[derive(Debug)]
pub(super) enum End {
    /// Another watch continues.
    Failed(Failure),
    /// Changes are lost: etcd has compacted their history.
    Gap(String),
    /// The store closed, or is lost.
    Closed,
}

impl From<Failure> for End {
    fn from(failure: Failure) -> Self {
        End::Failed(failure)
    }
}

/// The messages of one watch stream, with joined fragments.
pub(super) struct Events {
    stream: tonic::Streaming<pb::WatchResponse>,
    requests: mpsc::Sender<pb::WatchRequest>,
    member: String,
    pending: Vec<pb::Event>,
    /// The time of the last message or fragment.
    last_received: Instant,
}

/// A message of a watch stream.
pub(super) enum Message {
    /// All changes of some revisions, in order.
    Events(Vec<pb::Event>),
    /// All changes up to a revision were sent.
    Progress(Revision),
    /// The watch exists.
    Created,
    /// The watch began before the compacted revision.
    Compacted(Revision),
}

impl Events {
    /// Opens a watch of the keys with a prefix from a revision on. Returns the state of the member, too.
    pub(super) async fn open(
        client: &Client,
        prefix: Vec<u8>,
        from: Revision,
    ) -> Result<(Self, pb::StatusResponse), Failure> {
        let create = pb::WatchCreateRequest {
            range_end: pb::range_end(&prefix),
            key: prefix,
            start_revision: to_etcd(from).max(1),
            progress_notify: true,
            prev_kv: true,
            fragment: true,
        };
        let (requests, sent) = mpsc::channel(REQUESTS);
        request(&requests, pb::WatchRequestKind::Create(create));
        let (member, status, stream) = client.watch(ReceiverStream::new(sent)).await?;
        let (member, pending, last_received) = (member.to_owned(), Vec::new(), Instant::now());
        Ok((Events { stream, requests, member, pending, last_received }, status))
    }

    /// Requests a progress notice.
    fn request_progress(&self) {
        request(&self.requests, pb::WatchRequestKind::Progress(pb::WatchProgressRequest {}));
    }

    /// Waits for the next message. Cancel-safe.
    pub(super) async fn next(&mut self) -> Result<Message, Failure> {
        loop {
            let response = match self.stream.message().await {
                Ok(Some(response)) => response,
                Ok(None) => return Err(Failure::own(&self.member, "the stream ended")),
                Err(status) => return Err(Client::stream_failure(&self.member, &status)),
            };
            self.last_received = Instant::now();
            if response.compact_revision > 0 {
                return Ok(Message::Compacted(from_etcd(response.compact_revision)));
            }
            if response.canceled {
                return Err(Failure::own(
                    &self.member,
                    &format!("the watch was cancelled: {}", response.cancel_reason),
                ));
            }
            let revision = revision_of(response.header.as_ref());
            let (created, is_part) = (response.created, response.fragment);
            self.pending.extend(response.events);
            if is_part {
                continue;
            }
            if !self.pending.is_empty() {
                return Ok(Message::Events(std::mem::take(&mut self.pending)));
            }
            return Ok(if created { Message::Created } else { Message::Progress(revision) });
        }
    }
}

/// Sends a request. If the queue is full, an earlier request for progress waits there and serves this one, too.
fn request(requests: &mpsc::Sender<pb::WatchRequest>, kind: pb::WatchRequestKind) {
    let _ = requests.try_send(pb::WatchRequest { kind: Some(kind) });
}

/// The change of an event; None for a key that is no object.
///
/// # Errors
///
/// The previous row is compacted: the key.
pub(super) fn change(event: pb::Event, keys: &Keys) -> Result<Option<Change>, Arc<str>> {
    let Some(kv) = event.kv else { return Ok(None) };
    let Some(key) = keys.parse(&kv.key) else { return Ok(None) };
    let is_deleted = event.kind == pb::DELETED;
    let old = event.prev_kv.map(|old| Row {
        key: Arc::clone(&key),
        value: old.value.into(),
        revision: from_etcd(old.mod_revision),
    });
    let is_created = !is_deleted && kv.create_revision == kv.mod_revision;
    if old.is_none() && !is_created {
        return Err(key);
    }
    Ok(Some(Change {
        key,
        old: old.filter(|_| !is_created),
        new: (!is_deleted).then(|| kv.value.into()),
        revision: from_etcd(kv.mod_revision),
    }))
}

/// The revision of an event.
pub(super) fn event_revision(event: &pb::Event) -> u64 {
    event.kv.as_ref().map_or(0, |kv| from_etcd(kv.mod_revision).0)
}

/// The task that receives changes.
pub(super) struct Feed {
    shared: Arc<Shared>,
    client: Arc<Client>,
    batches: Sender<Batch>,
    /// The newest received revision.
    position: u64,
    /// Whether a write of the key of the engine runs.
    is_marking: Arc<AtomicBool>,
}

/// Starts the task that receives changes after a revision, and the task that publishes them.
pub(super) fn start(
    tasks: &mut JoinSet<()>,
    shared: &Arc<Shared>,
    client: &Arc<Client>,
    observer: Arc<dyn Observer>,
    after: Revision,
) {
    let (batches, received) = queue(QUEUE_BYTES);
    let publisher = Arc::clone(shared);
    tasks.spawn_blocking(move || received.process(|batch| publish(&publisher, &*observer, batch)));
    let (shared, client) = (Arc::clone(shared), Arc::clone(client));
    let feed = Feed { shared, client, batches, position: after.0, is_marking: Arc::default() };
    tasks.spawn(feed.run());
}

fn publish(shared: &Shared, observer: &dyn Observer, batch: Batch) {
    let Batch { changes, through, is_event } = batch;
    shared.receive(&changes, through, is_event);
    let newest = changes.last().map(|change| change.revision.0);
    if !changes.is_empty() {
        observer.observe(&changes);
    }
    if newest != Some(through) {
        observer.progress(Revision(through));
    }
    shared.published.send_replace(through);
}

impl Feed {
    /// Receives until the store closes or changes are lost.
    async fn run(mut self) {
        let mut pause = SHORTEST_PAUSE;
        loop {
            let begin = Instant::now();
            match self.follow().await {
                End::Closed => return,
                End::Gap(reason) => return self.shared.report_gap(reason),
                End::Failed(failure) => {
                    tracing::warn!(error = %failure, revision = self.position, "the watch of etcd ended; opening a new one");
                    let mut interruption = self.shared.interruption.lock();
                    let since = interruption.as_ref().map_or_else(Instant::now, |(since, _)| *since);
                    *interruption = Some((since, failure.to_string()));
                }
            }
            if begin.elapsed() > LONGEST_PAUSE {
                pause = SHORTEST_PAUSE;
            }
            tokio::time::sleep(pause).await;
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
    }

    /// Follows one watch until it ends.
    async fn follow(&mut self) -> End {
        match self.try_follow().await {
            Ok(end) | Err(end) => end,
        }
    }

    async fn try_follow(&mut self) -> Result<End, End> {
        // The watch begins at the last received revision, and skips it: etcd rejects exactly the revisions before the
        // compacted one.
        let (mut events, status) =
            Events::open(&self.client, self.shared.keys.root(), Revision(self.position)).await?;
        let is_ordered = has_ordered_progress(&status.version);
        let mut last_message = Instant::now();
        let mut last_request = last_message;
        let mut unanswered: Option<Instant> = None;
        loop {
            let is_awaited = self.shared.awaited_revision.load(Ordering::Relaxed) > self.position;
            let is_write_pending = self.shared.written_revision.load(Ordering::Relaxed) > self.position;
            if is_write_pending {
                unanswered.get_or_insert_with(Instant::now);
            }
            let limit = if is_awaited || is_write_pending { WAIT_TIMEOUT } else { ANSWER_TIMEOUT };
            let leave = unanswered.map(|since| since.max(events.last_received) + limit);
            let due = match (is_awaited, is_ordered) {
                (true, _) => last_request + REQUEST_INTERVAL,
                (false, true) => last_message.max(last_request) + IDLE_INTERVAL,
                (false, false) => last_message.max(last_request) + MARK_INTERVAL,
            };
            let due = leave.map_or(due, |leave| leave.min(due));
            let message = tokio::select! {
                message = events.next() => message,
                () = self.batches.closed() => return Ok(self.end_of_publication()),
                () = self.shared.wake.notified(), if !is_awaited => continue,
                () = tokio::time::sleep_until(due) => {
                    if leave.is_some_and(|leave| leave <= Instant::now()) {
                        self.client.record_failure(&events.member);
                        let text = "neither an answer to a request for progress nor the event of a write arrives";
                        return Err(Failure::own(&events.member, text).into());
                    }
                    if is_ordered {
                        unanswered.get_or_insert_with(Instant::now);
                        events.request_progress();
                    } else {
                        self.mark();
                    }
                    last_request = Instant::now();
                    continue;
                }
            };
            let message = message.inspect_err(|_| self.client.record_failure(&events.member))?;
            (last_message, unanswered) = (Instant::now(), None);
            *self.shared.interruption.lock() = None;
            match message {
                Message::Created => {
                    tracing::debug!(
                        member = events.member,
                        revision = self.position,
                        "the watch of etcd is open"
                    );
                }
                Message::Compacted(compacted) => {
                    self.shared.raise_compacted(compacted);
                    return Err(End::Gap(format!(
                        "etcd is compacted at revision {compacted}, and this server has changes up to {} only: it must \
                         start again",
                        self.position
                    )));
                }
                Message::Progress(through) => {
                    self.client.telemetry.progress_notice();
                    self.deliver(Batch { changes: Vec::new(), through: through.0, is_event: false }).await?;
                }
                Message::Events(events) => {
                    let through = events.last().map_or(0, event_revision);
                    let changes = self.changes(events)?;
                    self.deliver(Batch { changes, through, is_event: true }).await?;
                }
            }
        }
    }

    fn changes(&self, events: Vec<pb::Event>) -> Result<Vec<Change>, End> {
        let new = events.into_iter().filter(|event| event_revision(event) > self.position);
        let changes = new.filter_map(|event| change(event, &self.shared.keys).transpose());
        changes.collect::<Result<_, _>>().map_err(|key| {
            End::Gap(format!(
                "the previous value of key `{key}` is compacted in etcd: this server must start again"
            ))
        })
    }

    /// Passes changes on to the task that publishes, unless the store is lost: they are those of another history.
    async fn deliver(&mut self, batch: Batch) -> Result<(), End> {
        if self.shared.check_open().is_err() {
            return Err(End::Closed);
        }
        if batch.through <= self.position {
            return Ok(());
        }
        self.position = batch.through;
        let bytes = batch.changes.iter().map(Change::bytes).sum();
        if self.batches.send(batch, bytes).await { Ok(()) } else { Err(self.end_of_publication()) }
    }

    /// The end of the watch after the end of the task that publishes: the task ends early only when an observer panics.
    fn end_of_publication(&self) -> End {
        match self.shared.check_open() {
            Ok(()) => {
                let reason = "the thread that publishes changes failed: this server must start again";
                End::Gap(reason.to_owned())
            }
            Err(_) => End::Closed,
        }
    }

    /// Writes the key of the engine, unless such a write runs.
    fn mark(&self) {
        if self.is_marking.swap(true, Ordering::Relaxed) {
            return;
        }
        let (client, shared, is_marking) =
            (Arc::clone(&self.client), Arc::clone(&self.shared), Arc::clone(&self.is_marking));
        tokio::spawn(async move {
            match write_mark(&client, &shared.keys).await {
                Ok(revision) => shared.expect_event(revision),
                Err(error) => {
                    tracing::warn!(%error, "the write of the key `mark` in etcd failed; retrying later")
                }
            }
            is_marking.store(false, Ordering::Relaxed);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::PlainKeys;
    use super::*;

    fn event(kind: i32, (create, revision): (i64, i64), old: Option<i64>) -> pb::Event {
        let kv = |create_revision, mod_revision, value: &str| pb::KeyValue {
            key: b"/r/a".to_vec(),
            create_revision,
            mod_revision,
            value: value.as_bytes().to_vec(),
            ..pb::KeyValue::default()
        };
        pb::Event {
            kind,
            kv: Some(kv(create, revision, "new")),
            prev_kv: old.map(|at| kv(create, at, "old")),
        }
    }

    #[test]
    fn event_becomes_a_change_with_its_previous_row() {
        let keys = Keys::new("/r", Arc::new(PlainKeys));
        let of = |event| change(event, &keys).unwrap().unwrap();
        let created = of(event(0, (5, 5), None));
        assert_eq!((created.old, created.new, created.revision), (None, Some("new".into()), Revision(5)));
        let updated = of(event(0, (5, 7), Some(5)));
        assert_eq!(updated.old.unwrap().revision, Revision(5));
        let deleted = of(event(pb::DELETED, (0, 9), Some(7)));
        assert_eq!((deleted.new, deleted.old.unwrap().value), (None, "old".into()));
    }

    #[test]
    fn event_without_its_previous_row_is_a_gap() {
        let keys = Keys::new("/r", Arc::new(PlainKeys));
        assert_eq!(change(event(0, (5, 7), None), &keys), Err("a".into()));
        assert_eq!(change(event(pb::DELETED, (0, 7), None), &keys), Err("a".into()));
        let mut foreign = event(0, (5, 7), None);
        foreign.kv.as_mut().unwrap().key = b"/other".to_vec();
        assert_eq!(change(foreign, &keys), Ok(None), "other data have no previous row to lose");
    }
}
