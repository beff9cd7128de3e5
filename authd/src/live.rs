//! What is in force: the methods and modes that answer, replaced as a whole when a configuration changes.
//!
//! # Contract
//!
//! A question takes [`Live::now`] once for each attempt to answer it and uses nothing else, so that no answer is made of
//! half of two configurations; the answer carries the epoch it was made under. Every replacement raises the epoch's
//! generation by one. apid is told over the mirror and with each answer, drops what it kept of earlier generations and
//! asks again for its open watches; those end when the methods were replaced, so that their clients come again with their
//! credentials.
//!
//! What is wrong with a configuration file is a note under the file's subject: [`Live::notes`] is what
//! `/readyz?verbose` shows of a server that is ready all the same.
//!
//! # Invariants
//!
//! INVARIANT (generations rise): two replacements never share a generation, and the later has the greater.

use std::collections::BTreeMap;
use std::sync::Arc;

use arc_swap::ArcSwap;
use authproto::auth::Epoch;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{authn, authz};

/// The note on files whose change is not taken. Everybody may read the readiness: what is wrong with them stands in the
/// log alone.
pub const NOT_TAKEN: &str = "a change is not taken, what was good last stays in force; the log says why";

/// What answers, under one generation.
#[derive(Debug)]
pub struct InForce {
    /// Who.
    pub authn: Arc<authn::Union>,
    /// May they.
    pub authz: Arc<authz::Union>,
    /// This process, and how often its configuration changed.
    pub epoch: Epoch,
}

/// The present [`InForce`], and how it changes.
#[derive(Debug)]
pub struct Live {
    current: ArcSwap<InForce>,
    /// By subject. Also what makes replacements one after the other.
    notes: Mutex<BTreeMap<&'static str, String>>,
    /// What is said from the start on.
    warnings: Vec<String>,
    news: watch::Sender<()>,
}

impl Live {
    /// In force from now on, under generation 1. `instance` names the process; `warnings` stay notes for ever.
    pub fn new(
        instance: String,
        authn: authn::Union,
        authz: authz::Union,
        warnings: Vec<String>,
    ) -> Arc<Self> {
        let first = InForce {
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

    /// What is in force now.
    pub fn now(&self) -> Arc<InForce> {
        self.current.load_full()
    }

    /// Puts other methods in force.
    pub fn replace_authn(&self, authn: authn::Union) {
        let authn = Arc::new(authn);
        self.replace(true, |old| (Arc::clone(&authn), Arc::clone(&old.authz)));
    }

    /// Puts other modes in force.
    pub fn replace_authz(&self, authz: authz::Union) {
        let authz = Arc::new(authz);
        self.replace(false, |old| (Arc::clone(&old.authn), Arc::clone(&authz)));
    }

    /// Something that a method reads by itself has changed (a key, a list of revoked certificates): what was answered
    /// before is void.
    pub fn renew(&self) {
        self.replace(true, |old| (Arc::clone(&old.authn), Arc::clone(&old.authz)));
    }

    /// `identities`: a credential may stand for somebody else now, or for nobody.
    fn replace(&self, identities: bool, parts: impl Fn(&InForce) -> (Arc<authn::Union>, Arc<authz::Union>)) {
        let _one_at_a_time = self.notes.lock();
        let old = self.now();
        let (authn, authz) = parts(&old);
        let Epoch { instance, generation, identities: counted } = old.epoch.clone();
        let epoch =
            Epoch { instance, generation: generation + 1, identities: counted + u64::from(identities) };
        tracing::info!(generation = epoch.generation, ?authn, ?authz, "another configuration is in force");
        self.current.store(Arc::new(InForce { authn, authz, epoch }));
        self.news.send_replace(());
    }

    /// Notes what is wrong with a subject, or that nothing is.
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

    /// What a reader of the readiness should know: the warnings of the start, then what is wrong now.
    pub fn notes(&self) -> Vec<String> {
        let notes = self.notes.lock();
        let problems = notes.iter().map(|(subject, problem)| format!("{subject}: {problem}"));
        self.warnings.iter().cloned().chain(problems).collect()
    }

    /// Tells of news that is not kept here: a reload was counted.
    pub fn announce(&self) {
        self.news.send_replace(());
    }

    /// Tells of replacements and of notes.
    pub fn news(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live() -> Arc<Live> {
        Live::new(
            "one".into(),
            authn::Union::nothing(),
            authz::Union::nothing(),
            vec!["said at start".into()],
        )
    }

    #[test]
    fn each_replacement_is_a_generation_and_news() {
        let live = live();
        let mut news = live.news();
        let first = live.now();
        for (generation, identities, change) in [
            (2, 2, (|live| live.replace_authn(authn::Union::nothing())) as fn(&Live)),
            (3, 2, |live| live.replace_authz(authz::Union::nothing())),
            (4, 3, |live| live.renew()),
        ] {
            change(&live);
            assert!(news.has_changed().unwrap());
            news.mark_unchanged();
            assert_eq!(live.now().epoch, Epoch { instance: "one".into(), generation, identities });
        }
        assert_eq!(first.epoch.generation, 1, "what an answer took stays what it was");
        assert!(
            !Arc::ptr_eq(&first.authn, &live.now().authn) && !Arc::ptr_eq(&first.authz, &live.now().authz)
        );
    }

    #[test]
    fn replacements_at_once_have_generations_of_their_own() {
        let live = live();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100).for_each(|_| live.renew()));
            }
        });
        assert_eq!(live.now().epoch.generation, 401);
    }

    #[test]
    fn notes_come_and_go_by_subject() {
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
