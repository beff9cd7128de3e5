//! Registry of all known issuers, which survives configuration reloads.
//!
//! # Contract
//!
//! A new configuration shares the keys of issuers that the old one also names, so an unrelated edit loses no
//! keys. An issuer that no configuration names is dropped, and its keys are no longer fetched.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use apimachinery::clock::Clock;
use aws_lc_rs::digest;
use parking_lot::Mutex;
use serving::metrics::{FloatGauges, Histograms};

use super::provider::Provider;
use super::validated::Issuer;

/// Labels of [`JwtMeters::latency`]: result and issuer's hash.
pub type LatencyLabels = [(&'static str, String); 2];
/// Labels of [`JwtMeters::fetched`]: result, issuer's hash and server id.
pub type FetchLabels = [(&'static str, String); 3];

/// Metrics of the JWT authenticators.
#[derive(Clone, Debug)]
pub struct JwtMeters {
    /// Seconds to authenticate a token of a configured issuer.
    pub latency: Histograms<LatencyLabels>,
    /// Unix time in seconds of the last JWKS fetch.
    pub fetched: FloatGauges<FetchLabels>,
}

/// Callbacks of the process for changes of issuers.
pub struct Hooks {
    /// Metrics.
    pub meters: JwtMeters,
    /// Invalidates cached results.
    pub renew: Box<dyn Fn() + Send + Sync>,
    /// Notes which issuers have no keys yet; None: all have.
    pub note: Box<dyn Fn(Option<String>) + Send + Sync>,
}

/// State that all issuers share.
pub(super) struct SharedIssuerState {
    pub(super) clock: Arc<dyn Clock>,
    hooks: OnceLock<Hooks>,
    known: Mutex<HashMap<Issuer, Weak<Provider>>>,
}

impl SharedIssuerState {
    /// Handles the removal of a key.
    pub(super) fn renew(&self) {
        if let Some(hooks) = self.hooks.get() {
            (hooks.renew)();
        }
    }

    /// Handles a change in what is known of an issuer.
    pub(super) fn changed(&self) {
        let Some(hooks) = self.hooks.get() else { return };
        let providers: Vec<Arc<Provider>> = self.known.lock().values().filter_map(Weak::upgrade).collect();
        let unknown = providers.iter().filter(|provider| provider.unknown_reason().is_some()).count();
        let told = || format!("{unknown} of {} have no keys yet; see the log", providers.len());
        (hooks.note)((unknown > 0).then(told));
    }

    /// Counts a JWKS fetch.
    pub(super) fn fetched(&self, issuer: &str, result: &str) {
        let Some(Hooks { meters, .. }) = self.hooks.get() else { return };
        let labels = [
            ("result", result.to_owned()),
            ("jwt_issuer_hash", hash(issuer)),
            ("apiserver_id_hash", String::new()),
        ];
        meters.fetched.get_or_create(&labels).set(self.clock.now().as_microsecond() as f64 / 1e6);
    }

    /// Counts the authentication of a token.
    pub(super) fn answered(&self, issuer_hash: &str, result: &str, seconds: f64) {
        let Some(Hooks { meters, .. }) = self.hooks.get() else { return };
        let labels = [("result", result.to_owned()), ("jwt_issuer_hash", issuer_hash.to_owned())];
        meters.latency.get_or_create(&labels).observe(seconds);
    }
}

/// All issuers.
#[derive(Clone)]
pub struct Issuers(pub(super) Arc<SharedIssuerState>);

impl std::fmt::Debug for Issuers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issuers").field("known", &self.0.known.lock().len()).finish()
    }
}

impl Issuers {
    /// Creates an empty registry; no fetch happens before [`Issuers::start`].
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Issuers(Arc::new(SharedIssuerState {
            clock,
            hooks: OnceLock::new(),
            known: Mutex::new(HashMap::new()),
        }))
    }

    /// Starts fetching for the known issuers, and from now on for each new one. Needs a runtime.
    pub fn start(&self, hooks: Hooks) {
        let _ = self.0.hooks.set(hooks);
        let known: Vec<Arc<Provider>> = self.0.known.lock().values().filter_map(Weak::upgrade).collect();
        known.iter().for_each(Provider::start);
    }

    /// Reports the issuers without keys again after a change of the set of issuers.
    pub fn report_unknown(&self) {
        self.0.changed();
    }

    /// Returns the provider of an issuer; equal issuers share it while a reference exists.
    pub(super) fn provider(&self, issuer: &Issuer) -> Arc<Provider> {
        // The audiences do not affect the keys.
        let key = Issuer { audiences: Vec::new(), audience_match_policy: String::new(), ..issuer.clone() };
        let mut known = self.0.known.lock();
        known.retain(|_, provider| provider.strong_count() > 0);
        let held = known.get(&key).and_then(Weak::upgrade);
        let provider = held.unwrap_or_else(|| {
            let provider = Provider::new(key.clone(), Arc::clone(&self.0));
            known.insert(key, Arc::downgrade(&provider));
            provider
        });
        drop(known);
        if self.0.hooks.get().is_some() {
            provider.start();
        }
        provider
    }
}

/// The issuer's hash for metrics, so that no URL is a label.
pub(super) fn hash(issuer: &str) -> String {
    let digest = digest::digest(&digest::SHA256, issuer.as_bytes());
    let digits: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digits}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issuer_hash_equals_kubernetes() {
        // From the metrics tests of Kubernetes: the issuer there is `testIssuer`.
        let want = "sha256:29b34beedc55b972f2428f21bc588f9d38e5e8f7a7af825486e7bb4fd9caa2ad";
        assert_eq!(hash("testIssuer"), want);
    }
}
