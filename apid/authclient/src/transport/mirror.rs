//! The client of `Mirror.Sync`: sends policy objects to authd, and performs authd's writes.
//!
//! # Contract
//!
//! A stream begins with a hello message and a snapshot: the reductions of all policy objects at one revision.
//! Every change follows in revision order. While no policy object changes, progress messages report the
//! revision of the store. When the stream breaks or authd falls too far behind, a new stream begins with a
//! new snapshot. An object that cannot be decrypted is missing in the mirror: the object grants nothing. When the object
//! becomes readable after a change of keys, a new stream begins, and cached responses end with the readiness of authd on
//! that stream. authd sends its epoch, its readiness, its metrics, and batches of writes. apid performs the
//! batches one after the other and returns the result of each write.
//!
//! # Invariants
//!
//! INVARIANT (no deadlock at start): the mirror never requests a decision from authd.
//! INVARIANT (complete and in order): the mirror subscribes to changes before it determines the
//! snapshot's revision, and skips changes at or below this revision. The snapshot includes every policy change before
//! the subscription, even a change that the store has not published yet. No change is missed or sent twice. A
//! progress message with revision `r` is sent after every change up to `r`.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use apimachinery::names::Names;
use apimachinery::status::Status;
use async_trait::async_trait;
use authproto::auth::mirror_client::MirrorClient;
use authproto::auth::{
    Failure, MirrorHello, MirrorProgress, MirrorPut, MirrorSynced, MirrorUpdate, ObjectWrite, WriteBatch,
    WriteResult, mirror_demand::Demand, mirror_update::Update,
};
use futures_util::FutureExt as _;
use storage::{Revision, Row, Store, unreadable_reason};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::{broadcast, mpsc};
use tokio_stream::wrappers::ReceiverStream;

use crate::decisions::revisions::{PolicyChange, PolicyRevisions};
use crate::reduce::Reduction;
use crate::transport::connection::AuthdConnection;
use crate::transport::peer::ExpectedAuthd;
use crate::transport::servers::Servers;
use crate::transport::stream::{FailedAttempts, error_chain_text, open_channel};

/// Maximum number of queued messages to authd, and of queued write batches. At the limit, the sender waits.
const QUEUE: usize = 1024;
/// Maximum number of rows of one read of the snapshot.
const PAGE: usize = 500;
/// Pause before unreadable policy objects are read again, while a KMS plugin does not respond.
const REREAD_INTERVAL: Duration = Duration::from_secs(5);
/// The interval at which a progress message is sent if the revision has advanced.
const PROGRESS: Duration = Duration::from_secs(1);
/// The reason for the end of a mirror stream when the decision stream has gone on to another authd.
const OTHER_AUTHD: &str = "the decision stream uses another authd";

/// Performs the writes that authd requests, through the ordinary verbs and with audit.
#[async_trait]
pub trait PolicyWriter: Send + Sync + 'static {
    /// Waits until the watch cache, which writes read, has observed every change up to a revision.
    ///
    /// A change reaches authd before the watch cache, so a write can depend on an object that the cache has
    /// not observed yet.
    async fn wait_for(&self, revision: Revision);

    /// Performs one write in the name of a controller. Default policy is admitted like all writes.
    async fn write(&self, controller: &str, write: &ObjectWrite) -> Result<(), Status>;
}

/// The mirror of the policy in authd.
pub(crate) struct Mirror {
    /// The authds; the mirror uses that of the decision stream.
    pub(crate) servers: Arc<Servers>,
    /// The names that both processes must share.
    pub(crate) names: Arc<Names>,
    /// A random id of this process.
    pub(crate) instance: String,
    pub(crate) connection: Arc<AuthdConnection>,
    pub(crate) revisions: Arc<PolicyRevisions>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) writer: Arc<dyn PolicyWriter>,
    /// Whether the present stream repeats the snapshot for objects that became readable.
    pub(crate) is_reread: AtomicBool,
}

impl Mirror {
    /// Runs the mirror until the process ends, and opens a new stream when the stream breaks.
    ///
    /// A panic must not end this loop: without it, cached responses would serve without notice of a new
    /// configuration.
    pub(crate) async fn run(&self) {
        let mut attempts = FailedAttempts::default();
        loop {
            self.connection.wait_for_connection().await;
            let stream = self.run_stream(&mut attempts);
            let reason = match AssertUnwindSafe(stream).catch_unwind().await {
                Ok(Ok(())) => "the subscription to policy changes closed".to_owned(),
                Ok(Err(reason)) => reason,
                Err(_panic) => "the task of the mirror stream panicked".to_owned(),
            };
            tracing::debug!(reason, "mirror stream closed; reconnecting");
            self.connection.set_mirror_lost(reason);
            attempts.pause(&self.servers).await;
        }
    }

