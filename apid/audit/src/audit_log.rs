//! The audit log: the policy, and the backends to which events go.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use apimachinery::attributes::Attributes;
use apimachinery::clock::{Clock, SystemClock};
use apimachinery::names::Names;
use apimachinery::user::UserInfo;
use parking_lot::RwLock;
use serving::metrics::Metrics;
use serving::reload::{Snapshot, Watch};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::backend::{Backend, BackendOptions, Destination, Encoded, Format};
use crate::counts::Counts;
use crate::encode::{EventNames, StageEvent};
use crate::event::{Event, Outcome};
use crate::policy::{Decision, Policy, PolicyError};
use crate::rotation::Rotation;
use crate::stage::Stage;
use crate::webhook::Webhook;
use crate::writer::LogWriter;

/// Size of the objects of an event in bytes above which the event takes long to encode.
pub const LARGE_EVENT_BYTES: usize = 64 << 10;
/// Maximum memory of the encoded events with large objects that wait for the backends, in bytes. A larger event is
/// encoded when no other one waits.
const MAX_ENCODED_BYTES: usize = 64 << 20;

/// The policy and the backends of the audit log.
pub struct AuditLog {
    policy: RwLock<Arc<Policy>>,
    policy_file: Option<PolicyFile>,
    log: Option<Backend>,
    webhook: Option<Backend>,
    /// Whether a backend receives events.
    is_open: AtomicBool,
    names: EventNames,
    clock: Arc<dyn Clock>,
    counts: Arc<Counts>,
    /// Limits the memory of encoded events with large objects that wait for the backends, in bytes.
    encoding: Arc<Semaphore>,
}

/// Memory for the forms of an event with large objects; dropping the value frees it.
#[derive(Debug)]
pub struct EncodingMemory {
    _permit: OwnedSemaphorePermit,
}

/// The file of the policy, with its content before the first read.
struct PolicyFile {
    path: PathBuf,
    names: Names,
    snapshot: RwLock<Option<Snapshot>>,
}

/// An event in the forms of the backends.
pub struct EncodedEvent {
    log: Option<Encoded>,
    webhook: Option<Encoded>,
    /// Whether this is the first event of a request.
    is_receipt: bool,
}

/// An event whose remaining forms are sent without waiting when the request no longer waits.
struct UnsentEvent<'a> {
    audit: &'a AuditLog,
    event: EncodedEvent,
}

impl Drop for UnsentEvent<'_> {
    fn drop(&mut self) {
        let EncodedEvent { log, webhook, is_receipt } = &mut self.event;
        let rest = EncodedEvent { log: log.take(), webhook: webhook.take(), is_receipt: *is_receipt };
        self.audit.send_now(rest);
    }
}

impl AuditLog {
    /// Returns an audit log without backends, which has no events.
    pub fn off() -> Self {
        AuditLog::with_names(EventNames::default(), Arc::new(SystemClock::new()))
    }

    /// Returns an audit log with the built-in policy, to which the caller adds backends.
    pub fn new(names: &Names, clock: Arc<dyn Clock>) -> Self {
        AuditLog::with_names(EventNames::new(names), clock)
    }

    fn with_names(names: EventNames, clock: Arc<dyn Clock>) -> Self {
        AuditLog {
            policy: RwLock::new(Arc::new(Policy::built_in())),
            policy_file: None,
            log: None,
            webhook: None,
            is_open: AtomicBool::new(false),
            names,
            counts: Arc::new(Counts::new(Arc::clone(&clock))),
            clock,
            encoding: Arc::new(Semaphore::new(MAX_ENCODED_BYTES)),
        }
    }

