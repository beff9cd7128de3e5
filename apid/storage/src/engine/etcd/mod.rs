//! The engine for several servers: a store in an etcd cluster, for etcd 3.4.31, 3.5 and 3.6.
//!
//! # Contract
//!
//! The engine implements [`Store`] over etcd's gRPC API. Revisions are those of etcd. A [`KeyMap`] translates keys, which stand
//! below a prefix. Other servers, including kube-apiservers, may use the same keys: the observer sees their changes, too.
//!
//! - A write is one transaction that compares the revision of the last change of its key.
//! - A read without a revision reads at the published revision of this process. [`Store::newest_revision`] asks etcd for the
//!   newest one, and waits until it is published.
//! - An expired lease removes several keys at one revision.
//! - A write that holds keys compares their revisions, too.
//! - [`Lifetime`] gives the keys of a prefix a lease.
//! - Servers take turns in compaction; see `compaction`.
//!
//! # Types
//!
//! [`EtcdStore`] owns the tasks and ends them when it closes. `Shared` is the state of the store. `client` calls members,
//! `feed` receives and publishes changes, `history` reads the past, `status` checks the cluster.
//!
//! # Errors
//!
//! | etcd | contract |
//! |---|---|
//! | comparison failed | `Exists`, `NotFound` or `Conflict` with the current row |
//! | required revision compacted, future | `Compacted`, `Future` |
//! | request too large | `TooLarge` |
//! | database space exceeded, alarm NOSPACE | `Full` |
//! | alarm CORRUPT | `Corrupt` |
//! | other errors: no leader, timeout, lost connection, no permission | `Unavailable`; the outcome of a write is unknown |
//!
//! # Invariants
//!
//! INVARIANT (one history): one watch follows all keys, so that the observer sees changes in revision order.
//! INVARIANT (observed before acknowledged): a commit returns after its revision is published.
//! INVARIANT (no gap): if etcd compacts changes that this process has not received, or has another history, the store is lost:
//! `on_gap` is called, and every later call fails until the process starts again.
//! INVARIANT (monotonic reads): the published revision only grows, so a read without a revision never shows an
//! older state than an earlier read of this process.

mod changes;
mod client;
mod compaction;
mod feed;
mod history;
mod keys;
mod leases;
mod protocol;
mod queue;
mod status;
mod telemetry;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

pub use self::client::{Connection, Tls};
pub use self::keys::{KeyMap, PlainKeys};
pub use self::leases::{LeaseOptions, Lifetime};
pub use self::telemetry::Telemetry;

use self::changes::{CachedParts, Changes};
use self::client::{Client, Failure, Method, Rejection};
use self::history::EtcdWatch;
use self::keys::Keys;
use self::leases::Leases;
use self::protocol as pb;
use self::writer::Writer;
use super::fjall::Identity;
use crate::lease::HistoryLeases;
use crate::{
    Change, CommitOutcome, Error, Held, HistoryLease, MAX_KEY, Observer, Op, Page, Result, Revision,
    RevisionRange, Row, Stats, Store, Watch, check_size,
};

/// Maximum number of keys of one read.
const PAGE_ROWS: usize = 2_000;
/// Number of keys in the first read of a page. Each of their values may have the maximum size.
const FIRST_ROWS: usize = 32;
/// Target size in bytes of each further read of a page.
const READ_BYTES: usize = 4 << 20;
/// Maximum factor between the numbers of keys of two successive reads.
const READ_GROWTH: usize = 4;
/// Time after which a read of the newest revision goes on to the next member. Requests of clients wait for it.
const NEWEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Time for which a call waits until a revision is published.
const PUBLISH_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for which the end of the store waits for running commits.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of revisions that [`EtcdStore::raise_revision`] skips by writes.
pub const MAX_RAISE: u64 = 1_000_000;
/// Number of writes in flight while revisions are skipped.
const RAISE_WRITES: usize = 128;
/// Pause before the start tries again to reach etcd.
const OPEN_PAUSE: Duration = Duration::from_millis(200);

