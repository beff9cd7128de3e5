//! Takes part in the election of the leader, and shows the result in the metrics.

use std::sync::Arc;

use serving::metrics::Gauge;
use tokio::sync::watch;

use super::access::LeaseAccess;
use super::election::{Candidate, Election};
use super::term::{Loops, Term};
use crate::state::ControllerState;

/// Name of the Lease in the system namespace.
const LEASE: &str = "apid-controllers";

/// Takes part in the election until this apid resigns. Runs the tasks of `start` while this apid leads.
pub(crate) async fn run(
    state: Arc<ControllerState>,
    host_name: &str,
    start: impl Fn() -> Loops + Send + Sync,
) {
    let api_state = &state.api_state;
    let Some(leases) = LeaseAccess::new(&state, LEASE) else {
        tracing::error!("Leases are not served, so no controller runs; remove Leases from --runtime-config");
        return;
    };
    let identity = format!("{host_name}_{}", api_state.rng.uuid());
    let changed = leases.follow_changes();
    let candidate =
        Candidate::new(leases, identity, Arc::clone(&api_state.clock), Arc::clone(&api_state.rng));
    let status = state.leader_status.get_or_create(&[("name", LEASE)]).clone();
    let show = show_status(state.leadership.terms(), status);
    let election = Election::new(candidate, Arc::clone(&state.leadership), changed);
    tokio::select! {
        () = election.run(start) => {}
        () = show => {}
    }
}

/// Keeps the metric current.
async fn show_status(mut terms: watch::Receiver<Term>, status: Gauge) {
    loop {
        status.set(i64::from(terms.borrow_and_update().leads));
        if terms.changed().await.is_err() {
            return;
        }
    }
}
