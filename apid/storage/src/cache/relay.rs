//! Wakes the watchers of rings: directly if they are few, otherwise on a separate task.
//!
//! Waking a task costs about a microsecond from outside its runtime, and a tenth of that from inside. So for
//! many watchers the writer thread only signals the relay task of the runtime, and that task wakes them.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc};

/// The notifier of a ring and the approximate number of its waiters.
pub(super) type Waiters = (Arc<Notify>, usize);

/// Maximum number of waiters that the writer thread wakes directly: one signal to the relay costs as much as
/// one wake-up.
const DIRECT_WAKE_LIMIT: usize = 4;

/// Pending notifiers by address: a ring signalled twice before the task runs is woken once.
type Pending = Arc<Mutex<BTreeMap<usize, Arc<Notify>>>>;

/// The relay task and its pending work; the task ends when this value is dropped.
pub(super) struct Relay {
    pending: Pending,
    signal: mpsc::Sender<()>,
}

impl Relay {
    /// Starts the task on a runtime.
    pub(super) fn start(runtime: &Handle) -> Relay {
        let pending = Pending::default();
        let (signal, mut signals) = mpsc::channel(1);
        let task_pending = Arc::clone(&pending);
        runtime.spawn(async move {
            while signals.recv().await.is_some() {
                let notifiers = std::mem::take(&mut *task_pending.lock());
                notifiers.values().for_each(|notify| notify.notify_waiters());
            }
        });
        Relay { pending, signal }
    }

    /// Hands the wake-ups to the task. Returns whether the task is running.
    fn hand_over(&self, rings: &[Waiters]) -> bool {
        let mut pending = self.pending.lock();
        pending.extend(rings.iter().map(|(notify, _)| (Arc::as_ptr(notify).addr(), Arc::clone(notify))));
        drop(pending);
        // A full channel means that a signal is already pending.
        !matches!(self.signal.try_send(()), Err(mpsc::error::TrySendError::Closed(())))
    }
}

/// Wakes the waiters of rings: directly if they are few or no relay task runs.
pub(super) fn wake(mut rings: Vec<Waiters>, relay: Option<&Relay>) {
    rings.sort_unstable_by_key(|(notify, _)| Arc::as_ptr(notify).addr());
    rings.dedup_by(|a, b| Arc::ptr_eq(&a.0, &b.0));
    let has_many_waiters = rings.iter().map(|(_, waiters)| waiters).sum::<usize>() > DIRECT_WAKE_LIMIT;
    if has_many_waiters && relay.is_some_and(|relay| relay.hand_over(&rings)) {
        return;
    }
    for (notify, _) in rings {
        notify.notify_waiters();
    }
}