/// The options for opening a store.
#[derive(Clone)]
pub struct Options {
    /// The URLs of the members.
    pub servers: Vec<String>,
    /// Makes TLS connections, for URLs with `https`.
    pub tls: Option<Arc<dyn Tls>>,
    /// The prefix of all keys, such as `/registry`.
    pub prefix: String,
    /// The form of the keys below the prefix.
    pub keys: Arc<dyn KeyMap>,
    /// The identity of the store.
    pub identity: Identity,
    /// Whether a store without an identity may have objects: those of a kube-apiserver.
    pub adopts_foreign: bool,
    /// Time for which the start waits for etcd.
    pub open_timeout: Duration,
    /// Pause between two compactions; None if this server does not compact.
    pub compaction_interval: Option<Duration>,
    /// Time within which etcd must answer a health check.
    pub health_timeout: Duration,
    /// Time within which etcd must answer a health check, for readiness.
    pub readiness_timeout: Duration,
    /// Interval of the query of the database size.
    pub size_interval: Duration,
    /// Keys that etcd removes after a time.
    pub leases: LeaseOptions,
    /// Size in bytes of the newest changes in memory, for watches.
    pub recent_bytes: usize,
    /// Receives numbers for metrics.
    pub telemetry: Arc<dyn Telemetry>,
    /// Called once with the reason when changes are lost. Caches that miss a change stay wrong: the function ends the process,
    /// unless all readers of the caches ask the store first, which fails from then on.
    pub on_gap: Arc<dyn Fn(&str) + Send + Sync>,
}

impl Options {
    /// The options for a cluster, with default values for all others.
    pub fn new(servers: Vec<String>, identity: Identity, keys: Arc<dyn KeyMap>) -> Self {
        Options {
            servers,
            tls: None,
            prefix: "/registry".to_owned(),
            keys,
            identity,
            adopts_foreign: false,
            open_timeout: Duration::from_secs(60),
            compaction_interval: Some(Duration::from_secs(300)),
            health_timeout: Duration::from_secs(2),
            readiness_timeout: Duration::from_secs(2),
            size_interval: Duration::from_secs(30),
            leases: LeaseOptions::default(),
            recent_bytes: 16 << 20,
            telemetry: Arc::new(()),
            on_gap: Arc::new(|_| std::process::abort()),
        }
    }
}

/// The reason why a store does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A URL is invalid.
    #[error("{0}")]
    Server(String),
    /// The store was created with other names.
    #[error("the store in etcd has {found}, not {requested}: start with `{}`", found.flags(requested))]
    Identity {
        /// The identity of the store.
        found: Identity,
        /// The identity of the options.
        requested: Identity,
    },
    /// The keys below the prefix belong to a server with other names.
    #[error(
        "`{prefix}` in etcd has objects of a kube-apiserver: start with `--names kubernetes`, or choose another \
         `--etcd-prefix`"
    )]
    Foreign {
        /// The prefix.
        prefix: String,
    },
    /// etcd cannot be read or written.
    #[error("{0}")]
    Store(#[from] Error),
}

/// The store in etcd; see the module documentation.
pub struct EtcdStore {
    shared: Arc<Shared>,
    client: Arc<Client>,
    writer: Arc<Writer>,
    health_timeout: Duration,
    readiness_timeout: Duration,
    tasks: Mutex<JoinSet<()>>,
}

/// The state of the store.
struct Shared {
    keys: Keys,
    /// The id of the cluster at the start.
    cluster: u64,
    /// The newest published revision.
    published: watch::Sender<u64>,
    /// The newest revision that the observer may know.
    received: AtomicU64,
    /// The newest revision with an event of the store.
    newest_change: AtomicU64,
    compacted: AtomicU64,
    /// The newest revision for which a reader waits.
    awaited_revision: AtomicU64,
    /// The newest revision of a write of this process: the watch must deliver its event.
    written_revision: AtomicU64,
    /// Wakes the feed after a change of `awaited_revision` or `written_revision`.
    wake: Notify,
    recent: Mutex<Changes>,
    recent_bytes: usize,
    /// Parts of the history that were read from etcd.
    past: tokio::sync::Mutex<CachedParts>,
    history_leases: Arc<HistoryLeases>,
    health: status::Health,
    /// The reason why the watch is interrupted, and since when.
    interruption: Mutex<Option<(Instant, String)>>,
    /// The reason why this process must start again: changes are lost.
    lost: Mutex<Option<String>>,
    on_gap: Arc<dyn Fn(&str) + Send + Sync>,
    /// The reason why etcd accepts no writes that need space.
    full: Mutex<Option<String>>,
    /// The damage that etcd reports.
    damage: Mutex<Option<String>>,
    database_size: AtomicI64,
    /// Number of running commits.
    commits: watch::Sender<usize>,
    is_closed: AtomicBool,
}

