//! Leadership: which of the apids with a common store runs the loops that must run once.
//!
//! # Contract
//!
//! Apids with a common store elect a leader through a Lease; see [`election`]. The leader runs the loops. An apid with an
//! embedded store always leads and writes no Lease. docs/architecture.md lists the loops of the leader and those of each
//! apid.
//!
//! # Invariants
//!
//! INVARIANT (one leader): the term of a leader ends before another apid can take the Lease. Each apid measures both times
//! with its own monotonic clock, so the clocks of the machines need not agree.
//! INVARIANT (no write after the term): [`Leadership::begin_write`] refuses the writes of a loop after the term, even in a
//! process that was stopped during the term. Writes in progress at the end of the term may end later. Most of them apply
//! only to the revision that the loop has read, so they cannot undo a write of the next leader. docs/architecture.md lists
//! the others.

mod access;
mod candidacy;
mod election;
mod record;
mod term;
#[cfg(test)]
mod tests;

pub(crate) use self::access::LeaseAccess;
pub(crate) use self::candidacy::run;
pub(crate) use self::election::Leases;
pub use self::term::Leadership;
pub(crate) use self::term::{LeaderStatus, LoopWrite, Loops, NotLeading, status_metric};
