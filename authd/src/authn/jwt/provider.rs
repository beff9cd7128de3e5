//! The keys of one issuer: discovery, caching, refresh.
//!
//! # Contract
//!
//! [`Provider::verify`] returns the payload of a token that one of the issuer's keys signed. It uses keys in
//! memory (requirement A-OIDC-7). A background task fetches keys, and a token that no known key signed
//! triggers a fetch.
//!
//! - From start until the first success the fetch is retried; the server does not wait for it. A token waits
//!   for the first attempt only, at most [`FIRST_ATTEMPT`].
//! - Cached keys stay valid while the issuer is unavailable.
//! - Keys are fetched again every [`REFRESH`], or as the issuer's cache headers say within [`MIN_REFRESH`] and
//!   [`MAX_REFRESH`]. A removed key verifies no more tokens, and results cached under it become invalid.
//! - An unknown key triggers a fetch, with bursts of [`BURST`] and one per [`BURST_INTERVAL`] on average, so that
//!   unauthenticated clients cannot trigger unlimited fetches.
//!
//! # Concurrency
//!
//! One fetch at a time for each issuer; a waiter checks the new keys before fetching again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

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
use super::issuers::SharedIssuerState;
use super::validated::Issuer;
use crate::tokens::jose::Signed;
use crate::tokens::jwk::{self, KeySet};

/// Limits of one fetch.
const LIMITS: Limits = Limits { within: Duration::from_secs(10), bytes: jwk::LIMITS.bytes };
/// How long a token waits for the first fetch.
const FIRST_ATTEMPT: Duration = Duration::from_secs(5);
/// Back-off between attempts while no key is known: doubled each time, up to [`MAX_RETRY`].
const RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(10);
/// Refresh interval when the issuer gives none.
const REFRESH: Duration = Duration::from_secs(10 * 60);
/// The shortest refresh interval that an issuer may give.
const MIN_REFRESH: Duration = Duration::from_secs(60);
/// The longest refresh interval that an issuer may give.
const MAX_REFRESH: Duration = Duration::from_secs(60 * 60);
/// Burst of fetches for unknown keys.
const BURST: u32 = 5;
/// Interval after which one more fetch is allowed.
const BURST_INTERVAL: Duration = Duration::from_secs(1);

/// The keys of an issuer.
#[derive(Debug)]
struct IssuerKeys {
    /// The JWKS URL; None before the first successful discovery.
    keys_url: Option<String>,
    keys: KeySet,
    /// The error of the last attempt.
    problem: Option<String>,
}

/// Rate limit for fetches that tokens trigger.
#[derive(Debug)]
struct FetchRateLimit {
    left: u32,
    since: Duration,
}

impl FetchRateLimit {
    fn take(&mut self, now: Duration) -> bool {
        let pauses = now.saturating_sub(self.since).as_millis() / BURST_INTERVAL.as_millis();
        if let Ok(pauses @ 1..) = u32::try_from(pauses) {
            self.left = self.left.saturating_add(pauses).min(BURST);
            self.since += BURST_INTERVAL.saturating_mul(pauses);
        }
        let may = self.left > 0;
        self.left = self.left.saturating_sub(1);
        may
    }
}

/// One issuer.
pub(super) struct Provider {
    issuer: Issuer,
    client: Result<Client, String>,
    surroundings: Arc<SharedIssuerState>,
    known: ArcSwap<IssuerKeys>,
    allowance: Mutex<FetchRateLimit>,
    fetching: tokio::sync::Mutex<()>,
    /// Number of fetches, successful or not.
    attempts: AtomicU64,
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
    pub(super) fn new(issuer: Issuer, surroundings: Arc<SharedIssuerState>) -> Arc<Self> {
        let client = client(&issuer.certificate_authority);
        let now = surroundings.clock.monotonic();
        Arc::new(Provider {
            issuer,
            client,
            surroundings,
            known: ArcSwap::from_pointee(IssuerKeys {
                keys_url: None,
                keys: KeySet::default(),
                problem: None,
            }),
            allowance: Mutex::new(FetchRateLimit { left: BURST, since: now }),
            fetching: tokio::sync::Mutex::new(()),
            attempts: AtomicU64::new(0),
            attempted: watch::Sender::new(false),
            task: Mutex::new(None),
        })
    }

    /// Fetches keys from now on, until the provider is dropped. Needs a runtime.
    pub(super) fn start(self: &Arc<Self>) {
        let mut task = self.task.lock();
        if task.is_none() {
            *task = Some(tokio::spawn(refresh_loop(Arc::downgrade(self))).abort_handle());
        }
    }