/// The revision in the header of a response.
fn revision_of(header: Option<&pb::Header>) -> Revision {
    header.map_or(Revision(0), |header| from_etcd(header.revision))
}

fn from_etcd(revision: i64) -> Revision {
    Revision(u64::try_from(revision).unwrap_or(0))
}

fn to_etcd(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

impl Shared {
    /// Returns an error if the store is closed or lost.
    fn check_open(&self) -> Result<()> {
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(Error::closed());
        }
        match &*self.lost.lock() {
            Some(reason) => Err(Error::Unavailable(reason.clone())),
            None => Ok(()),
        }
    }

    fn compacted(&self) -> Revision {
        Revision(self.compacted.load(Ordering::Acquire))
    }

    fn raise_compacted(&self, compacted: Revision) {
        self.compacted.fetch_max(compacted.0, Ordering::AcqRel);
    }

    fn newest_change(&self) -> u64 {
        self.newest_change.load(Ordering::Acquire)
    }

    fn set_database_size(&self, bytes: i64) {
        self.database_size.store(bytes, Ordering::Relaxed);
    }

    /// Makes the revisions of changes readable, before the observer sees them.
    fn receive(&self, changes: &[Change], through: u64, is_event: bool) {
        let mut recent = self.recent.lock();
        recent.push(changes.iter().cloned(), through);
        recent.evict(self.recent_bytes);
        if is_event {
            self.newest_change.fetch_max(through, Ordering::AcqRel);
        }
        self.received.fetch_max(through, Ordering::AcqRel);
    }

    /// Checks that a revision is readable.
    fn check_readable(&self, requested: Revision) -> Result<()> {
        let current = Revision(self.received.load(Ordering::Acquire));
        let compacted = self.compacted();
        if requested > current {
            return Err(Error::Future { requested, current });
        }
        if requested < compacted {
            return Err(Error::Compacted { requested, compacted });
        }
        Ok(())
    }

    /// Marks the store as lost, and reports the first reason to `on_gap`.
    fn report_gap(&self, reason: String) {
        {
            let mut lost = self.lost.lock();
            if lost.is_some() {
                return;
            }
            *lost = Some(reason.clone());
        }
        // Watches of the store end.
        self.published.send_modify(|_| ());
        (self.on_gap)(&reason);
    }

    /// Asks the feed to learn whether etcd has passed a revision.
    fn expect_revision(&self, revision: u64) {
        if self.awaited_revision.fetch_max(revision, Ordering::Relaxed) < revision {
            self.wake.notify_one();
        }
    }

    /// Tells the feed that etcd has accepted a write at a revision, whose event must arrive.
    fn expect_event(&self, revision: Revision) {
        if self.written_revision.fetch_max(revision.0, Ordering::Relaxed) < revision.0
            && self.received.load(Ordering::Acquire) < revision.0
        {
            self.wake.notify_one();
        }
    }

    /// Waits until a revision is published.
    async fn wait_until_published(&self, revision: Revision) -> Result<()> {
        let mut published = self.published.subscribe();
        let wait = published.wait_for(|published| *published >= revision.0);
        match tokio::time::timeout(PUBLISH_TIMEOUT, wait).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(_)) => Err(Error::closed()),
            Err(_) => {
                let reason = self.interruption.lock().as_ref().map(|(_, reason)| reason.clone());
                Err(Error::Unavailable(format!(
                    "the watch of etcd did not reach revision {revision} within {} s: {}",
                    PUBLISH_TIMEOUT.as_secs(),
                    reason.as_deref().unwrap_or("it is behind")
                )))
            }
        }
    }
}

