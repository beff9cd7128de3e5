//! The keys of one issuer: discovery, caching, refresh.
//!
//! # Contract
//!
//! [`Provider::verify`] returns the payload of a token that one of the issuer's keys signed. It uses the keys
//! in memory (requirement A-OIDC-7). A background task fetches keys.
//! A token that no known key verifies triggers one more fetch.
//!
//! - From start until the first success the fetch is retried; the server does not wait for the keys. A token
//!   waits for the end of the first attempt, at most [`MAX_FETCH_WAIT`].
//! - Cached keys stay valid while the issuer is unavailable.
//! - Keys are fetched again every [`REFRESH`], or after `max-age` of the response within [`MIN_REFRESH`] and
//!   [`MAX_REFRESH`]. After a failure, the next refresh follows after [`MIN_REFRESH`]. A removed key verifies
//!   no more tokens, and results cached under it become invalid.
//! - Tokens trigger at most [`BURST`] fetches at once and one per [`BURST_INTERVAL`] on average, because
//!   clients without a valid token can trigger them.
//!
//! # Concurrency
//!
//! At most one fetch runs at a time for each issuer.
//! A task that waited for the fetch of another task checks the new keys first.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use apimachinery::clock::Clock;
use apimachinery::field::shorten;
use arc_swap::ArcSwap;
use http::header::CACHE_CONTROL;
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serving::client::{Client, ClientResponse, Limits, Settings, Trust};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::discovery;
use super::validated::IssuerSettings;
use crate::tokens::jose::SignedToken;
use crate::tokens::jwk::{self, KeySet};

/// Limits of one HTTP request for metadata or keys.
const LIMITS: Limits = Limits { within: Duration::from_secs(10), bytes: jwk::LIMITS.bytes };
/// The longest wait of a token for the first fetch, and for a running fetch of another task.
const MAX_FETCH_WAIT: Duration = Duration::from_secs(5);
/// The first pause between attempts before the first successful fetch; each pause doubles, up to
/// [`MAX_RETRY`].
const RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(10);
/// The refresh interval if the JWKS response has no `max-age`.
const REFRESH: Duration = Duration::from_secs(10 * 60);
/// The shortest refresh interval; a smaller `max-age` of a JWKS response is raised to it.
const MIN_REFRESH: Duration = Duration::from_secs(60);
/// The longest refresh interval; a greater `max-age` of a JWKS response is lowered to it.
const MAX_REFRESH: Duration = Duration::from_secs(60 * 60);
/// The number of fetches that tokens with unknown keys can trigger without a pause.
const BURST: u32 = 5;
/// The interval after which tokens with unknown keys can trigger one more fetch.
const BURST_INTERVAL: Duration = Duration::from_secs(1);

/// The reason why no key verifies a token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SignatureError {
    /// No fetch of keys has succeeded yet.
    #[error("the keys of the issuer are not known yet: {problem}")]
    KeysUnknown {
        /// The error of the last attempt to fetch the keys.
        problem: String,
    },
    /// No key of the issuer verifies the signature.
    #[error("no key of the issuer verifies the signature{}", key_id_text(key_id.as_deref()))]
    Unverified {
        /// The key id of the token.
        key_id: Option<String>,
    },
}

/// The end of an error text: the key id, shortened to 100 characters, or nothing.
fn key_id_text(key_id: Option<&str>) -> String {
    match key_id {
        Some(id) => format!(" (key id `{}`)", shorten(id)),
        None => String::new(),
    }
}

/// The keys of an issuer.
#[derive(Debug, Default)]
struct IssuerKeys {
    /// The JWKS URL; None before the first successful fetch of keys.
    keys_url: Option<String>,
    keys: KeySet,
    /// The error of the last fetch; None before the first fetch, and from the first success on.
    problem: Option<String>,
}

/// Rate limit for fetches that tokens trigger.
#[derive(Debug)]
struct FetchRateLimit {
    /// The number of fetches that tokens may trigger at the time `since`.
    available: u32,
    /// The monotonic time up to which elapsed intervals are counted in `available`.
    since: Duration,
}

