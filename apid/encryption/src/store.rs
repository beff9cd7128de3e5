//! The store between the contract and an engine: encrypts commits, and decrypts rows and changes.
//!
//! # Concurrency
//!
//! The observer takes the plain value of a commit from [`PendingWrites`], so that it decrypts nothing that this process
//! just encrypted. If the caller of the commit has gone, the observer decrypts the value. A value whose provider is not
//! available then is passed on as unreadable, and `on_recovery` of the environment asks for another read.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use apimachinery::names::Names;
use arc_swap::ArcSwap;
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use storage::{
    Change, CommitOutcome, Error, Held, Observer, Op, Page, PageFilling, Result, Revision, RevisionRange,
    Row, Store, Watch, check_size, unreadable_reason, unreadable_value,
};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::configuration::{Configuration, ConfigurationError};
use crate::decryption::{FailedKeys, Plain, ReadError};
use crate::kms::KmsEnvironment;
use crate::metrics::EncryptionMetrics;
use crate::transformers::{Keyspace, Place, Transformers};

/// Number of rows that are decrypted without a pause for other tasks.
const ROWS_PER_TURN: usize = 64;
/// Attempts to decrypt a value whose key leaves the memory at once.
const ATTEMPTS: usize = 3;
/// Time for which the observer waits for a key. The calls to a plugin have their own timeout.
const OBSERVER_WAIT: Duration = Duration::from_secs(10);

/// The reason why the observer does not decrypt a value.
const LATE: &str = "the KMS plugin did not decrypt the key in time";

/// The reason why a configuration is not used.
#[derive(Debug, thiserror::Error)]
pub enum EncryptionError {
    /// The file is invalid.
    #[error("{0}")]
    Configuration(#[from] ConfigurationError),
    /// A provider rejects its configuration, or a new KMS plugin is not healthy.
    #[error("{0}")]
    Provider(String),
}

/// Encryption at rest with a configuration that can be replaced.
pub struct Encryption {
    current: ArcSwap<Transformers>,
    pending: PendingWrites,
    environment: KmsEnvironment,
    metrics: Arc<EncryptionMetrics>,
    keyspace: Arc<dyn Keyspace>,
    runtime: Handle,
    /// Notified of each new configuration.
    reloads: watch::Sender<()>,
}

/// The plain values of commits that run, by the address of their encrypted value.
#[derive(Default)]
struct PendingWrites(Mutex<HashMap<usize, (Bytes, Bytes)>>);

impl PendingWrites {
    fn address(encrypted: &Bytes) -> usize {
        encrypted.as_ptr() as usize
    }

    /// Adds a commit until the result is dropped. The map owns the encrypted value, so no other value gets the address.
    fn insert(&self, encrypted: &Bytes, plain: Bytes) -> PendingWrite<'_> {
        let address = Self::address(encrypted);
        self.0.lock().insert(address, (encrypted.clone(), plain));
        PendingWrite { pending: self, address }
    }

    fn plain(&self, encrypted: &Bytes) -> Option<Bytes> {
        let pending = self.0.lock();
        let (known, plain) = pending.get(&Self::address(encrypted))?;
        (known.len() == encrypted.len()).then(|| plain.clone())
    }
}

/// A commit in [`PendingWrites`]; dropping it removes the commit.
struct PendingWrite<'a> {
    pending: &'a PendingWrites,
    address: usize,
}

impl Drop for PendingWrite<'_> {
    fn drop(&mut self) {
        self.pending.0.lock().remove(&self.address);
    }
}

/// The result of an attempt to decrypt a value.
enum Opened {
    Value(Plain),
    Failed(ReadError),
}

impl Encryption {
    /// Creates the transformers of a configuration, and asks each KMS plugin once.
    ///
    /// A plugin that is not healthy does not stop the start: its values are unavailable until it is.
    ///
    /// # Errors
    ///
    /// A provider rejects its configuration.
    pub async fn start(
        configuration: &Configuration,
        environment: KmsEnvironment,
        metrics: EncryptionMetrics,
        keyspace: Arc<dyn Keyspace>,
    ) -> Result<Arc<Self>, EncryptionError> {
        let metrics = Arc::new(metrics);
        let transformers = Transformers::new(configuration, &environment, &metrics, &keyspace, None)
            .map_err(EncryptionError::Provider)?;
        for provider in transformers.kms() {
            provider.probe().await;
            provider.spawn_polling();
        }
        metrics.set_configuration(transformers.hash());
        Ok(Arc::new(Encryption {
            current: ArcSwap::from_pointee(transformers),
            pending: PendingWrites::default(),
            environment,
            metrics,
            keyspace,
            runtime: Handle::current(),
            reloads: watch::Sender::new(()),
        }))
    }

