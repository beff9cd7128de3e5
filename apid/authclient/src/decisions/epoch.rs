//! The epochs and eras of authd: which process with which configuration gave a response.
//!
//! # Contract
//!
//! Each new authd process or configuration starts an *epoch*, which invalidates all cached responses. An
//! *era* ends only when a credential may now belong to another user: with a new authd process, or with a
//! change of the authentication configuration. When a new epoch does not end the era, open watches continue
//! after re-authorization. When the era ends, open watches end: apid keeps the credentials of a watch only
//! for an identity from a webhook, so it cannot re-authenticate every watch.
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

/// The current epoch of authd, and the numbers of epoch and era. A number is 0 before the first epoch.
///
/// The default has no epoch: authd has not responded yet.
#[derive(Debug, Default)]
pub(crate) struct Epochs {
    current: Mutex<CurrentEpoch>,
    count: AtomicU64,
    eras: AtomicU64,
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

    /// The number of the current epoch. Cached responses with another number are invalid.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// The number of the current era.
    pub(crate) fn era(&self) -> u64 {
        self.eras.load(Ordering::SeqCst)
    }

    /// Returns a receiver of the number of the current epoch, for tasks that wait for a change.
    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Records the epoch of a response or of the mirror stream.
    ///
    /// Returns the number of the epoch under which the response may be cached. None means that the response
    /// is from an older configuration or from another process, or has no epoch: it serves only its own request.
    pub(crate) fn observe(&self, epoch: Option<&Epoch>) -> Option<u64> {
        self.observe_with_era(epoch).map(|(count, _)| count)
    }

    /// As [`Epochs::observe`], but returns the numbers of the epoch and of the era, read at the same moment.
    pub(crate) fn observe_with_era(&self, epoch: Option<&Epoch>) -> Option<(u64, u64)> {
        let epoch = epoch?;
        let mut current = self.current.lock();
        if current.expected.as_ref().is_some_and(|expected| **expected != epoch.instance) {
            return None;
        }
        let same_era = match current.epoch.as_ref() {
            Some(known) if known == epoch => return Some((self.count(), self.era())),
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
        // The era advances first: a thread that reads the new count also reads the new era.
        let era = self.eras.fetch_add(u64::from(!same_era), Ordering::SeqCst) + u64::from(!same_era);
        let count = self.count.fetch_add(1, Ordering::SeqCst) + 1;
        self.changed.send_replace(count);
        Some((count, era))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_instance_or_generation_starts_epoch_and_old_generation_is_ignored() {
        let epochs = Epochs::default();
        let epoch =
            |instance: &str, generation| Some(Epoch { instance: instance.into(), generation, identities: 1 });
        assert_eq!(epochs.observe(epoch("a", 1).as_ref()), Some(1));
        assert_eq!(epochs.observe(epoch("a", 1).as_ref()), Some(1));
        assert_eq!(epochs.observe(epoch("a", 2).as_ref()), Some(2));
        assert_eq!(epochs.observe(epoch("a", 1).as_ref()), None);
        assert_eq!(epochs.observe(epoch("b", 1).as_ref()), Some(3));
        assert_eq!(epochs.observe(None), None);
    }

    #[test]
    fn late_epoch_of_older_process_is_ignored() {
        let epochs = Epochs::default();
        let epoch = |instance: &str| Some(Epoch { instance: instance.into(), generation: 1, identities: 1 });
        epochs.expect(&"old".into());
        assert_eq!(epochs.observe(epoch("old").as_ref()), Some(1));
        epochs.expect(&"new".into());
        assert_eq!(epochs.observe(epoch("new").as_ref()), Some(2));
        assert_eq!((epochs.observe(epoch("old").as_ref()), epochs.count()), (None, 2));
        assert_eq!(epochs.observe(epoch("new").as_ref()), Some(2), "the epoch of the new process stays");
    }

    #[test]
    fn era_ends_with_new_process_or_authentication_configuration() {
        let epochs = Epochs::default();
        for (instance, generation, identities, era) in
            [("a", 1, 1, 1), ("a", 1, 1, 1), ("a", 2, 1, 1), ("a", 3, 2, 2), ("a", 2, 1, 2), ("b", 1, 1, 3)]
        {
            epochs.observe(Some(&Epoch { instance: instance.into(), generation, identities }));
            assert_eq!(epochs.era(), era, "{instance} {generation} {identities}");
        }
    }
}
