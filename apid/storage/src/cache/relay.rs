//! Wakes the watchers of rings, away from the store's writer when they are many.
//!
//! Waking a task from outside its runtime costs about a microsecond, from inside a tenth of that. So the writer only
//! rings a bell, and a task of the runtime wakes the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

/// A ring's waiters, and about how many they are.
pub(super) type Waiters = (Arc<Notify>, usize);

/// Up to so many the writer wakes itself: a bell costs as much as one of them.
const FEW: usize = 4;

/// By address: a ring that is rung again before its turn is woken once.
type Pending = Arc<Mutex<BTreeMap<usize, Arc<Notify>>>>;

/// The task and what it has to do. It ends when this is dropped.
pub(super) struct Relay {
    pending: Pending,
    bell: mpsc::Sender<()>,
}

impl Relay {
    /// Starts the task on a runtime.
    pub(super) fn start(runtime: &Handle) -> Relay {
        let pending = Pending::default();
        let (bell, mut rung) = mpsc::channel(1);
        let rings = Arc::clone(&pending);
        runtime.spawn(async move {
            while rung.recv().await.is_some() {
                let due = std::mem::take(&mut *rings.lock());
                due.values().for_each(|notify| notify.notify_waiters());
            }
        });
        Relay { pending, bell }
    }

    /// Leaves the waking to the task. Whether it is there to do it.
    fn leave(&self, rings: &[Waiters]) -> bool {
        let mut pending = self.pending.lock();
        pending.extend(rings.iter().map(|(notify, _)| (Arc::as_ptr(notify).addr(), Arc::clone(notify))));
        drop(pending);
        // Full says that the bell was rung and not yet heard.
        !matches!(self.bell.try_send(()), Err(mpsc::error::TrySendError::Closed(())))
    }
}

/// Wakes the waiters of rings, here if they are few or there is no relay.
pub(super) fn wake(mut rings: Vec<Waiters>, relay: Option<&Relay>) {
    rings.sort_unstable_by_key(|(notify, _)| Arc::as_ptr(notify).addr());
    rings.dedup_by(|a, b| Arc::ptr_eq(&a.0, &b.0));
    let many = rings.iter().map(|(_, waiters)| waiters).sum::<usize>() > FEW;
    if many && relay.is_some_and(|relay| relay.leave(&rings)) {
        return;
    }
    for (notify, _) in rings {
        notify.notify_waiters();
    }
}
