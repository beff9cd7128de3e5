//! Which configuration of which authd process answers: a change of either drops everything that is kept of its answers.
//!
//! # Contract
//!
//! An *epoch* ends with every change. An *era* ends only when the change may have made somebody else of a credential:
//! when authd is another process, or what identifies callers changed. Open watches live on when policy alone changed,
//! authorized anew; with the era they end, for the credentials that opened them are not kept to be asked about again.

use std::sync::atomic::{AtomicU64, Ordering};

use authproto::auth::Epoch;
use parking_lot::Mutex;
use tokio::sync::watch;

/// The epochs seen, counted.
#[derive(Debug)]
pub(super) struct Epochs {
    current: Mutex<Option<Epoch>>,
    count: AtomicU64,
    eras: AtomicU64,
    changed: watch::Sender<u64>,
}

impl Epochs {
    /// None seen yet.
    pub(super) fn new() -> Self {
        Epochs {
            current: Mutex::new(None),
            count: AtomicU64::new(0),
            eras: AtomicU64::new(0),
            changed: watch::Sender::new(0),
        }
    }

    /// The number of the current epoch: what was kept under another number is void.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// The number of the current era.
    pub(super) fn era(&self) -> u64 {
        self.eras.load(Ordering::SeqCst)
    }

    /// Tells of changes.
    pub(super) fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// An epoch came with an answer or over the mirror. The number under which an answer of it may be kept; None when it
    /// is an older configuration of the same process: its answer serves the one request that asked.
    pub(super) fn observe(&self, epoch: Option<&Epoch>) -> Option<u64> {
        self.place(epoch).map(|(count, _)| count)
    }

    /// The same with the number of its era: both are of one moment.
    pub(super) fn place(&self, epoch: Option<&Epoch>) -> Option<(u64, u64)> {
        let epoch = epoch?;
        let mut current = self.current.lock();
        let same_era = match current.as_ref() {
            Some(known) if known == epoch => return Some((self.count(), self.era())),
            Some(known) if known.instance == epoch.instance && known.generation > epoch.generation => {
                return None;
            }
            Some(known) => known.instance == epoch.instance && known.identities == epoch.identities,
            None => false,
        };
        tracing::info!(instance = %epoch.instance, generation = epoch.generation, "authd's configuration changed");
        *current = Some(epoch.clone());
        // The era first: who sees the new count sees it, too.
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
    fn a_new_instance_or_generation_is_a_new_epoch_and_an_old_generation_is_none() {
        let epochs = Epochs::new();
        let of =
            |instance: &str, generation| Some(Epoch { instance: instance.into(), generation, identities: 1 });
        assert_eq!(epochs.observe(of("a", 1).as_ref()), Some(1));
        assert_eq!(epochs.observe(of("a", 1).as_ref()), Some(1));
        assert_eq!(epochs.observe(of("a", 2).as_ref()), Some(2));
        assert_eq!(epochs.observe(of("a", 1).as_ref()), None);
        assert_eq!(epochs.observe(of("b", 1).as_ref()), Some(3));
        assert_eq!(epochs.observe(None), None);
    }

    #[test]
    fn an_era_ends_with_the_process_or_with_what_identifies() {
        let epochs = Epochs::new();
        for (instance, generation, identities, era) in
            [("a", 1, 1, 1), ("a", 1, 1, 1), ("a", 2, 1, 1), ("a", 3, 2, 2), ("a", 2, 1, 2), ("b", 1, 1, 3)]
        {
            epochs.observe(Some(&Epoch { instance: instance.into(), generation, identities }));
            assert_eq!(epochs.era(), era, "{instance} {generation} {identities}");
        }
    }
}