    /// Replaces the configuration. Values that only the previous one decrypts become unreadable.
    ///
    /// # Errors
    ///
    /// The file is invalid, or a new KMS plugin is not healthy. The previous configuration then stays.
    pub async fn reload(&self, file: &Path, names: &Names) -> Result<(), EncryptionError> {
        let result = self.replace(file, names).await;
        self.metrics.record_reload(result.is_ok(), self.environment.clock.now());
        result
    }

    async fn replace(&self, file: &Path, names: &Names) -> Result<(), EncryptionError> {
        let configuration = Configuration::read(file, names)?;
        let previous = self.current.load_full();
        let transformers = Transformers::new(
            &configuration,
            &self.environment,
            &self.metrics,
            &self.keyspace,
            Some(&previous),
        )
        .map_err(EncryptionError::Provider)?;
        let is_new = |provider: &&Arc<_>| !previous.kms().iter().any(|other| Arc::ptr_eq(other, provider));
        let new: Vec<_> = transformers.kms().iter().filter(is_new).cloned().collect();
        for provider in &new {
            provider.probe().await;
            provider.health().map_err(EncryptionError::Provider)?;
        }
        new.iter().for_each(|provider| provider.spawn_polling());
        self.metrics.set_configuration(transformers.hash());
        self.current.store(Arc::new(transformers));
        self.reloads.send_replace(());
        (self.environment.on_recovery)();
        Ok(())
    }

    /// The hash of the configuration in use.
    pub fn hash(&self) -> String {
        self.current.load().hash().to_owned()
    }

    /// Whether the configuration has a KMS provider.
    pub fn has_kms(&self) -> bool {
        !self.current.load().kms().is_empty()
    }

    /// The reasons why KMS plugins are not healthy, for the check `kms-providers`.
    pub fn kms_health(&self) -> Result<(), String> {
        let transformers = self.current.load();
        let failures = transformers.kms().iter().enumerate().filter_map(|(index, provider)| {
            provider.health().err().map(|reason| format!("kms-provider-{index}: {reason}"))
        });
        let failures: Vec<String> = failures.collect();
        if failures.is_empty() { Ok(()) } else { Err(failures.join(", ")) }
    }

    /// An observer of an engine that passes plain changes on.
    pub fn observer(self: &Arc<Self>, observer: Arc<dyn Observer>) -> Arc<dyn Observer> {
        Arc::new(PlainObserver { encryption: Arc::clone(self), observer })
    }

    /// A store over an engine, with plain values.
    pub fn store(self: &Arc<Self>, engine: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(EncryptedStore { encryption: Arc::clone(self), engine })
    }

    /// Decrypts a value with the keys in memory.
    fn try_open(&self, key: &str, stored: &Bytes) -> Opened {
        let transformers = self.current.load();
        let Some((transformer, rest)) = transformers.of_key(key) else {
            return Opened::Value(Plain { value: stored.clone(), is_stale: false });
        };
        match transformer.decrypt(stored, rest) {
            Ok(plain) => Opened::Value(plain),
            Err(error) => Opened::Failed(error),
        }
    }

    /// Decrypts a value. A damaged value becomes an unreadable one.
    ///
    /// # Errors
    ///
    /// `Unavailable` if a KMS plugin does not respond.
    async fn open(&self, key: &str, stored: &Bytes, failed: &mut FailedKeys) -> Result<Bytes> {
        self.open_plain(key, stored, failed).await.map(|plain| plain.value)
    }