    /// Loads the policy from a file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is not a valid policy.
    pub fn with_policy_file(self, path: &Path, names: &Names) -> Result<Self, PolicyError> {
        let snapshot = Snapshot::new([path.to_owned()]);
        let policy = load_policy(path, names)?;
        let policy_file =
            PolicyFile { path: path.to_owned(), names: names.clone(), snapshot: RwLock::new(Some(snapshot)) };
        Ok(AuditLog { policy: RwLock::new(Arc::new(policy)), policy_file: Some(policy_file), ..self })
    }

    /// Sets the policy.
    #[must_use]
    pub fn with_policy(self, policy: Policy) -> Self {
        AuditLog { policy: RwLock::new(Arc::new(policy)), ..self }
    }

    /// Adds a log in a file, created with mode 0600; `-` is the standard output, which is never rotated.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn with_log(
        self,
        path: &str,
        rotation: Rotation,
        format: Format,
        options: BackendOptions,
    ) -> io::Result<Self> {
        let writer = LogWriter::open(path, rotation, Arc::clone(&self.clock), Arc::clone(&self.counts))?;
        let log = self.backend(Destination::Log(writer, format), options);
        let audit = AuditLog { log: Some(log), is_open: AtomicBool::new(true), ..self };
        audit.provide_receipts();
        Ok(audit)
    }

    /// Adds a webhook. [`Mode::Batch`](crate::Mode::Batch) needs a runtime, in which the caller is.
    #[must_use]
    pub fn with_webhook(self, webhook: Webhook, options: BackendOptions) -> Self {
        let webhook = self.backend(Destination::Webhook(Box::new(webhook)), options);
        let audit = AuditLog { webhook: Some(webhook), is_open: AtomicBool::new(true), ..self };
        audit.provide_receipts();
        audit
    }

    fn backend(&self, destination: Destination, options: BackendOptions) -> Backend {
        Backend::new(destination, options, &self.names.api_version, Arc::clone(&self.counts))
    }

    fn backends(&self) -> impl Iterator<Item = &Backend> {
        self.log.iter().chain(&self.webhook)
    }

    /// Adds the stage RequestReceived to the built-in policy if a backend rejects requests because of this event.
    fn provide_receipts(&self) {
        let mut policy = self.policy.write();
        if self.has_strict_backend() && **policy == Policy::built_in() {
            *policy = Arc::new(Policy::built_in_with_receipts());
        }
        self.warn_of_omitted_receipts(&policy);
    }

    fn has_strict_backend(&self) -> bool {
        self.backends().any(Backend::is_strict)
    }

    /// Warns if a policy makes the mode blocking-strict ineffective for some requests.
    fn warn_of_omitted_receipts(&self, policy: &Policy) {
        if self.has_strict_backend() && policy.omits_receipts() {
            tracing::warn!(
                "the audit policy omits the stage RequestReceived; the mode blocking-strict does not reject requests \
                 without this event: remove the stage from omitStages"
            );
        }
    }

    /// Whether a backend receives events. If not, callers create no events.
    pub fn is_on(&self) -> bool {
        self.is_open.load(Ordering::Relaxed)
    }

    /// Evaluates the policy for a request, and counts the request. `user`: the authenticated user; None if
    /// authentication failed.
    pub fn evaluate(&self, attributes: &Attributes, user: Option<&UserInfo>) -> Decision {
        let policy = Arc::clone(&self.policy.read());
        let decision = policy.evaluate(attributes, user);
        self.counts.count_request(decision.level);
        decision
    }

    /// Waits until there is memory for the forms of an event with large objects. The caller keeps the result from the
    /// encoding of the event to the end of [`AuditLog::send`], so that waiting requests have no encoded events.
    pub async fn reserve(&self, event: &Event) -> Option<EncodingMemory> {
        let size = event.object_bytes();
        if size <= LARGE_EVENT_BYTES {
            return None;
        }
        let size = size.saturating_mul(self.backends().count()).min(MAX_ENCODED_BYTES);
        let share = u32::try_from(size).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        let permit = Arc::clone(&self.encoding).acquire_many_owned(share).await.ok()?;
        Some(EncodingMemory { _permit: permit })
    }

    /// Encodes an event at a stage. Returns None if the policy omits the stage.
    pub fn encode(&self, event: &Event, stage: Stage, outcome: Option<Outcome<'_>>) -> Option<EncodedEvent> {
        if event.decision.is_none_or(|decision| decision.omit_stages.contains(stage)) {
            return None;
        }
        self.counts.count_event();
        let event = StageEvent {
            names: &self.names,
            event,
            stage,
            at: self.clock.now(),
            outcome,
            is_truncated: false,
        };
        let form = |backend: &Option<Backend>| backend.as_ref().map(|backend| backend.encode(&event));
        Some(EncodedEvent {
            log: form(&self.log),
            webhook: form(&self.webhook),
            is_receipt: stage == Stage::RequestReceived,
        })
    }

    /// Sends an event to the backends, and waits as their modes require. Returns false if the request of the event
    /// must be rejected.
    ///
    /// If the future is dropped before the end, even unpolled, the rest is sent without waiting.
    pub fn send(&self, event: EncodedEvent) -> impl Future<Output = bool> + Send {
        let mut unsent = UnsentEvent { audit: self, event };
        async move {
            let is_receipt = unsent.event.is_receipt;
            let mut is_accepted = true;
            if let (Some(log), Some(encoded)) = (&self.log, unsent.event.log.take()) {
                is_accepted &= log.send(encoded, is_receipt).await;
            }
            if let (Some(webhook), Some(encoded)) = (&self.webhook, unsent.event.webhook.take()) {
                is_accepted &= webhook.send(encoded, is_receipt).await;
            }
            is_accepted
        }
    }

    /// Counts a request that is rejected because [`AuditLog::send`] returned false.
    pub fn count_rejected(&self) {
        self.counts.count_rejected();
    }

    /// Sends an event without waiting, for code that cannot wait. An event that does not fit into a queue is lost and
    /// counted.
    pub fn send_now(&self, event: EncodedEvent) {
        for (backend, encoded) in [(&self.log, event.log), (&self.webhook, event.webhook)] {
            if let (Some(backend), Some(encoded)) = (backend, encoded) {
                backend.send_now(encoded);
            }
        }
    }

    /// Encodes an event at once and sends the event; see [`AuditLog::encode`] and [`AuditLog::send`].
    pub fn write<'a>(
        &'a self,
        event: &Event,
        stage: Stage,
        outcome: Outcome<'_>,
    ) -> impl Future<Output = ()> + Send + use<'a> {
        let sending = self.encode(event, stage, Some(outcome)).map(|encoded| self.send(encoded));
        async move {
            if let Some(sending) = sending {
                sending.await;
            }
        }
    }

    /// Encodes and sends an event without waiting; see [`AuditLog::send_now`].
    pub fn write_now(&self, event: &Event, stage: Stage, outcome: Outcome<'_>) {
        if let Some(encoded) = self.encode(event, stage, Some(outcome)) {
            self.send_now(encoded);
        }
    }

    /// Reloads the policy file after each change, until the returned watch is dropped. None without a policy file.
    ///
    /// If the new content is invalid, the earlier policy stays in use.
    pub fn watch_policy(self: &Arc<Self>) -> Option<Watch> {
        let snapshot = self.policy_file.as_ref()?.snapshot.write().take()?;
        let audit = Arc::clone(self);
        Some(snapshot.watch(move || {
            audit.reload_policy();
            true
        }))
    }

    fn reload_policy(&self) {
        let Some(PolicyFile { path, names, .. }) = &self.policy_file else { return };
        let policy = load_policy(path, names);
        self.counts.set_policy_rejected(policy.is_err());
        match policy {
            Ok(policy) => {
                self.warn_of_omitted_receipts(&policy);
                *self.policy.write() = Arc::new(policy);
                tracing::info!(file = %path.display(), "audit policy reloaded");
            }
            Err(error) => tracing::error!(%error, "audit policy is invalid; using the previous policy"),
        }
    }

    /// Opens the file of the log again after the queued lines, because another program may have renamed it.
    pub async fn reopen(&self) {
        for backend in self.backends() {
            backend.reopen().await;
        }
    }

    /// The number of lost events.
    pub fn lost_events(&self) -> u64 {
        self.counts.lost()
    }

    /// Registers the metrics.
    pub fn register_metrics(&self, metrics: &Metrics) {
        self.counts.register(metrics);
    }

    /// Delivers the buffered events of all backends, within a time limit. Later events, and those that remain, are lost.
    pub async fn finish_batches(&self) {
        for backend in self.backends() {
            backend.finish_batches().await;
        }
    }

    /// Writes the queued lines of the log and ends its thread. Blocks.
    pub fn close(&self) {
        self.is_open.store(false, Ordering::Relaxed);
        self.backends().for_each(Backend::close);
    }
}

