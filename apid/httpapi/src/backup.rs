//! `/store/backup`: a backup of all objects at one revision, streamed while the server runs.
//!
//! # Contract
//!
//! A backup contains all Secrets. A client therefore needs the verb `post` on the path: a role with `get` on `*`
//! permits metrics and health checks but no backup. The audit log has one line at the start and one at the end of a
//! backup, with the revision as annotation.
//!
//! The body is a backup file as `FORMAT.md` of the store specifies. It ends with a record of the number of objects, so
//! that a client detects a backup that was interrupted. A [lease](storage::HistoryLease) retains the history of the revision
//! while the backup runs. One backup runs at a time.
//!
//! # Errors
//!
//! 429 while a backup runs already, 503 if the first object of a resource cannot be read. A backup is interrupted when the
//! store cannot be read, when the client accepts no data for [`TimeLimits::part`], and after [`TimeLimits::total`].
//!
//! # Invariants
//!
//! INVARIANT (one revision): all objects are read at the revision of the head.
//! INVARIANT (bounded memory): a backup has at most three parts of [`PART_BYTES`] in memory, or of one object each.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::status::Status;
use bytes::Bytes;
use futures_util::stream;
use http::Version;
use http_body::Frame;
use http_body_util::StreamBody;
use serving::body::Body;
use storage::engine::fjall::Identity;
use storage::engine::fjall::offline::ArchiveEncoder;
use storage::{HistoryLease, Revision, Store};
use tokio::sync::{OwnedSemaphorePermit, mpsc};

use crate::in_flight::too_many_requests;
use crate::request_context::RequestContext;
use crate::response::respond::ApiResponse;
use crate::state::HttpState;
use audit::{Event, Outcome, Stage};

/// Path of the endpoint.
pub(super) const PATH: &str = "/store/backup";
/// Maximum total size of the keys and values in one part of the body, in bytes. A larger object is a part of
/// its own.
const PART_BYTES: usize = 1 << 20;
/// Name of the audit annotation with the revision, without the audit domain.
const REVISION_ANNOTATION: &str = "backup-revision";

/// The time that a backup may take.
#[derive(Clone, Copy, Debug)]
struct TimeLimits {
    /// Maximum time until the client has accepted the next part.
    part: Duration,
    /// Maximum time until the client has accepted all parts. The history is retained for this time at most.
    total: Duration,
}

impl TimeLimits {
    const SERVER: TimeLimits =
        TimeLimits { part: Duration::from_secs(60), total: Duration::from_secs(30 * 60) };
}

/// A part of the body.
enum Part {
    /// More parts follow.
    Middle(Bytes),
    /// The end of the backup.
    Last(Bytes),
}