impl FetchRateLimit {
    /// Uses up one fetch; false if none is allowed now.
    fn take(&mut self, now: Duration) -> bool {
        let intervals = now.saturating_sub(self.since).as_millis() / BURST_INTERVAL.as_millis();
        if let Ok(intervals @ 1..) = u32::try_from(intervals) {
            self.available = self.available.saturating_add(intervals).min(BURST);
            self.since += BURST_INTERVAL.saturating_mul(intervals);
        }
        let is_allowed = self.available > 0;
        self.available = self.available.saturating_sub(1);
        is_allowed
    }
}

/// Receiver of the events of a provider.
pub(super) trait ProviderEvents: Send + Sync {
    /// The issuer removed a key: identities of tokens that the key signed are invalid.
    fn key_removed(&self);
    /// The known keys changed, the first fetch ended, or a fetch failed while no keys are known.
    fn availability_changed(&self);
    /// A fetch of keys ended; `issuer` is the URL, `result` is `success` or `failure`.
    fn fetch_ended(&self, issuer: &str, result: &str);
}

/// The keys of one issuer with the task that refreshes them.
pub(super) struct Provider {
    issuer: IssuerSettings,
    client: Result<Client, String>,
    clock: Arc<dyn Clock>,
    events: Arc<dyn ProviderEvents>,
    cached: ArcSwap<IssuerKeys>,
    rate_limit: Mutex<FetchRateLimit>,
    /// Locked while a task fetches keys.
    fetching: tokio::sync::Mutex<()>,
    /// Number of fetches, successful or not.
    attempts: AtomicU64,
    /// Whether the first fetch of the background task has ended.
    attempted: watch::Sender<bool>,
    task: Mutex<Option<AbortHandle>>,
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider").field("issuer", &self.issuer.url).finish_non_exhaustive()
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        if let Some(task) = self.task.lock().take() {
            task.abort();
        }
    }
}

impl Provider {
    /// Creates a provider; no fetch happens before [`Provider::start`].
    pub(super) fn new(
        issuer: IssuerSettings,
        clock: Arc<dyn Clock>,
        events: Arc<dyn ProviderEvents>,
    ) -> Arc<Self> {
        let client = client(&issuer.certificate_authority);
        let now = clock.monotonic();
        Arc::new(Provider {
            issuer,
            client,
            clock,
            events,
            cached: ArcSwap::default(),
            rate_limit: Mutex::new(FetchRateLimit { available: BURST, since: now }),
            fetching: tokio::sync::Mutex::new(()),
            attempts: AtomicU64::new(0),
            attempted: watch::Sender::new(false),
            task: Mutex::new(None),
        })
    }

    /// Starts the background task, which fetches keys until the provider is dropped. Needs a tokio runtime.
    pub(super) fn start(self: &Arc<Self>) {
        let mut task = self.task.lock();
        if task.is_none() {
            *task = Some(tokio::spawn(refresh_loop(Arc::downgrade(self))).abort_handle());
        }
    }

    /// Whether the first fetch has ended and no keys are known.
    pub(super) fn lacks_keys(&self) -> bool {
        self.cached.load().keys_url.is_none() && *self.attempted.borrow()
    }

    /// Returns the payload of a token that the issuer signed.
    ///
    /// # Errors
    ///
    /// See [`SignatureError`].
    pub(super) async fn verify<'s>(&self, signed: &'s SignedToken<'_>) -> Result<&'s [u8], SignatureError> {
        let mut attempted = self.attempted.subscribe();
        // The background task starts when the process serves, and fetches at once.
        // Only tokens that arrive before the end of the first fetch wait.
        let is_attempted =
            tokio::time::timeout(MAX_FETCH_WAIT, attempted.wait_for(|is_attempted| *is_attempted))
                .await
                .is_ok();
        let previous = self.cached.load_full();
        if let Some(payload) = previous.keys.verify(signed) {
            return Ok(payload);
        }
        if is_attempted && self.refetch_keys(&previous).await {
            let cached = self.cached.load_full();
            if let Some(payload) = cached.keys.verify(signed) {
                return Ok(payload);
            }
        }
        let cached = self.cached.load();
        if cached.keys_url.is_none() {
            let problem = cached.problem.as_deref().unwrap_or("no response yet");
            return Err(SignatureError::KeysUnknown { problem: problem.to_owned() });
        }
        Err(SignatureError::Unverified { key_id: signed.kid.clone() })
    }

