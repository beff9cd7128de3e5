//! Registry of all known issuers, which survives configuration reloads.
//!
//! # Contract
//!
//! A new configuration takes over the keys of each issuer with unchanged settings, so an unrelated edit loses
//! no keys. An issuer that no configuration names is dropped, and its keys are no longer fetched.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};

use apimachinery::clock::Clock;
use parking_lot::Mutex;

use super::metrics::JwtMetrics;
use super::provider::{Provider, ProviderEvents};
use super::validated::IssuerSettings;
use crate::tokens::sha256_hex;

/// Metrics and callbacks that the registry uses when keys of an issuer change.
pub struct IssuerHooks {
    /// The metrics of fetches and authentications.
    pub metrics: JwtMetrics,
    /// Invalidates cached identities, after an issuer removed a key.
    pub invalidate: Box<dyn Fn() + Send + Sync>,
    /// Sets the readiness note about issuers without keys; None removes the note.
    pub set_note: Box<dyn Fn(Option<String>) + Send + Sync>,
}

/// The state that all clones of [`Issuers`] share.
struct IssuerRegistry {
    clock: Arc<dyn Clock>,
    hooks: OnceLock<IssuerHooks>,
    /// The providers by issuer settings without audiences. A look-up removes the entries of dropped
    /// providers.
    providers: Mutex<HashMap<IssuerSettings, Weak<Provider>>>,
}

impl IssuerRegistry {
    fn providers(&self) -> Vec<Arc<Provider>> {
        self.providers.lock().values().filter_map(Weak::upgrade).collect()
    }
}

impl ProviderEvents for IssuerRegistry {
    fn key_removed(&self) {
        if let Some(hooks) = self.hooks.get() {
            (hooks.invalidate)();
        }
    }

    fn availability_changed(&self) {
        let Some(hooks) = self.hooks.get() else { return };
        let providers = self.providers();
        let without_keys = providers.iter().filter(|provider| provider.lacks_keys()).count();
        let note = || format!("{without_keys} of {} have no keys yet; see the log", providers.len());
        (hooks.set_note)((without_keys > 0).then(note));
    }

    fn fetch_ended(&self, issuer: &str, result: &str) {
        if let Some(hooks) = self.hooks.get() {
            hooks.metrics.record_fetch(&issuer_hash(issuer), result, &*self.clock);
        }
    }
}

/// A handle to the registry of known issuers.
#[derive(Clone)]
pub struct Issuers(Arc<IssuerRegistry>);

impl std::fmt::Debug for Issuers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Issuers").field("providers", &self.0.providers.lock().len()).finish()
    }
}

impl Issuers {
    /// Creates an empty registry; no fetch happens before [`Issuers::start`].
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Issuers(Arc::new(IssuerRegistry {
            clock,
            hooks: OnceLock::new(),
            providers: Mutex::new(HashMap::new()),
        }))
    }

    /// Starts fetching keys of the known and of all later issuers. Needs a tokio runtime.
    pub fn start(&self, hooks: IssuerHooks) {
        let _ = self.0.hooks.set(hooks);
        self.0.providers().iter().for_each(Provider::start);
    }

    /// Updates the readiness note about issuers without keys. The caller calls this after issuers were added
    /// or removed.
    pub fn report_missing_keys(&self) {
        self.0.availability_changed();
    }

    /// The clock of the process.
    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.0.clock
    }

    /// Records the duration of one authentication with a token; `result` is `success` or `failure`.
    pub(super) fn observe_authentication(&self, issuer_hash: &str, result: &str, seconds: f64) {
        if let Some(hooks) = self.0.hooks.get() {
            hooks.metrics.observe_authentication(issuer_hash, result, seconds);
        }
    }

    /// Returns the provider of an issuer. Issuers that differ only in audiences share one provider.
    pub(super) fn provider(&self, issuer: &IssuerSettings) -> Arc<Provider> {
        // The audiences do not affect the keys.
        let key =
            IssuerSettings { audiences: Vec::new(), audience_match_policy: String::new(), ..issuer.clone() };
        let mut providers = self.0.providers.lock();
        providers.retain(|_, provider| provider.strong_count() > 0);
        let existing = providers.get(&key).and_then(Weak::upgrade);
        let provider = existing.unwrap_or_else(|| {
            let events = Arc::clone(&self.0) as Arc<dyn ProviderEvents>;
            let provider = Provider::new(key.clone(), Arc::clone(&self.0.clock), events);
            providers.insert(key, Arc::downgrade(&provider));
            provider
        });
        drop(providers);
        if self.0.hooks.get().is_some() {
            provider.start();
        }
        provider
    }
}

/// The SHA-256 of an issuer URL for metrics, so that no URL is a label.
pub(super) fn issuer_hash(issuer: &str) -> String {
    format!("sha256:{}", sha256_hex(issuer.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn issuer_hash_equals_kubernetes() {
        // The expected value is from the metrics tests of Kubernetes, whose issuer is `testIssuer`.
        let expected = "sha256:29b34beedc55b972f2428f21bc588f9d38e5e8f7a7af825486e7bb4fd9caa2ad";
        assert_eq!(issuer_hash("testIssuer"), expected);
    }
}
