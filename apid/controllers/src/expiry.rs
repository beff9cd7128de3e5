//! Expiry of Events: deletes Events some time after their last write (`--event-ttl`).
//!
//! # Contract
//!
//! The expiry task deletes an Event whose last write is older than the TTL. Each deletion has its own
//! revision, so watches in both API versions see DELETED. At process start, the time of the last write
//! is the newest of the creation time and the times in `managedFields`. Later it is the time at which the
//! task observed the write. The task deletes at most [`BATCH`] Events at a time, even if more have expired.
//!
//! # Invariants
//!
//! INVARIANT (only expired Events): a deletion applies only to the revision that expired. An Event that is
//! written meanwhile stays. Unlike other background tasks, the expiry task does not write through the verbs. It
//! needs no authorization, ignores finalizers, and writes no audit event for each of very many objects.
//!
//! # Reference
//!
//! Requirements, appendix (b), `--event-ttl`. Kubernetes attaches Events to an etcd lease that each write
//! renews.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::object::Value;
use futures_util::future::join_all;
use storage::{Change, Error, Op, Revision, Row, Store, Watch};

use super::stored;
use verbs::ApiState;

/// Maximum number of deletions in a batch.
const BATCH: usize = 200;
/// Maximum pause after a batch, which lets other writes through. A change of an Event ends the pause early.
const PAUSE: Duration = Duration::from_millis(20);
/// Pause before the task starts again after a failure.
const RETRY: Duration = Duration::from_secs(5);
/// Maximum number of Events in one read of the store.
const PAGE: usize = 500;

/// Deletes expired Events until the process stops. Events never expire if `ttl` is zero.
pub(super) async fn run(api_state: Arc<ApiState>, ttl: Duration) {
    let Ok(events) = stored::core(&api_state, "events") else { return };
    if ttl.is_zero() {
        return;
    }
    let prefix = events.kind.key_prefix.clone();
    let mut stopping = api_state.stopping.clone();
    let restart_loop = async {
        loop {
            let mut expiry = Expiry::new(api_state.store.clone(), &prefix, api_state.clock.clone(), ttl);
            if let Err(error) = expiry.run().await {
                tracing::warn!(%error, "event expiry failed; restarting");
            }
            tokio::time::sleep(RETRY).await;
        }
    };
    // Stop before the store closes during shutdown, so that its errors are not logged.
    tokio::select! {
        biased;
        _ = stopping.wait_for(|stops| *stops) => {}
        () = restart_loop => {}
    }
}

/// The known Events and their expiry times.
struct Expiry {
    store: Arc<dyn Store>,
    prefix: String,
    clock: Arc<dyn Clock>,
    ttl: Duration,
    /// Keys by expiry time (monotonic clock) and revision; one entry for each existing Event.
    keys_by_expiry: BTreeMap<(Duration, Revision), Arc<str>>,
    /// Expiry time and revision by key.
    expiry_by_key: HashMap<Arc<str>, (Duration, Revision)>,
}

impl Expiry {
    fn new(store: Arc<dyn Store>, prefix: &str, clock: Arc<dyn Clock>, ttl: Duration) -> Self {
        Expiry {
            store,
            prefix: prefix.to_owned(),
            clock,
            ttl,
            keys_by_expiry: BTreeMap::new(),
            expiry_by_key: HashMap::new(),
        }
    }