impl EtcdStore {
    /// Connects to a cluster and follows its changes. Waits until etcd is reached.
    ///
    /// # Errors
    ///
    /// See [`OpenError`].
    pub async fn open(options: Options, observer: Arc<dyn Observer>) -> Result<Self, OpenError> {
        let telemetry = Arc::clone(&options.telemetry);
        let keys = Keys::new(&options.prefix, Arc::clone(&options.keys));
        let client = Client::new(&options.servers, options.tls.clone(), keys.health(), telemetry)
            .map_err(OpenError::Server)?;
        let client = Arc::new(client);
        let deadline = Instant::now() + options.open_timeout;
        let ClusterState { cluster, revision, compacted } = loop {
            match open_cluster(&client, &keys, &options).await {
                Err(OpenError::Store(Error::Unavailable(reason))) if Instant::now() < deadline => {
                    tracing::warn!(reason, "etcd is not reached yet");
                    tokio::time::sleep(OPEN_PAUSE).await;
                }
                result => break result?,
            }
        };
        let shared = Arc::new(Shared {
            keys,
            cluster,
            published: watch::Sender::new(revision.0),
            received: AtomicU64::new(revision.0),
            newest_change: AtomicU64::new(revision.0),
            compacted: AtomicU64::new(compacted.0),
            awaited_revision: AtomicU64::new(0),
            written_revision: AtomicU64::new(0),
            wake: Notify::new(),
            recent: Mutex::new(Changes::new(revision.0)),
            recent_bytes: options.recent_bytes,
            past: tokio::sync::Mutex::default(),
            history_leases: Arc::default(),
            health: status::Health::default(),
            interruption: Mutex::new(None),
            lost: Mutex::new(None),
            on_gap: options.on_gap,
            full: Mutex::new(None),
            damage: Mutex::new(None),
            database_size: AtomicI64::new(0),
            commits: watch::Sender::new(0),
            is_closed: AtomicBool::new(false),
        });
        let mut tasks = JoinSet::new();
        feed::start(&mut tasks, &shared, &client, observer, revision);
        tasks.spawn(status::check_health(Arc::clone(&shared), Arc::clone(&client)));
        tasks.spawn(status::measure(Arc::clone(&shared), Arc::clone(&client), options.size_interval));
        if let Some(interval) = options.compaction_interval {
            tasks.spawn(compaction::run(Arc::clone(&shared), Arc::clone(&client), interval));
        }
        let leases = Leases::new(options.leases);
        let writer = Writer { shared: Arc::clone(&shared), client: Arc::clone(&client), leases };
        Ok(EtcdStore {
            shared,
            client,
            writer: Arc::new(writer),
            health_timeout: options.health_timeout,
            readiness_timeout: options.readiness_timeout,
            tasks: Mutex::new(tasks),
        })
    }

    /// Writes a key of the engine until the cluster has reached a revision, so that a copied store reuses none of its
    /// revisions.
    ///
    /// # Errors
    ///
    /// The cluster is more than [`MAX_RAISE`] revisions below, or does not answer.
    pub async fn raise_revision(&self, to: Revision) -> Result<()> {
        let missing = to.0.saturating_sub(self.newest_revision().await?.0);
        if missing > MAX_RAISE {
            return Err(Error::Unavailable(format!(
                "the cluster is {missing} revisions below those of the store: stop it, restore its members with `etcdutl \
                 snapshot restore --bump-revision {missing} --mark-compacted`, and start again"
            )));
        }
        let mut writes = JoinSet::new();
        for _ in 0..missing {
            if writes.len() >= RAISE_WRITES
                && let Some(write) = writes.join_next().await
            {
                write.unwrap_or_else(|_| Err(Error::closed()))?;
            }
            let (client, shared) = (Arc::clone(&self.client), Arc::clone(&self.shared));
            writes.spawn(async move {
                write_mark(&client, &shared.keys).await.map(drop).map_err(Failure::into_error)
            });
        }
        while let Some(write) = writes.join_next().await {
            write.unwrap_or_else(|_| Err(Error::closed()))?;
        }
        self.newest_revision().await.map(drop)
    }

