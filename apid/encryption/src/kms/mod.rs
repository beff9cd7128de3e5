//! Envelope encryption with a KMS plugin of the protocol v2.
//!
//! # Contract
//!
//! A provider asks its plugin for the state in intervals. At the first success, and when the plugin names another
//! key, the provider makes a random seed and lets the plugin encrypt it. HKDF derives a key from the seed for each
//! value; so a write calls no plugin. A read calls the plugin once for each seed that is not in memory.
//!
//! While the plugin fails, reads with seeds in memory go on. Writes go on until [`STATE_LIFETIME`] after the last
//! success, and then fail, because the plugin may have another key.
//!
//! # Invariants
//!
//! INVARIANT (bounded memory): a provider holds at most [`MAX_DEKS`] decrypted keys.
//! INVARIANT (bounded time): each call ends after the timeout of the configuration.
//!
//! # Reference
//!
//! Formats, checks and texts are those of kube-apiserver 1.33. kube-apiserver forgets a decrypted key after an hour.

pub mod mock;
pub mod protocol;

use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use apimachinery::clock::{Clock, Rng};
use arc_swap::ArcSwapOption;
use async_trait::async_trait;
use aws_lc_rs::digest::{Context, SHA256};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk};
use parking_lot::Mutex;
use prost::Message as _;
use tonic::transport::Channel;
use tonic::{Code, Status};
use zeroize::{Zeroize as _, Zeroizing};

use self::protocol::{
    DEK, DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, EncryptedObject, Method, SEED,
    StatusRequest, StatusResponse, code_name, error_text,
};
use crate::configuration::{KmsConfiguration, hash};
use crate::decryption::{MissingDek, Plain, ReadError, TOO_SHORT, join};
use crate::metrics::EncryptionMetrics;
use crate::providers::ciphers::{AesGcm, fill};

/// Time after the last successful call of `Status` during which the provider encrypts.
pub const STATE_LIFETIME: Duration = Duration::from_secs(3 * 60);
/// Maximum number of decrypted keys in memory.
const MAX_DEKS: usize = 1000;
/// Size of a seed and of an AES-256 key in bytes.
const SEED_LENGTH: usize = 32;
/// Size in bytes of the value from which HKDF derives the key of a value.
const INFO_LENGTH: usize = 32;
/// Maximum length of the name of a key in bytes.
const MAX_KEY_ID: usize = 1024;
/// Maximum size of an encrypted seed in bytes.
const MAX_ENCRYPTED_DEK: usize = 1024;
/// Maximum size of all annotations in bytes.
const MAX_ANNOTATIONS: usize = 32 * 1024;
/// The text of kube-apiserver about a provider without a first success.
const NO_STATE: &str = "got unexpected nil transformer";
/// Versions of the protocol that a plugin may report.
const VERSIONS: [&str; 2] = ["v2", "v2beta1"];

/// Pauses between calls of `Status`.
#[derive(Clone, Copy, Debug)]
pub struct PollIntervals {
    /// Pause after a success.
    pub healthy: Duration,
    /// Pause after a failure.
    pub unhealthy: Duration,
}

impl Default for PollIntervals {
    fn default() -> Self {
        PollIntervals { healthy: Duration::from_secs(20), unhealthy: Duration::from_secs(3) }
    }
}

/// The environment of all providers.
#[derive(Clone)]
pub struct KmsEnvironment {
    /// The clock of the lifetime of seeds.
    pub clock: Arc<dyn Clock>,
    /// Makes names of requests.
    pub rng: Arc<dyn Rng>,
    /// Pauses between calls of `Status`.
    pub intervals: PollIntervals,
    /// Called when unreadable values may have become readable. Must not block.
    pub on_recovery: Arc<dyn Fn() + Send + Sync>,
}

/// A KMS plugin and its keys.
pub(crate) struct KmsProvider {
    configuration: KmsConfiguration,
    prefix: String,
    channel: Channel,
    environment: KmsEnvironment,
    metrics: Arc<EncryptionMetrics>,
    /// The seed that encrypts; None before the first success.
    state: ArcSwapOption<EncryptingState>,
    deks: Mutex<DekCache>,
    health: Mutex<Result<(), String>>,
}