/// The reason why a backup was interrupted.
#[derive(Debug, thiserror::Error)]
enum BackupError {
    /// The store cannot be read.
    #[error("the store cannot be read: {0}")]
    Store(#[from] storage::Error),
    /// The client ended the request.
    #[error("the client disconnected")]
    Disconnected,
    /// The client accepts no data.
    #[error("the client accepted no data within {0:?}")]
    UnreadPart(Duration),
    /// The whole backup takes too long.
    #[error("the backup was not complete within {0:?}")]
    Timeout(Duration),
}

/// Begins a backup.
///
/// # Errors
///
/// 429: a backup runs already. 503: an object cannot be read, or is encrypted with an unknown key.
pub(super) async fn handle(context: &RequestContext) -> Result<ApiResponse, Status> {
    let state = context.api_state();
    let permit = Arc::clone(&context.http_state.backups).try_acquire_owned();
    let permit = permit.map_err(|_| too_many_requests("a backup is running already"))?;
    // A client can read a change from the watch cache before the store publishes the revision.
    let revision = state.cache.revision();
    let identity = Identity {
        preset: state.names.preset().to_string(),
        api_domain: state.names.api_domain().to_owned(),
    };
    let lease = state.store.lease_history(revision);
    // The stream has no place for a reason, so that objects that the server cannot decrypt are found here.
    let prefixes = kinds::stored_prefixes(&*state.store, revision).await;
    let prefixes =
        prefixes.map_err(|error| Status::unavailable(format!("the backup does not start: {error}"), 0))?;
    let backup = Backup {
        lease,
        permit,
        store: Arc::clone(&state.store),
        prefixes,
        revision,
        limits: TimeLimits::SERVER,
    };
    let record = BackupRecord::begin(context, revision).await;
    let (sender, parts) = mpsc::channel(1);
    // HTTP/2 resets the stream instead of cutting the connection.
    let cut = (context.head.version < Version::HTTP_2).then(|| context.connection.cut.clone());
    tokio::spawn(async move {
        let result = backup.run(&identity, sender).await;
        if let (Err(_), Some(cut)) = (&result, cut) {
            cut.now();
        }
        record.complete(result).await;
    });
    Ok(ApiResponse::octets(body(parts)))
}

/// Returns the body of a backup. A failed backup ends the body with an error, because the head has been sent.
fn body(parts: mpsc::Receiver<Part>) -> Body {
    let frames = stream::unfold(Some(parts), |parts| async move {
        let mut parts = parts?;
        match parts.recv().await {
            Some(Part::Middle(bytes)) => Some((Ok(Frame::data(bytes)), Some(parts))),
            Some(Part::Last(bytes)) => Some((Ok(Frame::data(bytes)), None)),
            None => Some((Err(std::io::Error::other("the backup was interrupted")), None)),
        }
    });
    Body::stream(StreamBody::new(frames))
}

/// A running backup. It has its own task, so it also ends when the client does not read.
struct Backup {
    store: Arc<dyn Store>,
    /// The prefixes of all keys. The file is sorted by key; an engine may order resources differently.
    prefixes: Vec<String>,
    revision: Revision,
    limits: TimeLimits,
    lease: HistoryLease,
    permit: OwnedSemaphorePermit,
}

impl Backup {
    /// Sends all parts. Returns the number of objects and the number of bytes.
    async fn run(self, identity: &Identity, parts: mpsc::Sender<Part>) -> Result<(u64, u64), BackupError> {
        let sending = self.send_all_but_last(identity, &parts);
        let result = tokio::time::timeout(self.limits.total, sending).await;
        // Releases the history and the permit before the client sees the end.
        drop((self.lease, self.permit));
        let (last, objects, bytes) = result.map_err(|_| BackupError::Timeout(self.limits.total))??;
        send(&parts, Part::Last(last), self.limits.part).await?;
        Ok((objects, bytes))
    }