    /// Returns the revision of a read, after the check that the revision is readable.
    async fn resolve(&self, at: Option<Revision>) -> Result<Revision> {
        self.shared.check_open()?;
        if let Some(at) = at {
            self.shared.check_readable(at)?;
            return Ok(at);
        }
        // Another server may have compacted newer revisions than those that arrived here.
        let compacted = self.shared.compacted();
        if *self.shared.published.borrow() < compacted.0 {
            self.shared.expect_revision(compacted.0);
            self.shared.wait_until_published(compacted).await?;
        }
        Ok(Revision(*self.shared.published.borrow()))
    }

    /// Returns the error of a read. If the revision is compacted, asks etcd for the compacted one.
    async fn read_error(&self, failure: Failure, at: Revision) -> Error {
        if failure.rejection() == Rejection::Compacted {
            match find_compacted(&self.client, &self.shared.keys).await {
                Ok(compacted) => self.shared.raise_compacted(compacted),
                Err(error) => return error,
            }
        }
        let current = Revision(*self.shared.published.borrow());
        failure.into_read_error(at, self.shared.compacted(), current)
    }

    async fn get_at(&self, key: &str, at: Revision) -> Result<Option<Row>> {
        if key.len() > MAX_KEY || at == Revision(0) {
            return Ok(None);
        }
        let request =
            pb::RangeRequest { revision: to_etcd(at), ..pb::RangeRequest::one(self.shared.keys.key(key)) };
        let begin = Instant::now();
        let response: Result<pb::RangeResponse, _> = self.client.call(Method::Range, request).await;
        self.client.telemetry.request("get", key, begin.elapsed(), response.is_ok());
        match response {
            Ok(response) => Ok(response.kvs.into_iter().next().and_then(|kv| row(&self.shared.keys, kv))),
            Err(failure) => Err(self.read_error(failure, at).await),
        }
    }

    /// Reads rows until `limit` of them (0: all), or until they have `bytes` bytes.
    async fn rows(
        &self,
        prefix: &str,
        start: &str,
        (limit, bytes): (usize, Option<usize>),
        at: Revision,
    ) -> Result<Page> {
        let mut page = Page { rows: Vec::new(), revision: at, more: false };
        let keys = &self.shared.keys;
        let Some(mut begin) = keys.start(prefix, start).filter(|_| at > Revision(0)) else { return Ok(page) };
        let end = pb::range_end(&keys.prefix(prefix));
        let mut used = 0_usize;
        let mut step = FIRST_ROWS;
        loop {
            // One row more than the limit shows whether rows follow.
            let missing = limit.saturating_add(1).saturating_sub(page.rows.len());
            let count = if limit == 0 { step } else { step.min(missing) };
            let request = pb::RangeRequest {
                key: begin,
                range_end: end.clone(),
                limit: i64::try_from(count).unwrap_or(i64::MAX),
                revision: to_etcd(at),
                ..pb::RangeRequest::default()
            };
            let since = Instant::now();
            let response: Result<pb::RangeResponse, _> = self.client.call(Method::Range, request).await;
            self.client.telemetry.request("list", prefix, since.elapsed(), response.is_ok());
            let response = match response {
                Ok(response) => response,
                Err(failure) => return Err(self.read_error(failure, at).await),
            };
            let last = response.kvs.last().map(|kv| kv.key.clone());
            step = next_step(step, &response.kvs);
            // The order of etcd decides which keys follow the start: resources have another order there.
            for row in response.kvs.into_iter().filter_map(|kv| row(keys, kv)) {
                if !row.key.starts_with(prefix) {
                    continue;
                }
                used = used.saturating_add(row.size());
                let is_full = limit > 0 && page.rows.len() == limit;
                let is_large = bytes.is_some_and(|bytes| used > bytes) && !page.rows.is_empty();
                if is_full || is_large {
                    page.more = true;
                    return Ok(page);
                }
                page.rows.push(row);
            }
            let Some(mut next) = last.filter(|_| response.more) else { return Ok(page) };
            next.push(0);
            begin = next;
        }
    }
}

