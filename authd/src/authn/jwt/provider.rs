//! The keys of one issuer: discovered, kept, refreshed.
//!
//! # Contract
//!
//! [`Provider::verify`] gives the payload of a token whose signature is of one of the issuer's keys. It answers from
//! memory (requirement A-OIDC-7); the issuer is asked in the background, and for a token that no known key signed.
//!
//! - At the start, and until it answers, the issuer is asked again and again; the server does not wait for it. A token
//!   waits for the first attempt alone, at most [`FIRST_ATTEMPT`].
//! - What is known stays known while the issuer is away.
//! - Keys are read again every [`REFRESH`], or as the issuer says within [`SOONEST`] and [`LATEST`]. A key that is gone
//!   verifies no more, and what was answered on it is void.
//! - A key that is not known is asked for, at most [`BURST`] times at once and once in [`PAUSE`] on the average, so that
//!   strangers cannot make us ask.
//!
//! # Concurrency
//!
//! One fetch at a time for each issuer; whoever waited looks at the new keys first.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use http::header::CACHE_CONTROL;
use parking_lot::Mutex;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serving::client::{Answer, Client, Limits, Settings, Trust};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use x509_parser::prelude::{FromDer, X509Certificate};

use super::checked::Issuer;
use super::discovery;
use super::issuers::Surroundings;
use crate::tokens::jose::Signed;
use crate::tokens::jwk::{self, KeySet};

/// What one request may cost.
const LIMITS: Limits = Limits { within: Duration::from_secs(10), bytes: jwk::LIMITS.bytes };
/// How long a token waits for the first answer of its issuer.
const FIRST_ATTEMPT: Duration = Duration::from_secs(5);
/// Pauses between attempts while nothing is known: doubled each time, up to the last.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(10);
/// How often keys are read again when the issuer does not say.
const REFRESH: Duration = Duration::from_secs(10 * 60);
/// The shortest and the longest that an issuer may say.
const SOONEST: Duration = Duration::from_secs(60);
/// See [`SOONEST`].
const LATEST: Duration = Duration::from_secs(60 * 60);
/// Fetches for unknown keys at once.
const BURST: u32 = 5;
/// One more after each.
const PAUSE: Duration = Duration::from_secs(1);

/// What is known of an issuer.
#[derive(Debug)]
struct Known {
    /// Where its keys are; None: nothing is known yet.
    keys_url: Option<String>,
    keys: KeySet,
    /// Why the last attempt failed.
    problem: Option<String>,
}

/// Allowance for fetches that tokens cause.
#[derive(Debug)]
struct Allowance {
    left: u32,
    since: Duration,
}