    async fn run_stream(&self, attempts: &mut FailedAttempts) -> Result<(), String> {
        let mut stale = self.connection.stale_mirror();
        let position = self.servers.selected();
        let server = self.servers.server(position).map_err(|error| error.to_string())?;
        let channel = open_channel(server).await.map_err(|error| error_chain_text(&error))?;
        let name = self.servers.name().clone();
        let (updates, outgoing) = mpsc::channel(QUEUE);
        let hello = MirrorHello {
            preset: self.names.preset().to_string(),
            api_domain: self.names.api_domain().to_owned(),
            instance: self.instance.clone(),
        };
        send(&updates, Update::Hello(hello)).await?;
        let response = MirrorClient::with_interceptor(channel, name)
            .sync(ReceiverStream::new(outgoing))
            .await
            .map_err(|status| {
                if status.code() == tonic::Code::FailedPrecondition {
                    attempts.record_rejection();
                }
                format!("authd rejected the mirror stream: {}", status.message())
            })?;
        let instance = ExpectedAuthd::new(&self.names).instance(response.metadata()).map_err(|problem| {
            attempts.record_rejection();
            problem.to_string()
        })?;
        let mut demands = response.into_inner();
        attempts.reset();

        let (batch_sender, batches) = mpsc::channel(QUEUE);
        let incoming = async {
            loop {
                let demand = demands.message().await.map_err(|status| status.message().to_owned())?;
                match demand.ok_or("authd closed the mirror stream")?.demand {
                    Some(Demand::Epoch(_)) if self.servers.selected() != position => {
                        return Err(OTHER_AUTHD.to_owned());
                    }
                    Some(Demand::Epoch(epoch)) if *epoch.instance == *instance => {
                        self.connection.epochs.observe(Some(&epoch));
                        self.connection.set_mirror_open(&instance);
                    }
                    Some(Demand::Epoch(_)) => {
                        return Err("authd sent the epoch of another process".to_owned());
                    }
                    Some(Demand::Ready(state)) => {
                        // authd is ready on a new stream only after its snapshot.
                        if state.ready && self.is_reread.swap(false, Ordering::SeqCst) {
                            self.connection.epochs.restart();
                        }
                        self.connection.set_ready(state.ready, state.reasons);
                    }
                    Some(Demand::SharedMetrics(metrics)) => self.connection.set_shared_metrics(metrics.text),
                    Some(Demand::Write(batch)) => batch_sender
                        .send(batch)
                        .await
                        .map_err(|_| "the task that performs the writes ended".to_owned())?,
                    None => {}
                }
            }
        };
        tokio::select! {
            result = incoming => result,
            _ = stale.changed() => {
                if self.servers.selected() != position {
                    return Err(OTHER_AUTHD.to_owned());
                }
                attempts.record_rejection();
                Err("a newer connection leads to another process of authd".to_owned())
            }
            result = self.send_policy(&updates) => result,
            result = self.perform_writes(batches, &updates) => result,
            () = self.wait_until_readable() => {
                self.is_reread.store(true, Ordering::SeqCst);
                Err("policy objects became readable".to_owned())
            }
        }
    }

    /// Waits until an object that is missing in the mirror can be decrypted.
    async fn wait_until_readable(&self) {
        loop {
            self.revisions.wait_for_recovery().await;
            loop {
                match self.has_readable().await {
                    Ok(true) => return,
                    Ok(false) => break,
                    Err(error) => {
                        tracing::warn!(%error, "unreadable policy objects were not read again; retrying");
                        tokio::time::sleep(REREAD_INTERVAL).await;
                    }
                }
            }
        }
    }

    /// Whether an object that is missing in the mirror can be decrypted now.
    ///
    /// # Errors
    ///
    /// An object cannot be read now. A new snapshot would fail, and the mirror would lack all objects.
    async fn has_readable(&self) -> storage::Result<bool> {
        let mut has_readable = false;
        for key in self.revisions.unreadable_keys() {
            let row = self.store.get(&key, None).await?;
            has_readable |= row.is_some_and(|row| unreadable_reason(&row.value).is_none());
        }
        Ok(has_readable)
    }

