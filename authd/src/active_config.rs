//! The active configuration: authenticators and authorizers, replaced as a whole by a hot reload.
//!
//! # Contract
//!
//! Each attempt to answer a request calls [`SharedConfig::current`] once and uses only that value, so a
//! response never mixes two configurations. A request that waits for the mirror has several attempts. The
//! response carries the epoch of its configuration. Each replacement raises the generation of the epoch by
//! one. apid learns the epoch over the mirror and with each response. apid then drops cached results of
//! earlier generations and re-authorizes its open watches.
//! If a credential can now map to a different user (`Epoch::identities` rises), apid ends those watches
//! instead, so that clients reconnect with their credentials.
//!
//! A note is a problem that does not make the server unready, such as a rejected change of a file. Each
//! subject, such as a configuration file, has at most one note. `/readyz?verbose` of apid shows
//! [`SharedConfig::notes`] of a ready authd.
//!
//! # Invariants
//!
//! INVARIANT (generations rise): two replacements never share a generation, and the later one has the
//! greater.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use authproto::auth::Epoch;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{authn, authz};

/// The authenticators and authorizers of one generation.
#[derive(Debug)]
pub struct ActiveConfig {
    /// The active authenticators, in order.
    pub authn: Arc<authn::AuthenticatorUnion>,
    /// The active authorizers, in order.
    pub authz: Arc<authz::Union>,
    /// The instance of this process, and the generation of this configuration.
    pub epoch: Epoch,
}

/// The current [`ActiveConfig`], shared by all requests, with its notes; a hot reload replaces the value.
#[derive(Debug)]
pub struct SharedConfig {
    current: ArcSwap<ActiveConfig>,
    /// Current problems by subject, such as a configuration file. The lock also serializes replacements.
    notes: Mutex<BTreeMap<&'static str, String>>,
    /// Warnings of the configuration at start, which stay notes until the process ends.
    warnings: Vec<String>,
    changes: watch::Sender<()>,
}

impl SharedConfig {
    /// Activates the first configuration as generation 1.
    /// `instance` names the process; `warnings` stay notes until the process ends.
    pub fn new(
        instance: String,
        authn: authn::AuthenticatorUnion,
        authz: authz::Union,
        warnings: Vec<String>,
    ) -> Arc<Self> {
        let first = ActiveConfig {
            authn: Arc::new(authn),
            authz: Arc::new(authz),
            epoch: Epoch { instance, generation: 1, identities: 1 },
        };
        Arc::new(SharedConfig {
            current: ArcSwap::from_pointee(first),
            notes: Mutex::new(BTreeMap::new()),
            warnings,
            changes: watch::Sender::new(()),
        })
    }

    /// Returns the active configuration; a later replacement does not change the returned value.
    pub fn current(&self) -> Arc<ActiveConfig> {
        self.current.load_full()
    }

    /// Activates new authenticators as a new generation, in which identities may differ.
    pub fn replace_authn(&self, authn: authn::AuthenticatorUnion) {
        self.replace(true, Some(authn), None);
    }

    /// Activates new authorizers as a new generation; identities stay valid.
    pub fn replace_authz(&self, authz: authz::Union) {
        self.replace(false, None, Some(authz));
    }

    /// Starts a new generation after a key, CA or revocation list of an authenticator changed.
    /// Results that apid cached under earlier generations become invalid.
    pub fn invalidate_identities(&self) {
        self.replace(true, None, None);
    }

    /// Starts a generation with new authenticators or authorizers; those that are None stay.
    /// `identities_changed`: whether a credential can now map to a different user or to none.
    fn replace(
        &self,
        identities_changed: bool,
        authn: Option<authn::AuthenticatorUnion>,
        authz: Option<authz::Union>,
    ) {
        let _replacement_lock = self.notes.lock();
        let previous = self.current();
        let authn = authn.map_or_else(|| Arc::clone(&previous.authn), Arc::new);
        let authz = authz.map_or_else(|| Arc::clone(&previous.authz), Arc::new);
        let mut epoch = previous.epoch.clone();
        epoch.generation += 1;
        epoch.identities += u64::from(identities_changed);
        tracing::info!(generation = epoch.generation, ?authn, ?authz, "configuration replaced");
        self.current.store(Arc::new(ActiveConfig { authn, authz, epoch }));
        self.changes.send_replace(());
    }

    /// Sets the note of a subject; None removes the note.
    pub fn set_note(&self, subject: &'static str, problem: Option<String>) {
        let mut notes = self.notes.lock();
        let is_changed = match problem {
            Some(problem) => notes.insert(subject, problem.clone()) != Some(problem),
            None => notes.remove(subject).is_some(),
        };
        drop(notes);
        if is_changed {
            self.changes.send_replace(());
        }
    }

    /// Returns the notes for readiness output: start warnings first, then current problems.
    pub fn notes(&self) -> Vec<String> {
        let notes = self.notes.lock();
        let problems = notes.iter().map(|(subject, problem)| format!("{subject}: {problem}"));
        self.warnings.iter().cloned().chain(problems).collect()
    }

    /// Notifies subscribers of a change that this type does not store, such as a new value of a reload
    /// metric.
    pub fn notify(&self) {
        self.changes.send_replace(());
    }

    /// Subscribes to replacements, to changes of notes, and to calls of [`SharedConfig::notify`].
    pub fn subscribe(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared_config() -> Arc<SharedConfig> {
        let warnings = vec!["warning at start".into()];
        SharedConfig::new("one".into(), authn::AuthenticatorUnion::empty(), authz::Union::empty(), warnings)
    }

    #[test]
    fn config_replacement_increments_generation_and_notifies() {
        let config = shared_config();
        let mut changes = config.subscribe();
        let first = config.current();
        for (generation, identities, change) in [
            (2, 2, (|config| config.replace_authn(authn::AuthenticatorUnion::empty())) as fn(&SharedConfig)),
            (3, 2, |config| config.replace_authz(authz::Union::empty())),
            (4, 3, |config| config.invalidate_identities()),
        ] {
            change(&config);
            assert!(changes.has_changed().unwrap());
            changes.mark_unchanged();
            let expected = Epoch { instance: "one".into(), generation, identities };
            assert_eq!(config.current().epoch, expected);
        }
        assert_eq!(first.epoch.generation, 1, "a configuration already in use does not change");
        let current = config.current();
        assert!(!Arc::ptr_eq(&first.authn, &current.authn) && !Arc::ptr_eq(&first.authz, &current.authz));
    }

    #[test]
    fn concurrent_replacements_have_distinct_generations() {
        let config = shared_config();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| config.invalidate_identities()));
            }
        });
        assert_eq!(config.current().epoch.generation, 401);
    }

    #[test]
    fn notes_are_set_and_removed_by_subject() {
        let config = shared_config();
        let mut changes = config.subscribe();
        for (problem, is_changed, notes) in [
            (Some("line 3: no"), true, vec!["warning at start", "file: line 3: no"]),
            (Some("line 3: no"), false, vec!["warning at start", "file: line 3: no"]),
            (Some("line 4: no"), true, vec!["warning at start", "file: line 4: no"]),
            (None, true, vec!["warning at start"]),
            (None, false, vec!["warning at start"]),
        ] {
            config.set_note("file", problem.map(str::to_owned));
            assert_eq!(
                (changes.has_changed().unwrap(), config.notes()),
                (is_changed, notes.iter().map(|note| (*note).to_owned()).collect())
            );
            changes.mark_unchanged();
        }
    }
}