impl Allowance {
    fn take(&mut self, now: Duration) -> bool {
        let pauses = now.saturating_sub(self.since).as_millis() / PAUSE.as_millis();
        if let Ok(pauses @ 1..) = u32::try_from(pauses) {
            self.left = self.left.saturating_add(pauses).min(BURST);
            self.since += PAUSE.saturating_mul(pauses);
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
    surroundings: Arc<Surroundings>,
    known: ArcSwap<Known>,
    allowance: Mutex<Allowance>,
    fetching: tokio::sync::Mutex<()>,
    /// How often they were asked, in vain or not.
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
    /// Nothing is asked before [`Provider::start`].
    pub(super) fn new(issuer: Issuer, surroundings: Arc<Surroundings>) -> Arc<Self> {
        let client = client(&issuer.certificate_authority);
        let now = surroundings.clock.monotonic();
        Arc::new(Provider {
            issuer,
            client,
            surroundings,
            known: ArcSwap::from_pointee(Known { keys_url: None, keys: KeySet::default(), problem: None }),
            allowance: Mutex::new(Allowance { left: BURST, since: now }),
            fetching: tokio::sync::Mutex::new(()),
            attempts: AtomicU64::new(0),
            attempted: watch::Sender::new(false),
            task: Mutex::new(None),
        })
    }

    /// Asks the issuer from now on, until the provider is dropped. In a runtime.
    pub(super) fn start(self: &Arc<Self>) {
        let mut task = self.task.lock();
        if task.is_none() {
            *task = Some(tokio::spawn(keep(Arc::downgrade(self))).abort_handle());
        }
    }

    /// Why nothing is known of the issuer; None when something is.
    pub(super) fn unknown(&self) -> Option<String> {
        let known = self.known.load();
        if known.keys_url.is_some() || !*self.attempted.borrow() {
            return None;
        }
        let problem = known.problem.as_deref().unwrap_or("it was not asked yet");
        Some(format!("issuer {}: {problem}", self.issuer.url))
    }

    /// The payload of a token that the issuer signed.
    pub(super) async fn verify<'s>(&self, signed: &'s Signed<'_>) -> Result<&'s [u8], String> {
        let mut attempted = self.attempted.subscribe();
        // Nobody asks before the process serves; then the first attempt is soon made.
        let first = tokio::time::timeout(FIRST_ATTEMPT, attempted.wait_for(|made| *made)).await.is_ok();
        let tried = self.known.load_full();
        if let Some(payload) = tried.keys.verify(signed) {
            return Ok(payload);
        }
        if first && self.another_look(&tried).await {
            let known = self.known.load_full();
            if let Some(payload) = known.keys.verify(signed) {
                return Ok(payload);
            }
        }
        let known = self.known.load();
        if known.keys_url.is_none() {
            let problem = known.problem.as_deref().unwrap_or("it has not answered yet");
            return Err(format!("nothing is known of its issuer yet: {problem}"));
        }
        let named = match &signed.kid {
            Some(kid) => format!(" (it names the key `{}`)", kid.chars().take(100).collect::<String>()),
            None => String::new(),
        };
        Err(format!("no key of its issuer verifies the signature{named}"))
    }

    /// Asks the issuer once more for keys, if that is allowed; true when other keys are known than were tried.
    async fn another_look(&self, tried: &Arc<Known>) -> bool {
        let seen = self.attempts.load(Ordering::SeqCst);
        let waited = tokio::time::timeout(FIRST_ATTEMPT, self.fetching.lock()).await;
        let Ok(_one_at_a_time) = waited else { return false };
        let is_other = |known: &Arc<Known>| !Arc::ptr_eq(known, tried);
        if is_other(&self.known.load()) {
            return true;
        }
        // Asked while this one waited, in vain: tokens that no key verifies do not ask one after the other.
        if self.attempts.load(Ordering::SeqCst) != seen {
            return false;
        }
        if !self.allowance.lock().take(self.surroundings.clock.monotonic()) {
            return false;
        }
        self.fetch(tried.keys_url.is_none()).await.is_ok() && is_other(&self.known.load())
    }

    /// Asks the issuer for its keys, and for their place before when that is wanted or not known. Gives the pause until
    /// the next time.
    async fn fetch(&self, discover: bool) -> Result<Duration, String> {
        let before = self.known.load_full();
        let fetched = self.ask(before.keys_url.as_deref().filter(|_| !discover)).await;
        self.attempts.fetch_add(1, Ordering::SeqCst);
        match fetched {
            Ok((keys_url, keys, pause)) => {
                self.learned(&before, keys_url, keys);
                Ok(pause)
            }
            Err(problem) => {
                tracing::warn!(
                    issuer = self.issuer.url,
                    problem,
                    "the keys of a token issuer could not be read"
                );
                self.surroundings.fetched(&self.issuer.url, "failure");
                // What is known stays: that an issuer does not answer is no word of other keys.
                if before.keys_url.is_none() {
                    let problem = Some(problem.clone());
                    self.known.store(Arc::new(Known { keys_url: None, keys: KeySet::default(), problem }));
                    self.surroundings.changed();
                }
                Err(problem)
            }
        }
    }

    fn learned(&self, before: &Known, keys_url: String, keys: KeySet) {
        self.surroundings.fetched(&self.issuer.url, "success");
        let same_place = before.keys_url.as_deref() == Some(keys_url.as_str());
        let same_keys = before.keys.is_within(&keys) && keys.is_within(&before.keys);
        if same_place && same_keys {
            return;
        }
        for reason in &keys.passed_over {
            tracing::debug!(issuer = self.issuer.url, reason, "a key of a token issuer is passed over");
        }
        let gone = !before.keys.is_within(&keys);
        tracing::info!(
            issuer = self.issuer.url,
            keys = keys.len(),
            passed_over = keys.passed_over.len(),
            hash = keys.hash,
            "the keys of a token issuer are known"
        );
        self.known.store(Arc::new(Known { keys_url: Some(keys_url), keys, problem: None }));
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
        Ok((keys_url, keys, pause(&answer)))
    }
}

async fn get(client: &Client, url: &str) -> Result<Answer, String> {
    let answer = client.get(url, LIMITS).await.map_err(|error| format!("{url}: {error}"))?;
    if answer.status.as_u16() == 200 {
        Ok(answer)
    } else {
        Err(format!("{url}: it answers {}", answer.status))
    }
}

/// How long an answer may be kept.
fn pause(answer: &Answer) -> Duration {
    let said = answer.headers.get(CACHE_CONTROL).and_then(|value| value.to_str().ok());
    let seconds = said.and_then(|said| {
        said.split(',').find_map(|part| part.trim().strip_prefix("max-age=")?.trim().parse().ok())
    });
    seconds.map_or(REFRESH, |seconds| Duration::from_secs(seconds).clamp(SOONEST, LATEST))
}

/// Asks again and again, for as long as somebody holds the provider.
async fn keep(provider: Weak<Provider>) {
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
                Err(_) if provider.known.load().keys_url.is_some() => SOONEST,
                Err(_) => {
                    let pause = retry;
                    retry = (retry * 2).min(LONGEST_RETRY);
                    pause
                }
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// A client that believes the authorities of the text, or those of this machine when it is empty.
fn client(authorities: &str) -> Result<Client, String> {
    let trust = if authorities.is_empty() { Trust::System } else { Trust::Only(certificates(authorities)?) };
    let settings = Settings {
        trust,
        user_agent: concat!("authd/", env!("CARGO_PKG_VERSION")).to_owned(),
        ..Settings::default()
    };
    Client::new(&settings).map_err(|error| error.to_string())
}

/// Certificates that may vouch for others: a server's own certificate vouches for nobody, not even for itself
/// (requirement A-OIDC-13).
fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, String> {
    let all: Result<Vec<CertificateDer<'static>>, _> =
        CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let mut all = all.map_err(|error| format!("its certificate authority: {error}"))?;
    all.retain(|certificate| X509Certificate::from_der(certificate).is_ok_and(|(_, parsed)| parsed.is_ca()));
    if all.is_empty() {
        return Err(
            "its certificate authority: no certificate of it is one of an authority (CA:TRUE)".to_owned()
        );
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_cannot_make_us_ask_more_than_once_a_second() {
        let mut allowance = Allowance { left: BURST, since: Duration::ZERO };
        let mut taken = |millis: u64| {
            let now = Duration::from_millis(millis);
            (0..100).filter(|_| allowance.take(now)).count()
        };
        let at = [0, 999, 1000, 1999, 2500, 3000, 60_000, 60_999, 61_000];
        assert_eq!(at.map(&mut taken), [5, 0, 1, 0, 1, 1, 5, 0, 1]);
    }

    #[test]
    fn answers_are_kept_as_long_as_they_say_within_bounds() {
        for (header, want) in [
            (None, REFRESH),
            (Some("max-age=300"), Duration::from_secs(300)),
            (Some("public, max-age=120, must-revalidate"), Duration::from_secs(120)),
            (Some("max-age=1"), SOONEST),
            (Some("max-age=99999999"), LATEST),
            (Some("no-store"), REFRESH),
            (Some("max-age=x"), REFRESH),
        ] {
            let mut answer = Answer {
                status: http::StatusCode::OK,
                headers: http::HeaderMap::new(),
                body: Default::default(),
            };
            if let Some(header) = header {
                answer.headers.insert(CACHE_CONTROL, http::HeaderValue::from_static(header));
            }
            assert_eq!(pause(&answer), want, "{header:?}");
        }
    }
}