    pub(crate) async fn open_plain(
        &self,
        key: &str,
        stored: &Bytes,
        failed: &mut FailedKeys,
    ) -> Result<Plain> {
        for _ in 0..ATTEMPTS {
            let missing = match self.try_open(key, stored) {
                Opened::Value(plain) => return Ok(plain),
                Opened::Failed(ReadError::MissingDek(missing)) => missing,
                Opened::Failed(error) => return unreadable(error),
            };
            if let Some(error) = failed.get(&*missing) {
                return unreadable(error);
            }
            if let Err(error) = missing.load().await {
                failed.insert(missing.digest(), &error);
                return unreadable(error);
            }
        }
        Err(Error::Unavailable("too many keys of KMS plugins are in use".to_owned()))
    }

    /// Decrypts a value outside of a task. Blocks the thread while a KMS plugin decrypts a key.
    ///
    /// The keys of the rows that this process reads are in memory, so a call is rare. A damaged value becomes an unreadable
    /// one.
    ///
    /// # Errors
    ///
    /// The reason why the provider is not available now.
    fn open_blocking(&self, key: &str, stored: &Bytes, failed: &mut FailedKeys) -> Result<Bytes, String> {
        for _ in 0..ATTEMPTS {
            let missing = match self.try_open(key, stored) {
                Opened::Value(plain) => return Ok(plain.value),
                Opened::Failed(ReadError::MissingDek(missing)) => missing,
                Opened::Failed(ReadError::Damaged(reason)) => return Ok(unreadable_value(&reason)),
                Opened::Failed(ReadError::Unavailable(reason)) => return Err(reason),
            };
            let digest = missing.digest();
            match failed.get(&*missing) {
                Some(ReadError::Damaged(reason)) => return Ok(unreadable_value(&reason)),
                Some(ReadError::Unavailable(reason)) => return Err(reason),
                Some(ReadError::MissingDek(_)) | None => {}
            }
            let (sender, receiver) = mpsc::channel();
            self.runtime.spawn(async move {
                // The observer has gone after its timeout.
                let _ = sender.send(missing.load().await);
            });
            let late = || ReadError::Unavailable(LATE.to_owned());
            let result = receiver.recv_timeout(OBSERVER_WAIT).unwrap_or_else(|_| Err(late()));
            let Err(error) = result else { continue };
            failed.insert(digest, &error);
            match error {
                ReadError::Damaged(reason) => return Ok(unreadable_value(&reason)),
                ReadError::Unavailable(reason) => return Err(reason),
                ReadError::MissingDek(_) => break,
            }
        }
        Err(LATE.to_owned())
    }

    async fn open_row(&self, row: Row) -> Result<Row> {
        let value = self.open(&row.key, &row.value, &mut FailedKeys::default()).await?;
        Ok(Row { value, ..row })
    }

    async fn open_page(&self, mut page: Page) -> Result<Page> {
        let mut failed = FailedKeys::default();
        for (index, row) in page.rows.iter_mut().enumerate() {
            row.value = self.open(&row.key, &row.value, &mut failed).await?;
            if index % ROWS_PER_TURN == ROWS_PER_TURN - 1 {
                tokio::task::yield_now().await;
            }
        }
        Ok(page)
    }

    async fn open_changes(&self, changes: &[Change]) -> Result<Vec<Change>> {
        let mut failed = FailedKeys::default();
        let mut opened = Vec::with_capacity(changes.len());
        for change in changes {
            let mut change = change.clone();
            if let Some(row) = &mut change.old {
                row.value = self.open(&row.key, &row.value, &mut failed).await?;
            }
            if let Some(value) = &mut change.new {
                *value = self.open(&change.key, value, &mut failed).await?;
            }
            opened.push(change);
            if opened.len() % ROWS_PER_TURN == 0 {
                tokio::task::yield_now().await;
            }
        }
        Ok(opened)
    }

    /// Decrypts the row in an error of a commit.
    async fn open_error(&self, error: Error) -> Error {
        let (row, is_conflict) = match error {
            Error::Exists(row) => (row, false),
            Error::Conflict(row) => (row, true),
            other => return other,
        };
        match self.open_row(*row).await {
            Ok(row) if is_conflict => Error::Conflict(Box::new(row)),
            Ok(row) => Error::Exists(Box::new(row)),
            Err(error) => error,
        }
    }