    async fn run(&mut self) -> Result<(), Error> {
        let mut watch = self.start().await?;
        loop {
            let wait = match self.expire().await? {
                0 => self.time_until_next_expiry(),
                _ => PAUSE,
            };
            tokio::select! {
                changes = watch.next() => self.observe(&changes?),
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Reads the existing Events, and opens a watch of the changes after the first read.
    async fn start(&mut self) -> Result<Box<dyn Watch>, Error> {
        let mut page = self.store.range(&self.prefix, "", PAGE, None).await?;
        let revision = page.revision;
        loop {
            let (now, wall_clock_now) = (self.clock.monotonic(), self.clock.now());
            for row in &page.rows {
                let age = last_write(row).map_or(Duration::ZERO, |written| {
                    Duration::try_from(wall_clock_now.duration_since(written)).unwrap_or_default()
                });
                let end = now + self.ttl.saturating_sub(age);
                self.set_expiry(&row.key, Some((end, row.revision)));
            }
            match page.rows.last() {
                Some(last) if page.more => {
                    let start = format!("{}\0", last.key);
                    page = self.store.range(&self.prefix, &start, PAGE, Some(revision)).await?;
                }
                _ => break,
            }
        }
        self.store.watch(&self.prefix, revision).await
    }

    /// Sets the expiry time of changed Events, and removes deleted Events.
    fn observe(&mut self, changes: &[Change]) {
        let end = self.clock.monotonic() + self.ttl;
        for change in changes {
            self.set_expiry(&change.key, change.new.is_some().then_some((end, change.revision)));
        }
    }

    /// Records expiry time and revision of a key; None removes the key.
    fn set_expiry(&mut self, key: &Arc<str>, end: Option<(Duration, Revision)>) {
        let previous = match end {
            Some(end) => self.expiry_by_key.insert(key.clone(), end),
            None => self.expiry_by_key.remove(key),
        };
        if let Some(previous) = previous {
            self.keys_by_expiry.remove(&previous);
        }
        if let Some(end) = end {
            self.keys_by_expiry.insert(end, key.clone());
        }
    }

    /// Returns the time until the next expiry; the TTL if no Event exists.
    fn time_until_next_expiry(&self) -> Duration {
        let next = self
            .keys_by_expiry
            .first_key_value()
            .map_or(self.ttl, |((end, _), _)| end.saturating_sub(self.clock.monotonic()));
        next.max(Duration::from_millis(1))
    }

    /// Tries to delete the first [`BATCH`] expired Events. Returns the number of attempts.
    async fn expire(&mut self) -> Result<usize, Error> {
        let now = self.clock.monotonic();
        let mut due = Vec::new();
        while let Some(first) = self.keys_by_expiry.first_entry()
            && first.key().0 <= now
            && due.len() < BATCH
        {
            let ((_, revision), key) = first.remove_entry();
            self.expiry_by_key.remove(&key);
            due.push((key, revision));
        }
        let results =
            join_all(due.iter().map(|(key, revision)| self.store.commit(key, Op::Delete(*revision)))).await;
        let mut failure = None;
        for ((key, revision), result) in due.iter().zip(results) {
            match result {
                // `Conflict` and `NotFound`: the Event was written or deleted meanwhile.
                Ok(_) | Err(Error::Conflict(_) | Error::NotFound(_)) => {}
                Err(error) => {
                    self.set_expiry(key, Some((now, *revision)));
                    failure = Some(error);
                }
            }
        }
        match failure {
            Some(error) => Err(error),
            None => Ok(due.len()),
        }
    }
}

/// Returns the time of the last write: the newest of the creation time and the times in `managedFields`.
fn last_write(row: &Row) -> Option<jiff::Timestamp> {
    let object = kinds::entry::decode(&row.value, row.revision).ok()?;
    let parse_time = |value: Option<&Value>| value.and_then(Value::as_str)?.parse().ok();
    let managed_fields = object.meta().and_then(|meta| meta.get("managedFields")).and_then(Value::as_array);
    let managed_times =
        managed_fields.into_iter().flatten().filter_map(|entry| parse_time(entry.get("time")));
    managed_times.chain(parse_time(object.at(&["metadata", "creationTimestamp"]))).max()
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::ManualClock;
    use bytes::Bytes;
    use serde_json::json;
    use storage::engine::memory::MemoryStore;
    use storage::{Observers, Revision};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const MINUTE: Duration = Duration::from_secs(60);

    struct Server {
        store: Arc<dyn Store>,
        clock: Arc<ManualClock>,
    }

    impl Server {
        fn start() -> Self {
            let store = Arc::new(MemoryStore::new(Arc::new(Observers(Vec::new()))));
            Server { store, clock: Arc::new(ManualClock::at("2025-05-01T12:00:00Z".parse().unwrap())) }
        }

        fn expiry(&self) -> Expiry {
            Expiry::new(self.store.clone(), "/events/", self.clock.clone(), HOUR)
        }

        async fn write(&self, key: &str, created: &str, owners: &[&str], at: Option<Revision>) -> Revision {
            let owners: Vec<_> = owners.iter().map(|time| json!({ "time": time })).collect();
            let event = json!({"metadata": {"creationTimestamp": created, "managedFields": owners}});
            let value = Bytes::from(event.to_string());
            let op = at.map_or(Op::Create(value.clone()), |at| Op::Update(value, at));
            self.store.commit(key, op).await.unwrap().revision
        }

        async fn keys(&self) -> Vec<String> {
            let page = self.store.range("", "", 0, None).await.unwrap();
            page.rows.iter().map(|row| row.key.to_string()).collect()
        }
    }

    /// After a restart, the age follows from the object: a later write overrides the creation time.
    #[tokio::test]
    async fn event_expiry_after_restart_uses_last_write_time() {
        let server = Server::start();
        server.write("/events/a/old", "2025-05-01T10:59:00Z", &[], None).await;
        server.write("/events/a/young", "2025-05-01T11:30:00Z", &[], None).await;
        server
            .write(
                "/events/b/again",
                "2025-05-01T01:00:00Z",
                &["2025-05-01T02:00:00Z", "2025-05-01T11:30:00Z"],
                None,
            )
            .await;
        server.write("/events/b/tomorrow", "2025-05-02T00:00:00Z", &[], None).await;
        server.write("/events/b/unreadable", "soon", &[], None).await;
        server.write("/eventful/old", "2020-05-01T10:59:00Z", &[], None).await;
        let mut expiry = server.expiry();
        let _watch = expiry.start().await.unwrap();
        let mut remaining_counts = Vec::new();
        for _ in 0..4 {
            expiry.expire().await.unwrap();
            remaining_counts.push(server.keys().await.len());
            server.clock.advance(20 * MINUTE);
        }
        assert_eq!(
            remaining_counts,
            [5, 5, 3, 1],
            "the old Event, the two written half an hour ago, then the other two after the full TTL"
        );
        assert_eq!(server.keys().await, ["/eventful/old"]);
    }

    #[tokio::test]
    async fn event_write_renews_ttl_and_expiry_is_visible_to_watches() {
        let server = Server::start();
        let mut expiry = server.expiry();
        let mut watch = expiry.start().await.unwrap();
        let first = server.write("/events/a/x", "2025-05-01T12:00:00Z", &[], None).await;
        expiry.observe(&watch.next().await.unwrap());
        server.clock.advance(50 * MINUTE);
        let second = server.write("/events/a/x", "2025-05-01T12:00:00Z", &[], Some(first)).await;
        expiry.observe(&watch.next().await.unwrap());
        server.clock.advance(59 * MINUTE);
        assert_eq!(expiry.expire().await.unwrap(), 0, "the second write renewed the Event");
        assert_eq!(expiry.keys_by_expiry.len(), 1, "one entry per existing Event");
        assert_eq!(server.keys().await, ["/events/a/x"]);
        assert_eq!(expiry.time_until_next_expiry(), MINUTE);
        server.clock.advance(MINUTE);
        expiry.expire().await.unwrap();
        let changes = watch.next().await.unwrap();
        let [deleted] = &changes[..] else { panic!("{changes:?}") };
        assert!(deleted.new.is_none() && deleted.revision > second);
        assert_eq!(deleted.old.as_ref().unwrap().revision, second);
        expiry.observe(&changes);
        assert!(expiry.keys_by_expiry.is_empty());
    }

    /// The Event was written again between its expiry and the deletion.
    #[tokio::test]
    async fn concurrent_write_prevents_event_expiry() {
        let server = Server::start();
        let old = server.write("/events/a/x", "2025-05-01T02:00:00Z", &[], None).await;
        let mut expiry = server.expiry();
        let _watch = expiry.start().await.unwrap();
        server.write("/events/a/x", "2025-05-01T02:00:00Z", &[], Some(old)).await;
        assert_eq!(expiry.expire().await.unwrap(), 1, "the old revision was due");
        assert_eq!(server.keys().await, ["/events/a/x"]);
    }

    #[tokio::test]
    async fn expired_events_are_deleted_in_batches() {
        let server = Server::start();
        for number in 0..BATCH * 2 + 1 {
            server.write(&format!("/events/{number}"), "2025-04-01T12:00:00Z", &[], None).await;
        }
        let mut expiry = server.expiry();
        let _watch = expiry.start().await.unwrap();
        let mut batches = Vec::new();
        for _ in 0..4 {
            batches.push(expiry.expire().await.unwrap());
        }
        assert_eq!(batches, [BATCH, BATCH, 1, 0]);
        assert!(server.keys().await.is_empty());
    }
}