    /// Sends all parts except the last. Returns the last part, the number of objects and the number of bytes.
    async fn send_all_but_last(
        &self,
        identity: &Identity,
        parts: &mpsc::Sender<Part>,
    ) -> Result<(Bytes, u64, u64), BackupError> {
        let mut out = Vec::new();
        let mut encoder = ArchiveEncoder::begin(identity, self.revision.0, &mut out);
        for prefix in &self.prefixes {
            let mut next = Some(String::new());
            while let Some(start) = next {
                let room = PART_BYTES.saturating_sub(out.len());
                let page = self.store.stored_rows_within(prefix, &start, room, self.revision).await?;
                if !out.is_empty() && page.rows.first().is_some_and(|row| row.size() > room) {
                    send(parts, Part::Middle(std::mem::take(&mut out).into()), self.limits.part).await?;
                }
                for row in &page.rows {
                    encoder.add(&row.key, row.revision.0, &row.value, &mut out);
                }
                next = page.rows.last().filter(|_| page.more).map(|last| format!("{}\0", last.key));
                if next.is_some() {
                    send(parts, Part::Middle(std::mem::take(&mut out).into()), self.limits.part).await?;
                }
            }
        }
        let counts = encoder.finish(&mut out);
        Ok((out.into(), counts.objects, counts.bytes))
    }
}

async fn send(parts: &mpsc::Sender<Part>, part: Part, limit: Duration) -> Result<(), BackupError> {
    match tokio::time::timeout(limit, parts.send(part)).await {
        Ok(result) => result.map_err(|_| BackupError::Disconnected),
        Err(_) => Err(BackupError::UnreadPart(limit)),
    }
}

/// The log lines and audit lines of a backup.
struct BackupRecord {
    http_state: Arc<HttpState>,
    request_id: String,
    revision: Revision,
    /// None if the request is not audited.
    event: Option<Box<Event>>,
}

impl BackupRecord {
    /// Writes the log line and the audit line of the start.
    async fn begin(context: &RequestContext, revision: Revision) -> Self {
        let names = &context.api_state().names;
        let event = context.audit.take().map(|mut event| {
            let annotation = format!("{}/{REVISION_ANNOTATION}", names.group("audit"));
            event.annotate(annotation, &revision.to_string());
            event
        });
        let (http_state, request_id) = (Arc::clone(&context.http_state), context.id.clone());
        let record = BackupRecord { http_state, request_id, revision, event };
        let user = context.share.get().map_or("", |share| &*share.user);
        tracing::info!(request_id = record.request_id, user, revision = revision.0, "backup started");
        record.audit(Stage::ResponseStarted, 200, None).await;
        record
    }

    /// Writes the log line and the audit line of the end.
    async fn complete(self, result: Result<(u64, u64), BackupError>) {
        let (request_id, revision) = (&self.request_id, self.revision.0);
        match result {
            Ok((objects, bytes)) => {
                tracing::info!(request_id, revision, objects, bytes, "backup complete");
                self.audit(Stage::ResponseComplete, 200, None).await;
            }
            Err(error) => {
                tracing::error!(request_id, revision, %error, "backup failed; aborting the response");
                let status = Status::internal(format!("the backup was interrupted: {error}"));
                self.audit(Stage::ResponseComplete, status.code, Some(&status)).await;
            }
        }
    }

