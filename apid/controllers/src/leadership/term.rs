//! Terms of the leadership: whether this apid leads, and the loops and writes of a term.

use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::Clock;
use parking_lot::Mutex;
use serving::metrics::{Definition, Gauges, Metrics, Stability};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::orderly_end::OrderlyEnd;

const STATUS: Definition = Definition::new(
    "leader_election_master_status",
    Stability::Alpha,
    "Whether this process leads: 1 for the leader, otherwise 0; the label is the name of the Lease",
);

/// Whether this apid leads, and the writes of its loops.
pub struct Leadership {
    pub(super) terms: watch::Sender<Term>,
    /// Present if other apids may use the store.
    pub(super) shared: Option<Shared>,
}

/// A term of this apid, or the time after that term.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Term {
    /// The number of the term; numbers count up from 1. 0 before the first term.
    pub(crate) number: u64,
    /// Whether the term has not ended.
    pub(crate) leads: bool,
}

/// The state of an apid that takes part in the election.
pub(super) struct Shared {
    clock: Arc<dyn Clock>,
    /// The end of the present or last term, by the monotonic clock.
    pub(super) term_end: Mutex<Duration>,
    /// The number of writes of loops in progress.
    pub(super) writes: watch::Sender<usize>,
    /// The end of the election, which releases the Lease.
    pub(super) election: OrderlyEnd,
}

/// The tasks of the loops of a term. The tasks end when the value is dropped.
#[derive(Default)]
pub(crate) struct Loops(JoinSet<()>);

impl Loops {
    /// Starts a task.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(task);
    }

    /// Lets the tasks run until the process ends.
    pub(crate) fn detach(mut self) {
        self.0.detach_all();
    }

    /// Ends the tasks.
    pub(super) async fn end(mut self) {
        self.0.shutdown().await;
    }
}

/// A write of a loop in progress.
pub(crate) struct LoopWrite<'a>(&'a Shared);

impl Drop for LoopWrite<'_> {
    fn drop(&mut self) {
        self.0.writes.send_modify(|writes| *writes -= 1);
    }
}

/// The failure of a write after the end of the term.
#[derive(Debug)]
pub(crate) struct NotLeading;

impl Leadership {
    /// The leadership of an apid whose store no other apid uses: it always leads.
    pub fn of_single_server() -> Self {
        Leadership { terms: watch::Sender::new(Term { number: 1, leads: true }), shared: None }
    }

    /// The leadership of an apid whose store other apids may use. The apid leads after its election.
    pub fn of_one_of_several_servers(clock: Arc<dyn Clock>) -> Self {
        let shared = Shared {
            clock,
            term_end: Mutex::new(Duration::ZERO),
            writes: watch::Sender::new(0),
            election: OrderlyEnd::default(),
        };
        Leadership { terms: watch::Sender::default(), shared: Some(shared) }
    }

    /// Whether other apids may use the store.
    pub(crate) fn is_elected(&self) -> bool {
        self.shared.is_some()
    }

    /// Whether this apid leads now.
    pub(crate) fn leads(&self) -> bool {
        self.term().is_some()
    }

    /// Returns the number of the present term; None if this apid does not lead now.
    pub(crate) fn term(&self) -> Option<u64> {
        let is_in_term = |shared: &Shared| shared.clock.monotonic() < *shared.term_end.lock();
        let Term { number, leads } = *self.terms.borrow();
        (leads && self.shared.as_ref().is_none_or(is_in_term)).then_some(number)
    }

    /// Returns a receiver of the begins and ends of terms. A receiver may miss values in between, but the numbers of two
    /// terms differ.
    pub(crate) fn terms(&self) -> watch::Receiver<Term> {
        self.terms.subscribe()
    }

    /// Begins a write of a loop; None in an apid with an embedded store.
    ///
    /// # Errors
    ///
    /// This apid does not lead.
    pub(crate) fn begin_write(&self) -> Result<Option<LoopWrite<'_>>, NotLeading> {
        let Some(shared) = &self.shared else { return Ok(None) };
        // The write is counted before the check. Therefore `end_term` waits for each write that passes the check.
        shared.writes.send_modify(|writes| *writes += 1);
        let write = LoopWrite(shared);
        if self.leads() { Ok(Some(write)) } else { Err(NotLeading) }
    }

    /// Gives up the Lease: ends the loops and releases the Lease, so that another apid takes over at once. Returns when
    /// the Lease is released, at the latest after `limit`.
    pub async fn resign(&self, limit: Duration) {
        let Some(shared) = &self.shared else { return };
        if !shared.election.request(limit).await {
            tracing::warn!(
                "the Lease was not released in time; another apid takes over when the Lease expires"
            );
        }
    }
}

/// The series of the metric of the leadership, by the name of the Lease.
pub(crate) type LeaderStatus = Gauges<[(&'static str, &'static str); 1]>;

/// Registers the metric of the leadership.
pub(crate) fn status_metric(metrics: &Metrics) -> LeaderStatus {
    metrics.gauge(&STATUS)
}