    /// Fetches the keys once more if the rate limit allows this; true if the known keys now differ from
    /// `previous`.
    async fn refetch_keys(&self, previous: &Arc<IssuerKeys>) -> bool {
        let attempts_before = self.attempts.load(Ordering::SeqCst);
        let locked = tokio::time::timeout(MAX_FETCH_WAIT, self.fetching.lock()).await;
        let Ok(_fetch_lock) = locked else { return false };
        let is_replaced = |cached: &Arc<IssuerKeys>| !Arc::ptr_eq(cached, previous);
        if is_replaced(&self.cached.load()) {
            return true;
        }
        // During the wait for the lock another task fetched, and the keys did not change.
        // Without this check each waiting token would trigger a fetch of its own.
        if self.attempts.load(Ordering::SeqCst) != attempts_before {
            return false;
        }
        if !self.rate_limit.lock().take(self.clock.monotonic()) {
            return false;
        }
        self.fetch(previous.keys_url.is_none()).await.is_ok() && is_replaced(&self.cached.load())
    }

    /// Fetches the keys, and first the metadata if `discover` is set or the JWKS URL is unknown. Returns the
    /// time until the next regular fetch. The caller holds the lock `fetching`.
    async fn fetch(&self, discover: bool) -> Result<Duration, String> {
        let previous = self.cached.load_full();
        let fetched = self.fetch_keys(previous.keys_url.as_deref().filter(|_| !discover)).await;
        self.attempts.fetch_add(1, Ordering::SeqCst);
        match fetched {
            Ok((keys_url, keys, pause)) => {
                self.store_keys(&previous, keys_url, keys);
                Ok(pause)
            }
            Err(problem) => {
                tracing::warn!(
                    issuer = self.issuer.url,
                    problem,
                    "JWKS fetch failed; using the previous keys, if any"
                );
                self.events.fetch_ended(&self.issuer.url, "failure");
                // Known keys stay valid; only an issuer without keys records the problem.
                if previous.keys_url.is_none() {
                    let problem = Some(problem.clone());
                    self.cached.store(Arc::new(IssuerKeys { problem, ..IssuerKeys::default() }));
                    self.events.availability_changed();
                }
                Err(problem)
            }
        }
    }

    fn store_keys(&self, previous: &IssuerKeys, keys_url: String, keys: KeySet) {
        self.events.fetch_ended(&self.issuer.url, "success");
        let same_url = previous.keys_url.as_deref() == Some(keys_url.as_str());
        let same_keys = previous.keys.is_within(&keys) && keys.is_within(&previous.keys);
        if same_url && same_keys {
            return;
        }
        for reason in &keys.skipped_keys {
            tracing::debug!(issuer = self.issuer.url, reason, "JWKS key skipped");
        }
        let has_removed_keys = !previous.keys.is_within(&keys);
        tracing::info!(
            issuer = self.issuer.url,
            keys = keys.len(),
            skipped_keys = keys.skipped_keys.len(),
            hash = keys.hash,
            "JWKS fetched"
        );
        self.cached.store(Arc::new(IssuerKeys { keys_url: Some(keys_url), keys, problem: None }));
        self.events.availability_changed();
        if has_removed_keys {
            self.events.key_removed();
        }
    }

    async fn fetch_keys(&self, keys_url: Option<&str>) -> Result<(String, KeySet, Duration), String> {
        let client = self.client.as_ref().map_err(Clone::clone)?;
        let keys_url = match keys_url {
            Some(cached) => cached.to_owned(),
            None => {
                let url = discovery::url(&self.issuer);
                let document = get(client, &url).await?;
                discovery::keys_url(&document.body, &self.issuer.url)
                    .map_err(|problem| format!("{url}: {problem}"))?
            }
        };
        let response = get(client, &keys_url).await?;
        let keys = KeySet::parse(&response.body).map_err(|problem| format!("{keys_url}: {problem}"))?;
        Ok((keys_url, keys, refresh_interval(&response)))
    }
}