/// A seed that the plugin has encrypted.
struct EncryptingState {
    source: Arc<DekSource>,
    /// The stored message without the encrypted value.
    envelope: EncryptedObject,
    /// The digest of `envelope`.
    digest: [u8; 32],
    /// End of the lifetime by the monotonic clock, in milliseconds.
    expires_ms: AtomicU64,
}

/// The decrypted source of keys. Both forms clear their memory when they are dropped.
enum DekSource {
    Seed(Prk),
    Key(AesGcm),
}

/// A stored value whose key the plugin must decrypt.
struct EncryptedDek {
    provider: Arc<KmsProvider>,
    object: EncryptedObject,
    digest: [u8; 32],
}

impl std::fmt::Debug for EncryptedDek {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EncryptedDek").field("key_id", &self.object.key_id).finish_non_exhaustive()
    }
}

#[async_trait]
impl MissingDek for EncryptedDek {
    fn digest(&self) -> [u8; 32] {
        self.digest
    }

    async fn load(&self) -> Result<(), ReadError> {
        self.provider.load(&self.object).await
    }
}

impl DekSource {
    fn new(kind: i32, bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() != SEED_LENGTH {
            return Err(format!(
                "the plugin returned a key of {} bytes instead of {SEED_LENGTH}",
                bytes.len()
            ));
        }
        match kind {
            SEED => Ok(DekSource::Seed(Prk::new_less_safe(HKDF_SHA256, bytes))),
            _ => AesGcm::new(bytes).map(DekSource::Key).ok_or_else(|| "the key is not usable".to_owned()),
        }
    }

    fn decrypt(&self, encrypted: &[u8], context: &[u8]) -> Result<Vec<u8>, &'static str> {
        match self {
            DekSource::Key(key) => key.decrypt(encrypted, context),
            DekSource::Seed(seed) => {
                let (info, sealed) = encrypted.split_first_chunk::<INFO_LENGTH>().ok_or(TOO_SHORT)?;
                derive(seed, info).ok_or("deriving the key failed")?.decrypt(sealed, context)
            }
        }
    }
}

/// The length of a derived key.
struct KeyLength;

impl KeyType for KeyLength {
    fn len(&self) -> usize {
        SEED_LENGTH
    }
}

/// Derives the key of a value.
fn derive(seed: &Prk, info: &[u8; INFO_LENGTH]) -> Option<AesGcm> {
    let mut key = Zeroizing::new([0; SEED_LENGTH]);
    seed.expand(&[info], KeyLength).and_then(|okm| okm.fill(&mut *key)).ok()?;
    AesGcm::new(&*key)
}

/// The decrypted keys by their digest; the oldest one leaves first.
#[derive(Clone, Default)]
struct DekCache {
    entries: VecDeque<([u8; 32], Arc<DekSource>)>,
}

impl DekCache {
    fn get(&self, digest: &[u8; 32]) -> Option<Arc<DekSource>> {
        self.entries.iter().rev().find(|(key, _)| key == digest).map(|(_, source)| Arc::clone(source))
    }

    /// Adds a key and returns the number of keys.
    fn insert(&mut self, digest: [u8; 32], source: Arc<DekSource>) -> usize {
        if self.get(&digest).is_none() {
            if self.entries.len() >= MAX_DEKS {
                self.entries.pop_front();
            }
            self.entries.push_back((digest, source));
        }
        self.entries.len()
    }
}

/// A digest of all that determines the decrypted key of a value.
fn dek_digest(object: &EncryptedObject) -> [u8; 32] {
    let mut context = Context::new(&SHA256);
    let mut add = |bytes: &[u8]| {
        context.update(&(bytes.len() as u64).to_be_bytes());
        context.update(bytes);
    };
    add(&object.encrypted_dek_source_type.to_be_bytes());
    add(&object.encrypted_dek_source);
    add(object.key_id.as_bytes());
    for (name, value) in &object.annotations {
        add(name.as_bytes());
        add(value);
    }
    let mut digest = [0; 32];
    digest.copy_from_slice(context.finish().as_ref());
    digest
}

impl KmsProvider {
    /// Creates the provider of a plugin, without a call.
    pub(crate) fn new(
        configuration: KmsConfiguration,
        environment: KmsEnvironment,
        metrics: Arc<EncryptionMetrics>,
    ) -> Arc<Self> {
        Arc::new(KmsProvider {
            prefix: format!("k8s:enc:kms:v2:{}:", configuration.name),
            channel: protocol::channel(&configuration.socket),
            configuration,
            environment,
            metrics,
            state: ArcSwapOption::empty(),
            deks: Mutex::default(),
            health: Mutex::new(Err("the plugin was not asked yet".to_owned())),
        })
    }

