//! Background tasks that keep objects consistent, and the identities with which apid itself writes.
//!
//! # Contract
//!
//! [`namespaces::ensure_built_in`] runs before any other write. [`start_objects::run`] creates the other
//! objects that a server has from its start. [`start`] and [`start_controllers`] start the background tasks.
//! Background tasks read the watch cache and write through the verbs, so the audit log shows their writes
//! like requests (requirement D-SVC-2). The modules `expiry` and `history` write to the store directly. A
//! restart loses no work, because each task begins with the existing objects.

use std::sync::Arc;
use std::time::Duration;

use crate::config::{CertificateSigning, EnabledControllers};
use crate::server_state::ServerState;

mod actor;
mod admission_writes;
mod certificates;
mod condition;
mod definitions;
mod derived;
mod expiry;
mod garbage;
mod history;
pub mod namespaces;
mod policy_types;
mod policy_writes;
mod publishers;
mod quota;
mod reflector;
mod retries;
mod service_accounts;
mod service_addresses;
pub mod start_objects;
mod storage_migration;
mod stored;
pub(crate) mod unenforced;
mod volume_protection;

pub use admission_writes::AdmissionWrites;
pub use definitions::DefinitionController;
pub use policy_writes::PolicyWrites;
pub use publishers::publish;

/// Starts the background tasks.
///
/// - `own_accounts`: whether each controller writes as its own service account.
/// - `collect_garbage`: whether the garbage collector runs.
/// - `event_ttl`: time after its last write at which an Event is deleted; zero means never.
/// - `history_retention`: time for which old revisions are readable.
pub fn start(
    server_state: &Arc<ServerState>,
    own_accounts: bool,
    collect_garbage: bool,
    event_ttl: Duration,
    history_retention: Duration,
) {
    if collect_garbage {
        tokio::spawn(garbage::run(server_state.clone(), own_accounts));
    }
    tokio::spawn(server_state.request_metrics.measure_peaks());
    tokio::spawn(expiry::run(server_state.clone(), event_ttl));
    tokio::spawn(history::run(server_state.clone(), history_retention));
    tokio::spawn(namespaces::run(server_state.clone(), own_accounts));
    tokio::spawn(policy_types::run(server_state.clone(), own_accounts));
    tokio::spawn(quota::run(server_state.clone(), own_accounts));
    tokio::spawn(service_accounts::run(server_state.clone(), own_accounts));
    tokio::spawn(service_addresses::run(server_state.clone(), own_accounts));
    tokio::spawn(storage_migration::run(server_state.clone(), own_accounts));
    tokio::spawn(unenforced::report(server_state.clone()));
}

/// Starts the controllers that `--controllers` can disable. Without `signing`, the signer does not run.
pub fn start_controllers(
    server_state: &Arc<ServerState>,
    own_accounts: bool,
    enabled: EnabledControllers,
    signing: Option<CertificateSigning>,
) {
    if let Some(signing) = signing {
        tokio::spawn(certificates::sign(server_state.clone(), signing));
    }
    if enabled.certificate_cleaner {
        tokio::spawn(certificates::clean(server_state.clone(), own_accounts));
    }
    if enabled.claim_protection || enabled.volume_protection {
        tokio::spawn(volume_protection::run(server_state.clone(), own_accounts, enabled));
    }
}