    /// Sends the snapshot and then the changes, until the stream or the subscription breaks.
    async fn send_policy(&self, updates: &mpsc::Sender<MirrorUpdate>) -> Result<(), String> {
        let store = &self.store;
        let (mut changes, newest) = self.revisions.subscribe();
        let snapshot_revision = store.revision().max(newest);
        for entry in self.revisions.table().entries() {
            if let Some(key) = &entry.only_key {
                let row = store.get(key, Some(snapshot_revision)).await.map_err(|e| e.to_string())?;
                if let Some(row) = row {
                    self.send_row(entry, &row, updates).await?;
                }
                continue;
            }
            let mut start = String::new();
            loop {
                let page = store
                    .range(&entry.prefix, &start, PAGE, Some(snapshot_revision))
                    .await
                    .map_err(|e| e.to_string())?;
                for row in &page.rows {
                    self.send_row(entry, row, updates).await?;
                }
                match page.rows.last() {
                    // The smallest key after the last row.
                    Some(last) if page.more => start = format!("{}\0", last.key),
                    _ => break,
                }
            }
        }
        send(updates, Update::Synced(MirrorSynced { revision: snapshot_revision.0 })).await?;
        self.connection.set_mirror_synced();
        self.connection.set_mirror_sent(snapshot_revision.0);
        tracing::info!(revision = snapshot_revision.0, "policy snapshot sent to authd");
        self.send_changes(&mut changes, snapshot_revision, updates).await
    }

    /// Sends the reduction of a stored object; sends nothing when the object has no reduction.
    async fn send_row(
        &self,
        entry: &Reduction,
        row: &Row,
        updates: &mpsc::Sender<MirrorUpdate>,
    ) -> Result<(), String> {
        self.revisions.record_value(&row.key, Some(&row.value));
        let Some(object) = self.revisions.table().reduce(entry, &row.value) else { return Ok(()) };
        send(updates, Update::Put(MirrorPut { revision: row.revision.0, object: Some(object) })).await
    }

    /// Sends each change after the snapshot, and progress messages, until the stream or the subscription
    /// breaks.
    async fn send_changes(
        &self,
        changes: &mut broadcast::Receiver<PolicyChange>,
        snapshot_revision: Revision,
        updates: &mpsc::Sender<MirrorUpdate>,
    ) -> Result<(), String> {
        let mut last_sent = snapshot_revision.0;
        let mut tick = tokio::time::interval(PROGRESS);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                change = changes.recv() => match change {
                    Ok(change) => self.forward(change, snapshot_revision, &mut last_sent, updates).await?,
                    Err(RecvError::Lagged(missed)) => return Err(format!("authd is {missed} changes behind")),
                    Err(RecvError::Closed) => return Ok(()),
                },
                _ = tick.tick() => {
                    let observed = self.revisions.observed();
                    loop {
                        match changes.try_recv() {
                            Ok(change) => self.forward(change, snapshot_revision, &mut last_sent, updates).await?,
                            Err(TryRecvError::Empty | TryRecvError::Closed) => break,
                            Err(TryRecvError::Lagged(missed)) => return Err(format!("authd is {missed} changes behind")),
                        }
                    }
                    if observed > last_sent {
                        last_sent = observed;
                        send(updates, Update::Progress(MirrorProgress { revision: observed })).await?;
                        self.connection.set_mirror_sent(observed);
                    }
                }
            }
        }
    }

    /// Sends a change, unless the snapshot contains the change. One revision of etcd may have several changes.
    async fn forward(
        &self,
        change: PolicyChange,
        snapshot_revision: Revision,
        last_sent: &mut u64,
        updates: &mpsc::Sender<MirrorUpdate>,
    ) -> Result<(), String> {
        if change.revision <= snapshot_revision.0 {
            return Ok(());
        }
        *last_sent = change.revision.max(*last_sent);
        updates.send(change.update).await.map_err(|_| stream_closed_error())?;
        self.connection.set_mirror_sent(*last_sent);
        Ok(())
    }

    /// Performs write batches in the order of arrival, and sends their results. Each batch waits until the watch
    /// cache has observed the newest change sent to authd.
    async fn perform_writes(
        &self,
        mut batches: mpsc::Receiver<WriteBatch>,
        updates: &mpsc::Sender<MirrorUpdate>,
    ) -> Result<(), String> {
        while let Some(batch) = batches.recv().await {
            let (sent_revision, _) = self.connection.mirror_progress();
            self.writer.wait_for(Revision(sent_revision)).await;
            let writes = batch.writes.iter().map(|write| self.writer.write(&batch.controller, write));
            // All writes of a batch run concurrently, so the store groups their commits. Readiness waits for
            // about 150 writes of default policy.
            let outcomes = futures_util::future::join_all(writes).await;
            let outcomes = outcomes.into_iter().map(|outcome| outcome.map_err(to_failure).into()).collect();
            let revision = self.store.revision().0;
            send(updates, Update::WriteResult(WriteResult { id: batch.id, outcomes, revision })).await?;
        }
        Ok(())
    }
}

