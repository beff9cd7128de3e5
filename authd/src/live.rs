//! The active configuration: authenticators and authorizers, replaced as a whole by a hot reload.
//!
//! # Contract
//!
//! A request calls [`Live::now`] once for each attempt and uses nothing else, so that a response never mixes
//! two configurations. The response carries the epoch of its configuration. Each replacement raises the
//! generation of the epoch by one. apid learns the epoch over the mirror and with each response. apid then
//! drops cached results of earlier generations and re-authorizes its open watches. If authenticators were
//! replaced, apid ends those watches, so that clients reconnect with their credentials.
//!
//! A problem of a configuration file is a note under the subject of the file. `/readyz?verbose` shows
//! [`Live::notes`] of a server that is otherwise ready.
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

/// The note for files whose change is rejected.
/// Readiness is public, so only the log contains the details.
pub const RELOAD_REJECTED: &str =
    "change rejected, the last-known-good configuration stays active; see the log";

/// The authenticators and authorizers of one generation.
#[derive(Debug)]
pub struct ActiveConfig {
    /// The authenticators.
    pub authn: Arc<authn::Union>,
    /// The authorizers.
    pub authz: Arc<authz::Union>,
    /// The process instance and the number of its configuration changes.
    pub epoch: Epoch,
}

/// The current [`ActiveConfig`] and its replacement.
#[derive(Debug)]
pub struct Live {
    current: ArcSwap<ActiveConfig>,
    /// By subject. The lock also serializes replacements.
    notes: Mutex<BTreeMap<&'static str, String>>,
    /// Warnings from the start of the process.
    warnings: Vec<String>,
    news: watch::Sender<()>,
}

impl Live {
    /// Activates the first configuration as generation 1.
    /// `instance` names the process; `warnings` stay notes for ever.
    pub fn new(
        instance: String,
        authn: authn::Union,
        authz: authz::Union,
        warnings: Vec<String>,
    ) -> Arc<Self> {
        let first = ActiveConfig {
            authn: Arc::new(authn),
            authz: Arc::new(authz),
            epoch: Epoch { instance, generation: 1, identities: 1 },
        };
        Arc::new(Live {
            current: ArcSwap::from_pointee(first),
            notes: Mutex::new(BTreeMap::new()),
            warnings,
            news: watch::Sender::new(()),
        })
    }

    /// Returns the active configuration.
    pub fn now(&self) -> Arc<ActiveConfig> {
        self.current.load_full()
    }

    /// Activates other authenticators.
    pub fn replace_authn(&self, authn: authn::Union) {
        let authn = Arc::new(authn);
        self.replace(true, |old| (Arc::clone(&authn), Arc::clone(&old.authz)));
    }

    /// Activates other authorizers.
    pub fn replace_authz(&self, authz: authz::Union) {
        let authz = Arc::new(authz);
        self.replace(false, |old| (Arc::clone(&old.authn), Arc::clone(&authz)));
    }

    /// Starts a new generation because data behind an authenticator changed (a key, a revocation list):
    /// cached results of earlier generations become invalid.
    pub fn renew(&self) {
        self.replace(true, |old| (Arc::clone(&old.authn), Arc::clone(&old.authz)));
    }

    /// `identities`: a credential may map to another user now, or to none.
    fn replace(
        &self,
        identities: bool,
        parts: impl Fn(&ActiveConfig) -> (Arc<authn::Union>, Arc<authz::Union>),
    ) {
        let _one_at_a_time = self.notes.lock();
        let old = self.now();
        let (authn, authz) = parts(&old);
        let Epoch { instance, generation, identities: counted } = old.epoch.clone();
        let epoch =
            Epoch { instance, generation: generation + 1, identities: counted + u64::from(identities) };
        tracing::info!(generation = epoch.generation, ?authn, ?authz, "configuration replaced");
        self.current.store(Arc::new(ActiveConfig { authn, authz, epoch }));
        self.news.send_replace(());
    }

    /// Sets the note of a subject; None removes it.
    pub fn note(&self, subject: &'static str, problem: Option<String>) {
        let mut notes = self.notes.lock();
        let changed = match problem {
            Some(problem) => notes.insert(subject, problem.clone()) != Some(problem),
            None => notes.remove(subject).is_some(),
        };
        drop(notes);
        if changed {
            self.news.send_replace(());
        }
    }

    /// Returns the notes for readiness output: start warnings first, then current problems.
    pub fn notes(&self) -> Vec<String> {
        let notes = self.notes.lock();
        let problems = notes.iter().map(|(subject, problem)| format!("{subject}: {problem}"));
        self.warnings.iter().cloned().chain(problems).collect()
    }

    /// Notifies subscribers of a change that is not stored here: a reload was counted.
    pub fn announce(&self) {
        self.news.send_replace(());
    }

    /// Subscribes to replacements and to changes of notes.
    pub fn news(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live() -> Arc<Live> {
        Live::new("one".into(), authn::Union::empty(), authz::Union::empty(), vec!["said at start".into()])
    }

    #[test]
    fn config_replacement_increments_generation_and_notifies() {
        let live = live();
        let mut news = live.news();
        let first = live.now();
        for (generation, identities, change) in [
            (2, 2, (|live| live.replace_authn(authn::Union::empty())) as fn(&Live)),
            (3, 2, |live| live.replace_authz(authz::Union::empty())),
            (4, 3, |live| live.renew()),
        ] {
            change(&live);
            assert!(news.has_changed().unwrap());
            news.mark_unchanged();
            assert_eq!(live.now().epoch, Epoch { instance: "one".into(), generation, identities });
        }
        assert_eq!(first.epoch.generation, 1, "a configuration already in use does not change");
        assert!(
            !Arc::ptr_eq(&first.authn, &live.now().authn) && !Arc::ptr_eq(&first.authz, &live.now().authz)
        );
    }

    #[test]
    fn concurrent_replacements_have_distinct_generations() {
        let live = live();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| live.renew()));
            }
        });
        assert_eq!(live.now().epoch.generation, 401);
    }

    #[test]
    fn notes_are_set_and_removed_by_subject() {
        let live = live();
        let mut news = live.news();
        for (problem, changed, notes) in [
            (Some("line 3: no"), true, vec!["said at start", "file: line 3: no"]),
            (Some("line 3: no"), false, vec!["said at start", "file: line 3: no"]),
            (Some("line 4: no"), true, vec!["said at start", "file: line 4: no"]),
            (None, true, vec!["said at start"]),
            (None, false, vec!["said at start"]),
        ] {
            live.note("file", problem.map(str::to_owned));
            assert_eq!(
                (news.has_changed().unwrap(), live.notes()),
                (changed, notes.iter().map(|n| (*n).to_owned()).collect())
            );
            news.mark_unchanged();
        }
    }
}