    /// Takes over the keys of a provider of the same plugin.
    pub(crate) fn adopt_keys(&self, earlier: &KmsProvider) {
        *self.deks.lock() = earlier.deks.lock().clone();
        self.state.store(earlier.state.load_full());
    }

    pub(crate) fn configuration(&self) -> &KmsConfiguration {
        &self.configuration
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The result of the last call of `Status`.
    pub(crate) fn health(&self) -> Result<(), String> {
        self.health.lock().clone()
    }

    /// Asks the plugin in intervals until the provider is dropped.
    pub(crate) fn spawn_polling(self: &Arc<Self>) {
        let provider: Weak<Self> = Arc::downgrade(self);
        let intervals = self.environment.intervals;
        tokio::spawn(async move {
            loop {
                let Some(strong) = provider.upgrade() else { return };
                let pause = if strong.health().is_ok() { intervals.healthy } else { intervals.unhealthy };
                drop(strong);
                tokio::time::sleep(pause).await;
                let Some(strong) = provider.upgrade() else { return };
                strong.probe().await;
            }
        });
    }

    /// Asks the plugin for its state, and makes a seed if necessary.
    pub(crate) async fn probe(&self) {
        let result = self.check_status().await;
        let previous = std::mem::replace(&mut *self.health.lock(), result.clone());
        match (&previous, &result) {
            (Err(_), Ok(())) => {
                tracing::info!(provider = self.configuration.name, "KMS plugin is healthy");
                (self.environment.on_recovery)();
            }
            (Ok(()), Err(reason)) => {
                tracing::error!(provider = self.configuration.name, reason, "KMS plugin is not healthy");
            }
            (Err(before), Err(reason)) if before != reason => {
                tracing::warn!(provider = self.configuration.name, reason, "KMS plugin is not healthy");
            }
            _ => {}
        }
    }

    async fn check_status(&self) -> Result<(), String> {
        let name = &self.configuration.name;
        let response: Result<StatusResponse, Status> = self.call(Method::Status, StatusRequest {}).await;
        let response = response.map_err(|status| {
            format!(
                "failed to perform status section of the healthz check for KMS Provider {name}, error: {}",
                error_text(&status)
            )
        })?;
        let unhealthy = |error: String| format!("kmsv2 Provider {name} is not healthy, error: {error}");
        if let Some(error) = status_error(&response) {
            if !is_valid_key_id(&response.key_id) {
                self.metrics.count_invalid_key_id(name, &response.key_id);
            }
            return Err(unhealthy(error));
        }
        self.metrics.record_status_key(name, &response.key_id, self.environment.clock.now());
        self.rotate(&response.key_id).await.map_err(unhealthy)
    }

    /// Extends the lifetime of the seed, or makes a seed for another key of the plugin.
    async fn rotate(&self, key_id: &str) -> Result<(), String> {
        let now = self.environment.clock.monotonic();
        let expires_ms = millis(now.saturating_add(STATE_LIFETIME));
        if let Some(state) = self.state.load().as_ref()
            && state.envelope.key_id == key_id
        {
            state.expires_ms.store(expires_ms, Ordering::Relaxed);
            return Ok(());
        }
        let mut seed = Zeroizing::new([0; SEED_LENGTH]);
        fill(&mut *seed)?;
        let request = EncryptRequest { plaintext: seed.to_vec(), uid: self.environment.rng.uuid() };
        let response: EncryptResponse = self
            .call(Method::Encrypt, request)
            .await
            .map_err(|status| format!("failed to encrypt DEK, error: {}", error_text(&status)))?;
        let envelope = EncryptedObject {
            encrypted_data: Vec::new(),
            key_id: response.key_id,
            encrypted_dek_source: response.ciphertext,
            annotations: response.annotations,
            encrypted_dek_source_type: SEED,
        };
        check_envelope(&envelope)?;
        tracing::info!(
            provider = self.configuration.name,
            key_id_hash = hash(envelope.key_id.as_bytes()),
            "a new seed encrypts; values of the previous key are stale"
        );
        let source = Arc::new(DekSource::new(SEED, &*seed)?);
        let digest = dek_digest(&envelope);
        self.remember(digest, Arc::clone(&source));
        let now = self.environment.clock.now();
        self.metrics.record_new_seed(&self.configuration.name, &envelope.key_id, now);
        self.state.store(Some(Arc::new(EncryptingState {
            source,
            envelope,
            digest,
            expires_ms: AtomicU64::new(expires_ms),
        })));
        Ok(())
    }

    fn remember(&self, digest: [u8; 32], source: Arc<DekSource>) {
        let count = self.deks.lock().insert(digest, source);
        self.metrics.set_dek_count(&self.configuration.name, count);
    }

    /// Encrypts a value.
    pub(crate) fn encrypt(&self, plain: &[u8], context: &str) -> Result<Vec<u8>, String> {
        let state = self.state.load();
        let state = state.as_ref().ok_or_else(|| self.no_state())?;
        let now = self.environment.clock.monotonic();
        if millis(now) > state.expires_ms.load(Ordering::Relaxed) {
            return Err(format!(
                "EDEK with keyID hash {:?} expired: the KMS plugin {:?} has not been healthy for {} seconds",
                hash(state.envelope.key_id.as_bytes()),
                self.configuration.name,
                STATE_LIFETIME.as_secs(),
            ));
        }
        let DekSource::Seed(seed) = &*state.source else { return Err(NO_STATE.to_owned()) };
        let mut info = [0; INFO_LENGTH];
        fill(&mut info)?;
        let key = derive(seed, &info).ok_or_else(|| "deriving the key failed".to_owned())?;
        let mut object = state.envelope.clone();
        object.encrypted_data = Vec::with_capacity(INFO_LENGTH + plain.len() + 32);
        object.encrypted_data.extend_from_slice(&info);
        key.encrypt(plain, context.as_bytes(), &mut object.encrypted_data)?;
        let mut out = Vec::with_capacity(self.prefix.len() + object.encoded_len());
        out.extend_from_slice(self.prefix.as_bytes());
        object.encode(&mut out).map_err(|error| error.to_string())?;
        self.metrics.count_key_use(&self.configuration.name, &object.key_id, "to_storage");
        Ok(out)
    }

    fn no_state(&self) -> String {
        let reason = self.health().err().unwrap_or_default();
        format!("{NO_STATE}: KMS provider {:?}: {reason}", self.configuration.name)
    }

    /// Decrypts the bytes after the prefix.
    pub(crate) fn decrypt(self: &Arc<Self>, body: &[u8], context: &str) -> Result<Plain, ReadError> {
        let damaged = |error: String| ReadError::Damaged(error);
        let object = EncryptedObject::decode(body)
            .map_err(|error| damaged(format!("failed to unmarshal encrypted object: {error}")))?;
        if object.encrypted_data.is_empty() {
            return Err(damaged("encrypted data is empty".to_owned()));
        }
        check_envelope(&object).map_err(damaged)?;
        let state = self.state.load();
        let state = state.as_ref().ok_or_else(|| ReadError::Unavailable(self.no_state()))?;
        let digest = dek_digest(&object);
        // The cache can have dropped the seed that encrypts now.
        let is_current = digest == state.digest;
        let source = if is_current { Some(Arc::clone(&state.source)) } else { self.deks.lock().get(&digest) };
        let Some(source) = source else {
            let provider = Arc::clone(self);
            return Err(ReadError::MissingDek(Box::new(EncryptedDek { provider, object, digest })));
        };
        let plain = source.decrypt(&object.encrypted_data, context.as_bytes());
        let plain = plain.map_err(|error| damaged(format!("failed to decrypt data: {error}")))?;
        self.metrics.count_key_use(&self.configuration.name, &object.key_id, "from_storage");
        let is_stale = object.key_id != state.envelope.key_id || object.encrypted_dek_source_type != SEED;
        Ok(Plain { value: plain.into(), is_stale })
    }

    /// Lets the plugin decrypt the key of a value.
    async fn load(&self, object: &EncryptedObject) -> Result<(), ReadError> {
        let request = DecryptRequest {
            ciphertext: object.encrypted_dek_source.clone(),
            uid: self.environment.rng.uuid(),
            key_id: object.key_id.clone(),
            annotations: object.annotations.clone(),
        };
        let response: Result<DecryptResponse, Status> = self.call(Method::Decrypt, request).await;
        let mut response = response.map_err(|status| {
            let text = format!("failed to decrypt DEK, error: {}", error_text(&status));
            if is_lasting(status.code()) { ReadError::Damaged(text) } else { ReadError::Unavailable(text) }
        })?;
        let source = DekSource::new(object.encrypted_dek_source_type, &response.plaintext);
        response.plaintext.zeroize();
        let source =
            source.map_err(|error| ReadError::Damaged(format!("failed to decrypt DEK, error: {error}")))?;
        self.remember(dek_digest(object), Arc::new(source));
        Ok(())
    }

    /// Calls a method of the plugin within the timeout.
    async fn call<Q, R>(&self, method: Method, request: Q) -> Result<R, Status>
    where
        Q: prost::Message + 'static,
        R: prost::Message + Default + 'static,
    {
        let start = self.environment.clock.monotonic();
        let call = protocol::call(self.channel.clone(), method, request);
        let result = within(self.configuration.timeout, call).await;
        let code = result.as_ref().map_or_else(Status::code, |_| Code::Ok);
        let duration = self.environment.clock.monotonic().saturating_sub(start);
        self.metrics.record_kms_call(&self.configuration.name, method.path(), &code_name(code), duration);
        result
    }
}

async fn within<R>(limit: Duration, call: impl Future<Output = Result<R, Status>>) -> Result<R, Status> {
    match tokio::time::timeout(limit, call).await {
        Ok(result) => result,
        Err(_) => Err(Status::deadline_exceeded("context deadline exceeded")),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Whether a failed decryption with this code fails later too, because the code is about the encrypted key. Other codes
/// are about the plugin: many plugins report a lost connection or login as `Unknown` or `Internal`.
fn is_lasting(code: Code) -> bool {
    matches!(code, Code::NotFound | Code::InvalidArgument)
}

/// The error of a response of `Status`.
fn status_error(response: &StatusResponse) -> Option<String> {
    let mut errors = Vec::new();
    if response.healthz != "ok" {
        errors.push(format!("got unexpected healthz status: {}", response.healthz));
    }
    if !VERSIONS.contains(&response.version.as_str()) {
        errors.push(format!("expected KMSv2 API version v2, got {}", response.version));
    }
    if let Err(error) = check_key_id(&response.key_id) {
        let hash = if response.key_id.is_empty() { String::new() } else { hash(response.key_id.as_bytes()) };
        errors.push(format!("got invalid KMSv2 KeyID hash {hash:?}: {error}"));
    }
    join(errors)
}

fn is_valid_key_id(key_id: &str) -> bool {
    check_key_id(key_id).is_ok()
}

fn check_key_id(key_id: &str) -> Result<(), String> {
    match key_id.len() {
        0 => Err("keyID is empty".to_owned()),
        length if length > MAX_KEY_ID => {
            Err(format!("keyID is {length} bytes, which exceeds the max size of {MAX_KEY_ID}"))
        }
        _ => Ok(()),
    }
}

/// Checks a message without its encrypted value.
fn check_envelope(object: &EncryptedObject) -> Result<(), String> {
    if !matches!(object.encrypted_dek_source_type, DEK | SEED) {
        return Err(format!("unknown encryptedDEKSourceType {}", object.encrypted_dek_source_type));
    }
    match object.encrypted_dek_source.len() {
        0 => return Err("failed to validate encrypted DEK source: encrypted DEK source is empty".to_owned()),
        length if length > MAX_ENCRYPTED_DEK => {
            return Err(format!(
                "failed to validate encrypted DEK source: encrypted DEK source is {length} bytes, which exceeds the max \
                 size of {MAX_ENCRYPTED_DEK}"
            ));
        }
        _ => {}
    }
    check_key_id(&object.key_id).map_err(|error| format!("failed to validate key id: {error}"))?;
    let size: usize = object.annotations.iter().map(|(name, value)| name.len() + value.len()).sum();
    if size > MAX_ANNOTATIONS {
        return Err(format!(
            "failed to validate annotations: total size of annotations is {size}, which exceeds the max size of \
             {MAX_ANNOTATIONS}"
        ));
    }
    match object.annotations.keys().find(|name| !is_domain_name(name)) {
        Some(name) => {
            Err(format!("failed to validate annotations: {name:?} is no fully qualified domain name"))
        }
        None => Ok(()),
    }
}

/// Whether an annotation has a name in the form that Kubernetes requires: a domain of at least two labels.
fn is_domain_name(name: &str) -> bool {
    let label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && !label.starts_with('-')
            && !label.ends_with('-')
            && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
    };
    name.len() <= 253 && name.contains('.') && name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::{SystemClock, SystemRng};
    use serving::metrics::Metrics;

    use super::*;

    #[test]
    fn status_that_is_not_usable_is_named() {
        let response = |version: &str, healthz: &str, key_id: &str| StatusResponse {
            version: version.to_owned(),
            healthz: healthz.to_owned(),
            key_id: key_id.to_owned(),
        };
        let long = "k".repeat(1025);
        for (response, expected) in [
            (response("v2", "ok", "a"), None),
            (response("v2beta1", "ok", "a"), None),
            (response("v3", "ok", "a"), Some("expected KMSv2 API version v2, got v3".to_owned())),
            (response("v2", "not today", "a"), Some("got unexpected healthz status: not today".to_owned())),
            (response("v2", "ok", ""), Some("got invalid KMSv2 KeyID hash \"\": keyID is empty".to_owned())),
            (
                response("v2", "ok", &long),
                Some(format!(
                    "got invalid KMSv2 KeyID hash {:?}: keyID is 1025 bytes, which exceeds the max size of 1024",
                    hash(long.as_bytes())
                )),
            ),
        ] {
            assert_eq!(status_error(&response), expected, "{response:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn seed_that_encrypts_decrypts_after_it_left_the_cache() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("kms.sock");
        let plugin = mock::MockPlugin::new("id-1", [1; 32]);
        let server = plugin.serve(&socket);
        let configuration = KmsConfiguration {
            name: "plug".to_owned(),
            socket: socket.display().to_string(),
            timeout: Duration::from_secs(3),
        };
        let environment = KmsEnvironment {
            clock: Arc::new(SystemClock::new()),
            rng: Arc::new(SystemRng),
            intervals: PollIntervals::default(),
            on_recovery: Arc::new(|| ()),
        };
        let metrics = Arc::new(EncryptionMetrics::new(&Metrics::new(), "test"));
        let provider = KmsProvider::new(configuration, environment, metrics);
        provider.probe().await;
        let stored = provider.encrypt(b"plain", "key").unwrap();
        provider.deks.lock().entries.clear();
        let body = stored.strip_prefix(provider.prefix().as_bytes()).unwrap();
        assert_eq!(provider.decrypt(body, "key").unwrap().value, "plain");
        assert_eq!(plugin.calls(Method::Decrypt), 0);
        server.abort();
    }

    #[test]
    fn only_codes_about_the_encrypted_key_are_lasting() {
        for (code, expected) in [
            (Code::NotFound, true),
            (Code::InvalidArgument, true),
            (Code::Unknown, false),
            (Code::Internal, false),
            (Code::PermissionDenied, false),
            (Code::Unauthenticated, false),
            (Code::FailedPrecondition, false),
            (Code::Unavailable, false),
            (Code::DeadlineExceeded, false),
        ] {
            assert_eq!(is_lasting(code), expected, "{code:?}");
        }
    }

    #[test]
    fn envelope_beyond_the_limits_is_rejected() {
        let envelope = EncryptedObject {
            key_id: "k".to_owned(),
            encrypted_dek_source: vec![1],
            encrypted_dek_source_type: SEED,
            ..EncryptedObject::default()
        };
        assert_eq!(check_envelope(&envelope), Ok(()));
        let with = |change: fn(&mut EncryptedObject)| {
            let mut changed = envelope.clone();
            change(&mut changed);
            check_envelope(&changed).unwrap_err()
        };
        assert!(with(|object| object.encrypted_dek_source.clear()).contains("is empty"));
        assert!(with(|object| object.encrypted_dek_source = vec![0; 1025]).contains("1025 bytes"));
        assert!(with(|object| object.encrypted_dek_source_type = 2).contains('2'));
        let annotate = |object: &mut EncryptedObject, name: &str, size| {
            object.annotations.insert(name.to_owned(), vec![0; size]);
        };
        let mut bad = envelope.clone();
        annotate(&mut bad, "plain", 1);
        assert!(check_envelope(&bad).unwrap_err().contains("plain"));
        let mut large = envelope;
        annotate(&mut large, "a.example.com", 40_000);
        assert!(check_envelope(&large).unwrap_err().contains("max size"));
    }
}