    /// Why no keys of the issuer are known; None if some are.
    pub(super) fn unknown_reason(&self) -> Option<String> {
        let known = self.known.load();
        if known.keys_url.is_some() || !*self.attempted.borrow() {
            return None;
        }
        let problem = known.problem.as_deref().unwrap_or("not fetched yet");
        Some(format!("issuer {}: {problem}", self.issuer.url))
    }

    /// Returns the payload of a token that the issuer signed.
    pub(super) async fn verify<'s>(&self, signed: &'s Signed<'_>) -> Result<&'s [u8], String> {
        let mut attempted = self.attempted.subscribe();
        // No fetch starts before the process serves; the first attempt follows at once.
        let first = tokio::time::timeout(FIRST_ATTEMPT, attempted.wait_for(|made| *made)).await.is_ok();
        let tried = self.known.load_full();
        if let Some(payload) = tried.keys.verify(signed) {
            return Ok(payload);
        }
        if first && self.refetch_keys(&tried).await {
            let known = self.known.load_full();
            if let Some(payload) = known.keys.verify(signed) {
                return Ok(payload);
            }
        }
        let known = self.known.load();
        if known.keys_url.is_none() {
            let problem = known.problem.as_deref().unwrap_or("no response yet");
            return Err(format!("the keys of the issuer are not known yet: {problem}"));
        }
        let named = match &signed.kid {
            Some(kid) => format!(" (key id `{}`)", kid.chars().take(100).collect::<String>()),
            None => String::new(),
        };
        Err(format!("no key of the issuer verifies the signature{named}"))
    }

    /// Fetches the keys once more if the rate limit allows; true if the known keys differ from `tried`.
    async fn refetch_keys(&self, tried: &Arc<IssuerKeys>) -> bool {
        let seen = self.attempts.load(Ordering::SeqCst);
        let waited = tokio::time::timeout(FIRST_ATTEMPT, self.fetching.lock()).await;
        let Ok(_one_at_a_time) = waited else { return false };
        let is_other = |known: &Arc<IssuerKeys>| !Arc::ptr_eq(known, tried);
        if is_other(&self.known.load()) {
            return true;
        }
        // Another task fetched in vain during the wait: do not fetch once per unverifiable token.
        if self.attempts.load(Ordering::SeqCst) != seen {
            return false;
        }
        if !self.allowance.lock().take(self.surroundings.clock.monotonic()) {
            return false;
        }
        self.fetch(tried.keys_url.is_none()).await.is_ok() && is_other(&self.known.load())
    }

    /// Fetches the keys, and first the metadata if `discover` is set or the JWKS URL is unknown.
    /// Returns the pause until the next fetch.
    async fn fetch(&self, discover: bool) -> Result<Duration, String> {
        let before = self.known.load_full();
        let fetched = self.ask(before.keys_url.as_deref().filter(|_| !discover)).await;
        self.attempts.fetch_add(1, Ordering::SeqCst);
        match fetched {
            Ok((keys_url, keys, pause)) => {
                self.store_keys(&before, keys_url, keys);
                Ok(pause)
            }
            Err(problem) => {
                tracing::warn!(
                    issuer = self.issuer.url,
                    problem,
                    "JWKS fetch failed; using the previous keys, if any"
                );
                self.surroundings.fetched(&self.issuer.url, "failure");
                // Cached keys stay valid: a failed fetch does not mean that the keys changed.
                if before.keys_url.is_none() {
                    let problem = Some(problem.clone());
                    self.known.store(Arc::new(IssuerKeys {
                        keys_url: None,
                        keys: KeySet::default(),
                        problem,
                    }));
                    self.surroundings.changed();
                }
                Err(problem)
            }
        }
    }

    fn store_keys(&self, before: &IssuerKeys, keys_url: String, keys: KeySet) {
        self.surroundings.fetched(&self.issuer.url, "success");
        let same_place = before.keys_url.as_deref() == Some(keys_url.as_str());
        let same_keys = before.keys.is_within(&keys) && keys.is_within(&before.keys);
        if same_place && same_keys {
            return;
        }
        for reason in &keys.skipped_keys {
            tracing::debug!(issuer = self.issuer.url, reason, "JWKS key skipped");
        }
        let gone = !before.keys.is_within(&keys);
        tracing::info!(
            issuer = self.issuer.url,
            keys = keys.len(),
            skipped_keys = keys.skipped_keys.len(),
            hash = keys.hash,
            "JWKS fetched"
        );
        self.known.store(Arc::new(IssuerKeys { keys_url: Some(keys_url), keys, problem: None }));
        self.surroundings.changed();
        if gone {
            self.surroundings.renew();
        }
    }