fn load_policy(path: &Path, names: &Names) -> Result<Policy, PolicyError> {
    let (policy, warnings) = Policy::load(path, names)?;
    for warning in warnings {
        tracing::warn!(file = %path.display(), %warning, "audit policy");
    }
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use jiff::Timestamp;

    use super::*;
    use crate::backend::Mode;

    fn audit_log(path: &str, mode: Mode) -> AuditLog {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let options = BackendOptions { mode, max_event_bytes: None };
        let audit = AuditLog::new(&names, Arc::new(SystemClock::new()));
        audit.with_log(path, Rotation::default(), Format::Json, options).unwrap()
    }

    fn event(audit: &AuditLog) -> Event {
        let attributes = Arc::new(Attributes { verb: "get".into(), ..Attributes::default() });
        let mut event = Event::new("a".into(), Timestamp::UNIX_EPOCH, "/x".into(), Arc::clone(&attributes));
        event.decision = Some(audit.evaluate(&attributes, None));
        event
    }

    #[tokio::test]
    async fn strict_mode_without_policy_file_rejects_requests_of_a_full_disk() {
        let audit = audit_log("/dev/full", Mode::BlockingStrict);
        let receipt = audit.encode(&event(&audit), Stage::RequestReceived, None).unwrap();
        assert!(!audit.send(receipt).await);
        let audit = audit_log("/dev/full", Mode::Blocking);
        assert!(audit.encode(&event(&audit), Stage::RequestReceived, None).is_none());
    }

    #[tokio::test]
    async fn event_with_large_objects_waits_for_memory_before_it_is_encoded() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let audit = audit_log(path.to_str().unwrap(), Mode::Blocking);
        let mut large = event(&audit);
        large.decision = large.decision.map(|decision| Decision { level: crate::Level::Request, ..decision });
        assert!(audit.reserve(&large).await.is_none(), "small events do not wait");
        large.set_request_object(vec![b' '; 12 << 20]);
        let mut taken = Vec::new();
        for _ in 0..5 {
            taken.push(audit.reserve(&large).await.unwrap());
        }
        let wait = std::time::Duration::from_millis(20);
        assert!(tokio::time::timeout(wait, audit.reserve(&large)).await.is_err(), "60 of 64 MiB are taken");
        taken.pop();
        assert!(audit.reserve(&large).await.is_some());
    }

    #[tokio::test]
    async fn events_of_a_request_that_no_longer_waits_are_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.log");
        let audit = audit_log(path.to_str().unwrap(), Mode::Blocking);
        let event = event(&audit);
        let outcome = Outcome { code: 200, status: None };
        drop(audit.write(&event, Stage::ResponseStarted, outcome));
        drop(audit.write(&event, Stage::ResponseComplete, outcome));
        audit.close();
        assert_eq!(std::fs::read_to_string(&path).unwrap().lines().count(), 2);
        assert_eq!(audit.lost_events(), 0);
    }
}
