//! The epochs of authd: which process with which configuration sent a response.
//!
//! # Contract
//!
//! Each new authd process or configuration starts an *epoch*, which invalidates all cached responses. After an
//! epoch with new authorization only, open watches continue with a re-authorization. A new authd process, or a
//! changed authentication configuration, also ends open watches, because a credential may now belong to
//! another user. apid keeps the credentials of a watch only for an identity from a webhook, so it cannot
//! re-authenticate every watch.
//!
//! # Invariants
//!
//! INVARIANT (one process): after [`Epochs::expect`], only the expected process starts epochs. A late response
//! of another process serves only its own request.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use authproto::auth::Epoch;
use parking_lot::Mutex;
use tokio::sync::watch;

/// The number of an epoch of authd, counted by apid over all authd processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EpochNumber {
    /// The number of epochs so far. A cached response of another generation is invalid.
    pub(crate) generation: u64,
    /// The number of epochs so far that may have changed the identity of a credential. Open watches end when it
    /// changes.
    pub(crate) identities: u64,
}

/// The current epoch of authd and its number, which is 0 before the first epoch.
///
/// The default has no epoch: authd has not responded yet.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    current: Mutex<CurrentEpoch>,
    generation: AtomicU64,
    identities: AtomicU64,
    changed: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct CurrentEpoch {
    /// The instance of the process at the other end of the decision stream; None before the first stream.
    expected: Option<Arc<str>>,
    epoch: Option<Epoch>,
}

impl Epochs {
    /// Ignores the epochs of all processes except `instance` from now on.
    pub(crate) fn expect(&self, instance: &Arc<str>) {
        self.current.lock().expected = Some(Arc::clone(instance));
    }

    /// The number of the current epoch.
    pub(crate) fn number(&self) -> EpochNumber {
        EpochNumber {
            generation: self.generation.load(Ordering::SeqCst),
            identities: self.identities.load(Ordering::SeqCst),
        }
    }

    /// Returns a receiver that is notified of each new epoch.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Starts an epoch of the same process and configuration: its mirror has objects that were missing before.
    pub(crate) fn restart(&self) {
        let _current = self.current.lock();
        let generation = self.generation.fetch_add(1, Ordering::SeqCst) + 1;
        self.changed.send_replace(generation);
    }

    /// Records the epoch of a response or of the mirror stream.
    ///
    /// Returns the number of the epoch under which the response may be cached. None means that the response
    /// is from an older configuration or from another process, or has no epoch: it serves only its own request.
    pub(crate) fn observe(&self, epoch: Option<&Epoch>) -> Option<EpochNumber> {
        let epoch = epoch?;
        let mut current = self.current.lock();
        if current.expected.as_ref().is_some_and(|expected| **expected != epoch.instance) {
            return None;
        }
        let keeps_identities = match current.epoch.as_ref() {
            Some(known) if known == epoch => return Some(self.number()),
            Some(known) if known.instance == epoch.instance && known.generation > epoch.generation => {
                return None;
            }
            Some(known) => known.instance == epoch.instance && known.identities == epoch.identities,
            None => false,
        };
        tracing::info!(
            instance = %epoch.instance,
            generation = epoch.generation,
            "authd configuration changed; cached responses are invalid"
        );
        current.epoch = Some(epoch.clone());
        // `identities` advances first: a thread that reads the new generation also reads the new `identities`.
        self.identities.fetch_add(u64::from(!keeps_identities), Ordering::SeqCst);
        let generation = self.generation.fetch_add(1, Ordering::SeqCst) + 1;
        self.changed.send_replace(generation);
        Some(self.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_instance_or_generation_starts_epoch_and_old_generation_is_ignored() {
        let epochs = Epochs::default();
        let generation =
            |epoch: Option<Epoch>| epochs.observe(epoch.as_ref()).map(|number| number.generation);
        let epoch =
            |instance: &str, generation| Some(Epoch { instance: instance.into(), generation, identities: 1 });
        assert_eq!(generation(epoch("a", 1)), Some(1));
        assert_eq!(generation(epoch("a", 1)), Some(1));
        assert_eq!(generation(epoch("a", 2)), Some(2));
        assert_eq!(generation(epoch("a", 1)), None);
        assert_eq!(generation(epoch("b", 1)), Some(3));
        assert_eq!(generation(None), None);
    }

    #[test]
    fn late_epoch_of_older_process_is_ignored() {
        let epochs = Epochs::default();
        let generation =
            |epoch: Option<Epoch>| epochs.observe(epoch.as_ref()).map(|number| number.generation);
        let epoch = |instance: &str| Some(Epoch { instance: instance.into(), generation: 1, identities: 1 });
        epochs.expect(&"old".into());
        assert_eq!(generation(epoch("old")), Some(1));
        epochs.expect(&"new".into());
        assert_eq!(generation(epoch("new")), Some(2));
        assert_eq!((generation(epoch("old")), epochs.number().generation), (None, 2));
        assert_eq!(generation(epoch("new")), Some(2), "the epoch of the new process stays");
    }

    #[test]
    fn identities_change_with_new_process_or_authentication_configuration() {
        let epochs = Epochs::default();
        for (instance, generation, identities, expected) in
            [("a", 1, 1, 1), ("a", 1, 1, 1), ("a", 2, 1, 1), ("a", 3, 2, 2), ("a", 2, 1, 2), ("b", 1, 1, 3)]
        {
            epochs.observe(Some(&Epoch { instance: instance.into(), generation, identities }));
            assert_eq!(epochs.number().identities, expected, "{instance} {generation} {identities}");
        }
    }
}