    async fn audit(&self, stage: Stage, code: u16, status: Option<&Status>) {
        if let Some(event) = &self.event {
            self.http_state.audit.write(event, stage, Outcome { code, status }).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use storage::engine::fjall::offline::ArchiveReader;
    use storage::engine::memory::MemoryStore;
    use storage::{Observers, Op, Page};
    use tokio::sync::Semaphore;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(50);

    /// A backup of a store with rows of a megabyte each.
    async fn backup(rows: usize, limits: TimeLimits) -> (Backup, Arc<Semaphore>) {
        let store = MemoryStore::new(Arc::new(Observers(Vec::new())));
        for number in 0..rows {
            let value = Bytes::from(vec![7; PART_BYTES]);
            store.commit(&number.to_string(), Op::Create(value)).await.unwrap();
        }
        let permits = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&permits).try_acquire_owned().unwrap();
        let (lease, revision) = (HistoryLease::default(), store.revision());
        let prefixes = kinds::stored_prefixes(&store, revision).await.unwrap();
        (Backup { store: Arc::new(store), prefixes, revision, limits, lease, permit }, permits)
    }

    fn identity() -> Identity {
        Identity { preset: "svc".to_owned(), api_domain: "svc.internal".to_owned() }
    }

    /// A store with the order of etcd, where keys have no group.
    struct EtcdOrder(MemoryStore);

    fn in_etcd(key: &str) -> &str {
        key.split_once('/').map_or(key, |(_, rest)| rest)
    }

    #[async_trait]
    impl storage::conformance::StoreDouble for EtcdOrder {
        fn inner(&self) -> &dyn Store {
            &self.0
        }

        async fn range(
            &self,
            prefix: &str,
            start: &str,
            limit: usize,
            at: Option<Revision>,
        ) -> storage::Result<Page> {
            let mut page = self.0.range(prefix, "", 0, at).await?;
            page.rows.retain(|row| in_etcd(&row.key) >= in_etcd(start));
            page.rows.sort_by(|a, b| in_etcd(&a.key).cmp(in_etcd(&b.key)));
            page.more = limit > 0 && page.rows.len() > limit;
            if page.more {
                page.rows.truncate(limit);
            }
            Ok(page)
        }
    }

    #[tokio::test]
    async fn backup_is_complete_and_sorted_in_each_order_of_resources() {
        let mut keys = Vec::new();
        for resource in ["apps/deployments", "apps/statefulsets", "core/configmaps", "core/secrets"] {
            keys.extend((0..3).map(|number| format!("{resource}/team/{number}")));
        }
        let store = MemoryStore::new(Arc::new(Observers(Vec::new())));
        for key in &keys {
            store.commit(key, Op::Create(vec![7; PART_BYTES / 2].into())).await.unwrap();
        }
        let revision = store.revision();
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let store = EtcdOrder(store);
        let backup = Backup {
            prefixes: kinds::stored_prefixes(&store, revision).await.unwrap(),
            store: Arc::new(store),
            revision,
            limits: TimeLimits { part: LIMIT * 200, total: LIMIT * 200 },
            lease: HistoryLease::default(),
            permit,
        };
        let (sender, mut parts) = mpsc::channel(100);
        assert_eq!(backup.run(&identity(), sender).await.unwrap().0, 12);
        let mut file = Vec::new();
        while let Some(Part::Middle(part) | Part::Last(part)) = parts.recv().await {
            assert!(part.len() < PART_BYTES * 3 / 2);
            file.extend_from_slice(&part);
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("backup"), file).unwrap();
        let mut archive = ArchiveReader::open(&folder.path().join("backup")).unwrap();
        let mut found = Vec::new();
        while let Some((key, ..)) = archive.next_object().unwrap() {
            found.push(key);
        }
        assert_eq!(found, keys);
    }

    #[tokio::test]
    async fn backup_of_client_that_does_not_read_ends_and_frees_its_permit() {
        let (backup, permits) = backup(5, TimeLimits { part: LIMIT, total: LIMIT * 100 }).await;
        let (sender, mut parts) = mpsc::channel(1);
        let result = backup.run(&identity(), sender).await;
        assert!(matches!(result, Err(BackupError::UnreadPart(LIMIT))), "{result:?}");
        assert_eq!(permits.available_permits(), 1);
        assert!(matches!(parts.recv().await, Some(Part::Middle(part)) if part.len() < 2 * PART_BYTES));
        assert!(parts.recv().await.is_none());
    }

    #[tokio::test]
    async fn backup_with_slow_client_ends_at_total_time_limit() {
        let (backup, permits) = backup(50, TimeLimits { part: LIMIT * 200, total: LIMIT * 3 }).await;
        let (sender, mut parts) = mpsc::channel(1);
        let identity = identity();
        let reader = async {
            while parts.recv().await.is_some() {
                tokio::time::sleep(LIMIT / 2).await;
            }
        };
        let (result, ()) = tokio::join!(backup.run(&identity, sender), reader);
        assert!(matches!(result, Err(BackupError::Timeout(_))), "{result:?}");
        assert_eq!(permits.available_permits(), 1);
    }

    #[tokio::test]
    async fn body_of_interrupted_backup_ends_with_an_error() {
        use http_body_util::BodyExt as _;
        let (sender, parts) = mpsc::channel(2);
        sender.send(Part::Middle(Bytes::from_static(b"part"))).await.unwrap();
        drop(sender);
        let mut body = body(parts);
        assert!(body.frame().await.unwrap().is_ok());
        assert!(body.frame().await.unwrap().is_err());
        let (sender, parts) = mpsc::channel(2);
        sender.send(Part::Last(Bytes::from_static(b"part"))).await.unwrap();
        assert!(super::body(parts).collect().await.is_ok());
    }
}