    /// Encrypts a value.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the provider cannot encrypt now; `Corrupt` for the value of an unreadable object.
    fn seal(&self, key: &str, plain: &Bytes, place: Place) -> Result<Bytes> {
        let transformers = self.current.load();
        let Some((transformer, rest)) = transformers.of_key(key) else { return Ok(plain.clone()) };
        if !transformer.has_providers() {
            return Ok(plain.clone());
        }
        if unreadable_reason(plain).is_some() {
            return Err(Error::Corrupt(format!("key `{key}`: an unreadable object cannot be written")));
        }
        transformer.encrypt(plain, rest, place).map_err(Error::Unavailable)
    }

    /// Commits an operation whose value is plain.
    async fn commit(
        &self,
        engine: &Arc<dyn Store>,
        key: &str,
        op: Op,
        held: &[Held],
    ) -> Result<CommitOutcome> {
        check_size(key, &op)?;
        let (plain, expected) = match op {
            Op::Delete(_) => return engine.commit_holding(key, op, held).await,
            Op::Create(plain) => (plain, None),
            Op::Update(plain, at) => (plain, Some(at)),
        };
        let operation = |value| match expected {
            Some(at) => Op::Update(value, at),
            None => Op::Create(value),
        };
        let sealed = self.seal(key, &plain, Place::Store)?;
        if sealed.as_ptr() == plain.as_ptr() {
            return engine.commit_holding(key, operation(sealed), held).await;
        }
        let _pending = self.pending.insert(&sealed, plain);
        engine.commit_holding(key, operation(sealed.clone()), held).await
    }
}

/// A damaged value becomes an unreadable one; other failures are errors.
fn unreadable(error: ReadError) -> Result<Plain> {
    match error {
        ReadError::Damaged(reason) => Ok(Plain { value: unreadable_value(&reason), is_stale: false }),
        ReadError::Unavailable(reason) => Err(Error::Unavailable(reason)),
        ReadError::MissingDek(_) => Err(Error::Unavailable("a key is not in memory".to_owned())),
    }
}

/// An observer of plain changes behind an engine with encrypted ones.
struct PlainObserver {
    encryption: Arc<Encryption>,
    observer: Arc<dyn Observer>,
}

impl Observer for PlainObserver {
    fn observe(&self, changes: &[Change]) {
        let encryption = &self.encryption;
        let is_sealed = |value: &Bytes| value.starts_with(storage::ENCRYPTED_PREFIX);
        let needs_work = |change: &Change| {
            change.new.as_ref().is_some_and(is_sealed)
                || change.old.as_ref().is_some_and(|row| is_sealed(&row.value))
        };
        if !changes.iter().any(needs_work) {
            return self.observer.observe(changes);
        }
        let (mut is_complete, mut failed) = (true, FailedKeys::default());
        let mut open = |key: &str, value: &Bytes| {
            encryption.open_blocking(key, value, &mut failed).unwrap_or_else(|reason| {
                is_complete = false;
                tracing::warn!(key, reason, "a changed object is unreadable until its provider is available");
                unreadable_value(&reason)
            })
        };
        let mut opened = changes.to_vec();
        for change in &mut opened {
            if let Some(value) = &mut change.new {
                let known = encryption.pending.plain(value);
                *value = known.unwrap_or_else(|| open(&change.key, value));
            }
            if let Some(row) = &mut change.old {
                row.value = open(&row.key, &row.value);
            }
        }
        self.observer.observe(&opened);
        if !is_complete {
            (encryption.environment.on_recovery)();
        }
    }

    fn progress(&self, through: Revision) {
        self.observer.progress(through);
    }
}

/// A store over an engine, with plain values.
struct EncryptedStore {
    encryption: Arc<Encryption>,
    engine: Arc<dyn Store>,
}

#[async_trait]
impl Store for EncryptedStore {
    fn inner(&self) -> Option<&dyn Store> {
        Some(&*self.engine)
    }

    fn revision(&self) -> Revision {
        self.engine.revision()
    }

    fn compacted(&self) -> Revision {
        self.engine.compacted()
    }

    async fn get(&self, key: &str, at: Option<Revision>) -> Result<Option<Row>> {
        match self.engine.get(key, at).await? {
            Some(row) => self.encryption.open_row(row).await.map(Some),
            None => Ok(None),
        }
    }