/// The number of keys of the next read, by the mean size of the last ones.
fn next_step(step: usize, last: &[pb::KeyValue]) -> usize {
    let bytes: usize = last.iter().map(|kv| kv.key.len().saturating_add(kv.value.len())).sum();
    let fitting = READ_BYTES.saturating_mul(last.len()) / bytes.max(1);
    fitting.clamp(1, step.saturating_mul(READ_GROWTH).min(PAGE_ROWS))
}

/// Whether the revision of a read was compacted during the read.
fn is_compacted_during_read(error: &Error, revision: Revision) -> bool {
    matches!(error, Error::Compacted { compacted, .. } if *compacted > revision)
}

/// The row of a key; None for other data of the cluster.
fn row(keys: &Keys, kv: pb::KeyValue) -> Option<Row> {
    Some(Row { key: keys.parse(&kv.key)?, value: kv.value.into(), revision: from_etcd(kv.mod_revision) })
}

/// The state of the cluster at the start of this process.
struct ClusterState {
    /// The id of the cluster.
    cluster: u64,
    /// The revision at which the changes begin.
    revision: Revision,
    compacted: Revision,
}

/// Writes the key `mark`, whose event follows those of all earlier changes. Returns its revision.
async fn write_mark(client: &Client, keys: &Keys) -> Result<Revision, Failure> {
    let mark = pb::PutRequest { key: keys.own("mark"), ..pb::PutRequest::default() };
    let response: pb::PutResponse = client.call(Method::Put, mark).await?;
    Ok(revision_of(response.header.as_ref()))
}

/// Checks the identity of the store, or writes it into a new store. Returns the state of the cluster.
async fn open_cluster(client: &Client, keys: &Keys, options: &Options) -> Result<ClusterState, OpenError> {
    let identity = keys.own("identity");
    let requested = &options.identity;
    let text = format!("{}\n{}", requested.preset, requested.api_domain);
    let read = pb::RangeRequest::one(identity.clone());
    let read = || async {
        let found: pb::RangeResponse =
            client.call(Method::Range, read.clone()).await.map_err(Failure::into_error)?;
        Ok::<_, OpenError>((found.kvs.into_iter().next(), found.header.unwrap_or_default()))
    };
    let (mut found, mut header) = read().await?;
    if found.is_none() {
        // At the revision at which no identity exists, another server that starts now has written no object.
        let mut all = pb::RangeRequest {
            key: keys.root(),
            limit: 1,
            keys_only: true,
            revision: header.revision,
            ..Default::default()
        };
        all.range_end = pb::range_end(&all.key);
        let objects: pb::RangeResponse =
            client.call(Method::Range, all).await.map_err(Failure::into_error)?;
        if !objects.kvs.is_empty() && !options.adopts_foreign {
            return Err(OpenError::Foreign { prefix: options.prefix.clone() });
        }
        let create = pb::TxnRequest {
            compare: vec![pb::Compare {
                target: pb::MOD_REVISION,
                key: identity.clone(),
                expected: Some(pb::Expected::ModRevision(0)),
            }],
            success: vec![
                pb::Request::Put(pb::PutRequest { key: identity, value: text.into(), lease: 0 }).into(),
            ],
            failure: Vec::new(),
        };
        // Another server may have written its identity first, so the identity is read again.
        client.call::<_, pb::TxnResponse>(Method::Txn, create).await.map_err(Failure::into_error)?;
        (found, header) = read().await?;
    }
    let stored = found.map(|kv| String::from_utf8_lossy(&kv.value).into_owned()).unwrap_or_default();
    let (preset, api_domain) = stored.split_once('\n').unwrap_or((&stored, ""));
    let stored = Identity { preset: preset.to_owned(), api_domain: api_domain.to_owned() };
    if stored != *requested {
        return Err(OpenError::Identity { found: stored, requested: requested.clone() });
    }
    let mut compacted = find_compacted(client, keys).await?;
    let mut revision = from_etcd(header.revision);
    match write_mark(client, keys).await {
        Ok(written) => revision = written,
        Err(failure) if failure.rejection() == Rejection::NoSpace => {
            tracing::warn!(%failure, "etcd has no space: objects can be read only");
            // Without the mark no event shows that the earlier history is complete.
            compacted = revision;
        }
        Err(failure) => return Err(OpenError::Store(failure.into_error())),
    }
    Ok(ClusterState { cluster: header.cluster, revision, compacted })
}

