//! Loops that keep objects in order, and the identity in whose name the process writes.
//!
//! # Contract
//!
//! [`namespaces::ensure_built_in`] runs once before anything else writes; [`start_objects::run`] makes what else a server has
//! from its start; [`start`] starts the loops, one file each. They
//! read the watch cache and write through the verbs, so that the audit log shows them as it shows requests (requirements
//! D-SVC-2). They survive a restart: each begins with what is there.

use std::sync::Arc;
use std::time::Duration;

use crate::plane::Plane;

mod actor;
mod admission_writes;
mod condition;
mod expiry;
mod follow;
mod garbage;
pub mod namespaces;
mod policy_writes;
mod publishers;
mod quota;
mod service_accounts;
pub mod start_objects;
mod stored;
pub(crate) mod unenforced;

pub use admission_writes::AdmissionWrites;
pub use policy_writes::PolicyWrites;
pub use publishers::publish;

/// Starts the loops. `own_accounts`: each writes as a service account of its own. `collect_garbage`: objects end with their
/// owners. `event_ttl`: how long after its last write an Event ends; zero: never.
pub fn start(plane: &Arc<Plane>, own_accounts: bool, collect_garbage: bool, event_ttl: Duration) {
    if collect_garbage {
        tokio::spawn(garbage::run(plane.clone(), own_accounts));
    }
    tokio::spawn(expiry::run(plane.clone(), event_ttl));
    tokio::spawn(namespaces::run(plane.clone(), own_accounts));
    tokio::spawn(quota::run(plane.clone(), own_accounts));
    tokio::spawn(service_accounts::run(plane.clone(), own_accounts));
    tokio::spawn(unenforced::report(plane.clone()));
}