    async fn range(&self, prefix: &str, start: &str, limit: usize, at: Option<Revision>) -> Result<Page> {
        self.encryption.open_page(self.engine.range(prefix, start, limit, at).await?).await
    }

    async fn rows_within(
        &self,
        prefix: &str,
        start: &str,
        limit: usize,
        bytes: usize,
        at: Revision,
    ) -> Result<Page> {
        // The engine counts the bytes of encrypted values, which are longer: one of its pages can leave room for more rows.
        let mut filling = PageFilling::new(start, limit, bytes, at);
        loop {
            let (start, rows, bytes) = (filling.start(), filling.rows_left(), filling.bytes_left());
            let next = self.engine.rows_within(prefix, start, rows, bytes, at).await?;
            match filling.include(self.encryption.open_page(next).await?) {
                ControlFlow::Break(page) => return Ok(page),
                ControlFlow::Continue(rest) => filling = rest,
            }
        }
    }

    async fn stored_rows_within(
        &self,
        prefix: &str,
        start: &str,
        bytes: usize,
        at: Revision,
    ) -> Result<Page> {
        self.engine.stored_rows_within(prefix, start, bytes, at).await
    }

    fn archived_value(&self, key: &str, value: &Bytes) -> Result<Bytes> {
        self.encryption.seal(key, value, Place::Archive)
    }

    async fn is_stale(&self, key: &str) -> Result<bool> {
        let Some(row) = self.engine.get(key, None).await? else { return Ok(false) };
        let mut failed = FailedKeys::default();
        self.encryption.open_plain(&row.key, &row.value, &mut failed).await.map(|plain| plain.is_stale)
    }

    async fn commit(&self, key: &str, op: Op) -> Result<CommitOutcome> {
        self.commit_holding(key, op, &[]).await
    }

    async fn commit_holding(&self, key: &str, op: Op, held: &[Held]) -> Result<CommitOutcome> {
        match self.encryption.commit(&self.engine, key, op, held).await {
            Err(error) => Err(self.encryption.open_error(error).await),
            done => done,
        }
    }

    async fn watch(&self, prefix: &str, after: Revision) -> Result<Box<dyn Watch>> {
        let reloads = self.encryption.reloads.subscribe();
        let inner = self.engine.watch(prefix, after).await?;
        let encryption = Arc::clone(&self.encryption);
        Ok(Box::new(PlainWatch { inner, encryption, reloads, position: after, received: Vec::new() }))
    }

    async fn history(
        &self,
        prefix: &str,
        after: Revision,
        upto: Revision,
        bytes: usize,
    ) -> Result<RevisionRange> {
        let RevisionRange { changes, through } = self.engine.history(prefix, after, upto, bytes).await?;
        Ok(RevisionRange { changes: self.encryption.open_changes(&changes).await?, through })
    }

    async fn compact(&self, upto: Revision) -> Result<()> {
        self.engine.compact(upto).await
    }

    fn health(&self) -> Result<()> {
        self.engine.health()
    }

    async fn close(&self) {
        self.engine.close().await;
    }
}

/// A watch with plain changes. A new configuration ends the watch as if its position were compacted: its reader may have
/// left out values that are readable now, and reads the store again.
struct PlainWatch {
    inner: Box<dyn Watch>,
    encryption: Arc<Encryption>,
    reloads: watch::Receiver<()>,
    /// The revision of the last received change.
    position: Revision,
    /// The changes that are received and not decrypted yet: a cancelled call loses none.
    received: Vec<Change>,
}

#[async_trait]
impl Watch for PlainWatch {
    async fn next(&mut self) -> Result<Vec<Change>> {
        if self.received.is_empty() {
            self.received = tokio::select! {
                biased;
                _ = self.reloads.changed() => {
                    return Err(Error::Compacted { requested: self.position, compacted: self.position });
                }
                received = self.inner.next() => received?,
            };
            self.position = self.received.last().map_or(self.position, |last| last.revision);
        }
        let opened = self.encryption.open_changes(&self.received).await?;
        self.received.clear();
        Ok(opened)
    }
}