/// The compacted revision of the cluster.
async fn find_compacted(client: &Client, keys: &Keys) -> Result<Revision> {
    let read = pb::RangeRequest { revision: 1, ..pb::RangeRequest::one(keys.own("mark")) };
    match client.call::<_, pb::RangeResponse>(Method::Range, read).await {
        Ok(_) => return Ok(Revision(0)),
        Err(failure) if failure.rejection() == Rejection::Compacted => {}
        Err(failure) => return Err(failure.into_error()),
    }
    // etcd ends a watch from a compacted revision with the compacted revision.
    let open = feed::Events::open(client, keys.own("mark"), Revision(1));
    let (mut events, _) = open.await.map_err(Failure::into_error)?;
    let find = async {
        loop {
            match events.next().await.map_err(Failure::into_error)? {
                feed::Message::Compacted(compacted) => return Ok(compacted),
                _ => continue,
            }
        }
    };
    tokio::time::timeout(PUBLISH_TIMEOUT, find)
        .await
        .map_err(|_| Error::Unavailable("etcd did not report its compacted revision".to_owned()))?
}

#[async_trait]
impl Store for EtcdStore {
    fn revision(&self) -> Revision {
        Revision(*self.shared.published.borrow())
    }

    fn compacted(&self) -> Revision {
        self.shared.compacted()
    }

    fn is_shared(&self) -> bool {
        true
    }

    async fn newest_revision(&self) -> Result<Revision> {
        self.shared.check_open()?;
        // Without `serializable`, the member asks a quorum: the answer is not older than this call.
        let read = pb::RangeRequest::one(self.shared.keys.health());
        let received = Revision(self.shared.received.load(Ordering::Acquire));
        let response: pb::RangeResponse = self
            .client
            .call_within(NEWEST_TIMEOUT, Method::Range, read)
            .await
            .map_err(Failure::into_error)?;
        self.shared.check_history(response.header.as_ref(), received)?;
        let revision = revision_of(response.header.as_ref());
        self.shared.expect_revision(revision.0);
        self.shared.wait_until_published(revision).await?;
        Ok(revision)
    }

    fn expect_revision(&self, revision: Revision) {
        self.shared.expect_revision(revision.0);
    }

    async fn get(&self, key: &str, at: Option<Revision>) -> Result<Option<Row>> {
        loop {
            let revision = self.resolve(at).await?;
            match self.get_at(key, revision).await {
                Err(error) if at.is_none() && is_compacted_during_read(&error, revision) => {}
                result => return result,
            }
        }
    }

    async fn range(&self, prefix: &str, start: &str, limit: usize, at: Option<Revision>) -> Result<Page> {
        loop {
            let revision = self.resolve(at).await?;
            match self.rows(prefix, start, (limit, None), revision).await {
                Err(error) if at.is_none() && is_compacted_during_read(&error, revision) => {}
                result => return result,
            }
        }
    }

    async fn rows_within(
        &self,
        prefix: &str,
        start: &str,
        limit: usize,
        bytes: usize,
        at: Revision,
    ) -> Result<Page> {
        let at = self.resolve(Some(at)).await?;
        self.rows(prefix, start, (limit, Some(bytes)), at).await
    }

    fn lease_history(&self, from: Revision) -> HistoryLease {
        self.shared.history_leases.lease(from)
    }

    async fn commit(&self, key: &str, op: Op) -> Result<CommitOutcome> {
        self.commit_holding(key, op, &[]).await
    }