async fn send(updates: &mpsc::Sender<MirrorUpdate>, update: Update) -> Result<(), String> {
    updates.send(MirrorUpdate { update: Some(update) }).await.map_err(|_| stream_closed_error())
}

fn stream_closed_error() -> String {
    "the mirror stream closed".to_owned()
}

fn to_failure(status: Status) -> Failure {
    Failure {
        code: status.code.into(),
        reason: status.reason.as_str().to_owned(),
        message: status.message,
        detail: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::ManualClock;
    use storage::Observers;
    use storage::engine::memory::MemoryStore;
    use tokio::sync::watch;

    use super::*;
    use crate::reduce::Reductions;

    /// A writer whose watch cache has observed the revision of the channel.
    struct CachedWriter(watch::Sender<u64>);

    #[async_trait]
    impl PolicyWriter for CachedWriter {
        async fn wait_for(&self, revision: Revision) {
            self.0.subscribe().wait_for(|observed| *observed >= revision.0).await.unwrap();
        }

        async fn write(&self, _: &str, _: &ObjectWrite) -> Result<(), Status> {
            if *self.0.borrow() >= 5 { Ok(()) } else { Err(Status::bad_request("too early")) }
        }
    }

    fn mirror(observed: u64) -> (Mirror, watch::Sender<u64>) {
        let names = Arc::new(Names::new(apimachinery::names::Preset::Svc, "example.test").unwrap());
        let observed = watch::Sender::new(observed);
        let mirror = Mirror {
            servers: Servers::new(Vec::new(), ""),
            names,
            instance: String::new(),
            connection: Arc::new(AuthdConnection::new(Arc::new(ManualClock::at(
                jiff::Timestamp::UNIX_EPOCH,
            )))),
            revisions: Arc::new(PolicyRevisions::new(Reductions::for_tests())),
            store: Arc::new(MemoryStore::new(Arc::new(Observers(Vec::new())))),
            writer: Arc::new(CachedWriter(observed.clone())),
            is_reread: AtomicBool::new(false),
        };
        (mirror, observed)
    }

    #[tokio::test]
    async fn changes_of_the_snapshot_are_not_sent_again() {
        let (mirror, _) = mirror(0);
        let (updates, mut sent) = mpsc::channel(4);
        let (snapshot, mut last_sent) = (Revision(5), 5);
        for revision in [4, 5, 6, 6] {
            let update = MirrorUpdate { update: Some(Update::Progress(MirrorProgress { revision })) };
            let change = PolicyChange { revision, update };
            mirror.forward(change, snapshot, &mut last_sent, &updates).await.unwrap();
        }
        for _ in 0..2 {
            let update = sent.try_recv().unwrap().update;
            let expected = Some(Update::Progress(MirrorProgress { revision: 6 }));
            assert_eq!(update, expected, "both changes of one revision are sent");
        }
        assert!(sent.try_recv().is_err(), "the revisions 4 and 5 are skipped");
    }

    #[tokio::test]
    async fn writes_of_authd_wait_for_revision_sent_to_authd() {
        let (mirror, observed) = mirror(4);
        mirror.connection.set_mirror_sent(5);
        let (batch_sender, batches) = mpsc::channel(1);
        let (updates, mut results) = mpsc::channel(1);
        let writes = vec![ObjectWrite::default()];
        batch_sender.send(WriteBatch { id: 7, writes, ..WriteBatch::default() }).await.unwrap();
        drop(batch_sender);
        let work = mirror.perform_writes(batches, &updates);
        tokio::pin!(work);
        assert!(work.as_mut().now_or_never().is_none(), "the cache is at revision 4");
        observed.send_replace(5);
        work.await.unwrap();
        let update = results.recv().await.unwrap().update;
        let Some(Update::WriteResult(result)) = update else { panic!("{update:?}") };
        assert_eq!((result.id, &result.outcomes[..]), (7, &[Ok(()).into()][..]));
    }
}