    async fn ask(&self, keys_url: Option<&str>) -> Result<(String, KeySet, Duration), String> {
        let client = self.client.as_ref().map_err(Clone::clone)?;
        let keys_url = match keys_url {
            Some(known) => known.to_owned(),
            None => {
                let url = discovery::url(&self.issuer);
                let document = get(client, &url).await?;
                discovery::keys_url(&document.body, &self.issuer.url)
                    .map_err(|problem| format!("{url}: {problem}"))?
            }
        };
        let answer = get(client, &keys_url).await?;
        let keys = KeySet::parse(&answer.body).map_err(|problem| format!("{keys_url}: {problem}"))?;
        Ok((keys_url, keys, refresh_interval(&answer)))
    }
}

async fn get(client: &Client, url: &str) -> Result<ClientResponse, String> {
    let answer = client.get(url, LIMITS).await.map_err(|error| format!("{url}: {error}"))?;
    if answer.status.as_u16() == 200 {
        Ok(answer)
    } else {
        Err(format!("{url}: unexpected HTTP status {}", answer.status))
    }
}

/// How long the response may be cached.
fn refresh_interval(answer: &ClientResponse) -> Duration {
    let said = answer.headers.get(CACHE_CONTROL).and_then(|value| value.to_str().ok());
    let seconds = said.and_then(|said| {
        said.split(',').find_map(|part| part.trim().strip_prefix("max-age=")?.trim().parse().ok())
    });
    seconds.map_or(REFRESH, |seconds| Duration::from_secs(seconds).clamp(MIN_REFRESH, MAX_REFRESH))
}

/// Fetches repeatedly while the provider exists.
async fn refresh_loop(provider: Weak<Provider>) {
    let mut retry = RETRY;
    loop {
        let pause = {
            let Some(provider) = provider.upgrade() else { return };
            let _one_at_a_time = provider.fetching.lock().await;
            let fetched = provider.fetch(true).await;
            if !provider.attempted.send_replace(true) {
                provider.surroundings.changed();
            }
            match fetched {
                Ok(pause) => {
                    retry = RETRY;
                    pause
                }
                Err(_) if provider.known.load().keys_url.is_some() => MIN_REFRESH,
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

/// An HTTP client that trusts the CA certificates of `authorities`, or the system's if it is empty.
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

/// The CA certificates of a bundle.
/// A server's own certificate is not a CA, not even for itself (requirement A-OIDC-13).
fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let mut all = all.map_err(|error| format!("certificate authority: {error}"))?;
    all.retain(|certificate| X509Certificate::from_der(certificate).is_ok_and(|(_, parsed)| parsed.is_ca()));
    if all.is_empty() {
        return Err("certificate authority: no CA certificate (CA:TRUE) in the bundle".to_owned());
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_key_fetches_are_rate_limited() {
        let mut allowance = FetchRateLimit { left: BURST, since: Duration::ZERO };
        let mut taken = |millis: u64| {
            let now = Duration::from_millis(millis);
            (0..100).filter(|_| allowance.take(now)).count()
        };
        let at = [0, 999, 1000, 1999, 2500, 3000, 60_000, 60_999, 61_000];
        assert_eq!(at.map(&mut taken), [5, 0, 1, 0, 1, 1, 5, 0, 1]);
    }

    #[test]
    fn jwks_refresh_interval_follows_cache_control() {
        for (header, want) in [
            (None, REFRESH),
            (Some("max-age=300"), Duration::from_secs(300)),
            (Some("public, max-age=120, must-revalidate"), Duration::from_secs(120)),
            (Some("max-age=1"), MIN_REFRESH),
            (Some("max-age=99999999"), MAX_REFRESH),
            (Some("no-store"), REFRESH),
            (Some("max-age=x"), REFRESH),
        ] {
            let mut answer = ClientResponse {
                status: http::StatusCode::OK,
                headers: http::HeaderMap::new(),
                body: Default::default(),
            };
            if let Some(header) = header {
                answer.headers.insert(CACHE_CONTROL, http::HeaderValue::from_static(header));
            }
            assert_eq!(refresh_interval(&answer), want, "{header:?}");
        }
    }
}