    async fn commit_holding(&self, key: &str, op: Op, held: &[Held]) -> Result<CommitOutcome> {
        check_size(key, &op)?;
        // The end of the store waits for each commit that finds the store open.
        let running = RunningCommit::new(&self.shared);
        self.shared.check_open()?;
        let (writer, key, held) = (Arc::clone(&self.writer), key.to_owned(), held.to_vec());
        let write = tokio::spawn(async move {
            let result = writer.write(&key, op, &held).await;
            drop(running);
            result
        });
        write.await.unwrap_or_else(|_| Err(Error::closed()))
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>> {
        self.shared.check_open()?;
        self.shared.check_readable(after)?;
        Ok(Box::new(EtcdWatch {
            shared: Arc::clone(&self.shared),
            client: Arc::clone(&self.client),
            prefix: prefix.to_owned(),
            position: after.0,
            published: self.shared.published.subscribe(),
        }))
    }

    async fn history(
        &self,
        prefix: &str,
        after: Revision,
        upto: Revision,
        bytes: usize,
    ) -> Result<RevisionRange> {
        self.shared.check_open()?;
        let upto = upto.max(after);
        self.shared.check_readable(upto)?;
        self.shared.history(&self.client, prefix, (after.0, upto.0), bytes).await
    }

    async fn compact(&self, upto: Revision) -> Result<()> {
        self.shared.check_open()?;
        let current = Revision(self.shared.received.load(Ordering::Acquire));
        if upto > current {
            return Err(Error::Future { requested: upto, current });
        }
        if upto <= self.shared.compacted() {
            return Ok(());
        }
        let request = pb::CompactionRequest { revision: to_etcd(upto) };
        match self.client.call::<_, pb::CompactionResponse>(Method::Compact, request).await {
            Err(failure) if failure.rejection() == Rejection::Compacted => {
                let compacted = find_compacted(&self.client, &self.shared.keys).await?;
                self.shared.raise_compacted(compacted);
            }
            Err(failure) => return Err(failure.into_error()),
            Ok(_) => self.shared.raise_compacted(upto),
        }
        Ok(())
    }

    fn health(&self) -> Result<()> {
        self.shared.check_open()?;
        if let Some(damage) = self.shared.damage.lock().clone() {
            return Err(Error::Corrupt(damage));
        }
        self.shared.health.within(self.health_timeout)
    }

    fn readiness(&self) -> Result<()> {
        self.health()?;
        self.shared.readiness(self.readiness_timeout)
    }

    fn full_reason(&self) -> Option<String> {
        self.shared.full.lock().clone()
    }

    fn stats(&self) -> Stats {
        Stats {
            revision: self.revision().0,
            compacted: self.compacted().0,
            table_bytes: u64::try_from(self.shared.database_size.load(Ordering::Relaxed)).unwrap_or(0),
            ..Stats::default()
        }
    }

    async fn close(&self) {
        if self.shared.is_closed.swap(true, Ordering::SeqCst) {
            return;
        }
        let mut commits = self.shared.commits.subscribe();
        let running = commits.wait_for(|running| *running == 0);
        if tokio::time::timeout(CLOSE_TIMEOUT, running).await.is_err() {
            tracing::warn!("the store in etcd closes while commits run: their outcome is unknown");
        }
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        // The observer has returned from each received change when the tasks have ended.
        if tokio::time::timeout(CLOSE_TIMEOUT, tasks.shutdown()).await.is_err() {
            tracing::warn!("the store in etcd closes while an observer is busy");
        }
        self.shared.published.send_modify(|_| ());
    }
}

/// A running commit, for which the end of the store waits.
struct RunningCommit(Arc<Shared>);

impl RunningCommit {
    fn new(shared: &Arc<Shared>) -> Self {
        shared.commits.send_modify(|running| *running += 1);
        RunningCommit(Arc::clone(shared))
    }
}

impl Drop for RunningCommit {
    fn drop(&mut self) {
        self.0.commits.send_modify(|running| *running = running.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_large_values_have_few_keys() {
        let next = |step, count: usize, size: usize| {
            let kv = pb::KeyValue { value: vec![0; size], ..pb::KeyValue::default() };
            next_step(step, &vec![kv; count])
        };
        assert_eq!(next(32, 32, 1 << 20), 4);
        assert_eq!(next(4, 4, 8 << 20), 1, "a read has one key at least");
        assert_eq!(next(32, 32, 100), 128, "the number grows in steps");
        assert_eq!(next(1000, 1000, 100), PAGE_ROWS);
        assert_eq!(next(1000, 1000, 100 << 10), 40);
    }
}