async fn get(client: &Client, url: &str) -> Result<ClientResponse, String> {
    let response = client.get(url, LIMITS).await.map_err(|error| format!("{url}: {error}"))?;
    if response.status.as_u16() == 200 {
        Ok(response)
    } else {
        Err(format!("{url}: unexpected HTTP status {}", response.status))
    }
}

/// Returns the time until the next fetch: `max-age` of the response within the limits, else [`REFRESH`].
fn refresh_interval(response: &ClientResponse) -> Duration {
    let header = response.headers.get(CACHE_CONTROL).and_then(|value| value.to_str().ok());
    let seconds = header.and_then(|header| {
        header.split(',').find_map(|part| part.trim().strip_prefix("max-age=")?.trim().parse().ok())
    });
    seconds.map_or(REFRESH, |seconds| Duration::from_secs(seconds).clamp(MIN_REFRESH, MAX_REFRESH))
}

/// Fetches the keys at intervals while the provider exists.
async fn refresh_loop(provider: Weak<Provider>) {
    let mut retry = RETRY;
    loop {
        let pause = {
            let Some(provider) = provider.upgrade() else { return };
            let _fetch_lock = provider.fetching.lock().await;
            let fetched = provider.fetch(true).await;
            if !provider.attempted.send_replace(true) {
                provider.events.availability_changed();
            }
            match fetched {
                Ok(pause) => {
                    retry = RETRY;
                    pause
                }
                Err(_) if provider.cached.load().keys_url.is_some() => MIN_REFRESH,
                Err(_) => {
                    let pause = retry;
                    retry = (retry * 2).min(MAX_RETRY);
                    pause
                }
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Creates an HTTP client that trusts the CA certificates in the PEM `authorities`, or those of the system if
/// empty.
fn client(authorities: &str) -> Result<Client, String> {
    let trust =
        if authorities.is_empty() { Trust::System } else { Trust::Authorities(certificates(authorities)?) };
    let settings = Settings {
        trust,
        user_agent: concat!("authd/", env!("CARGO_PKG_VERSION")).to_owned(),
        ..Settings::default()
    };
    Client::new(&settings).map_err(|error| error.to_string())
}

/// Returns the CA certificates of a PEM bundle, without other certificates.
/// The issuer's own server certificate is not trusted as a CA (requirement A-OIDC-13).
fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let parsed: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let mut certificates = parsed.map_err(|error| format!("certificate authority: {error}"))?;
    certificates
        .retain(|certificate| X509Certificate::from_der(certificate).is_ok_and(|(_, parsed)| parsed.is_ca()));
    if certificates.is_empty() {
        return Err("certificate authority: no CA certificate (CA:TRUE) in the bundle".to_owned());
    }
    Ok(certificates)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_key_fetches_are_rate_limited() {
        let mut rate_limit = FetchRateLimit { available: BURST, since: Duration::ZERO };
        let mut allowed_fetches = |millis: u64| {
            let now = Duration::from_millis(millis);
            (0..100).filter(|_| rate_limit.take(now)).count()
        };
        let at = [0, 999, 1000, 1999, 2500, 3000, 60_000, 60_999, 61_000];
        assert_eq!(at.map(&mut allowed_fetches), [5, 0, 1, 0, 1, 1, 5, 0, 1]);
    }

    #[test]
    fn jwks_refresh_interval_follows_cache_control() {
        for (header, expected) in [
            (None, REFRESH),
            (Some("max-age=300"), Duration::from_secs(300)),
            (Some("public, max-age=120, must-revalidate"), Duration::from_secs(120)),
            (Some("max-age=1"), MIN_REFRESH),
            (Some("max-age=99999999"), MAX_REFRESH),
            (Some("no-store"), REFRESH),
            (Some("max-age=x"), REFRESH),
        ] {
            let mut response = ClientResponse {
                status: http::StatusCode::OK,
                headers: http::HeaderMap::new(),
                body: Default::default(),
            };
            if let Some(header) = header {
                response.headers.insert(CACHE_CONTROL, http::HeaderValue::from_static(header));
            }
            assert_eq!(refresh_interval(&response), expected, "{header:?}");
        }
    }
}
