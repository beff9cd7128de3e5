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

mod actor;
mod admission_writes;
mod certificates;
mod condition;
mod definitions;
mod derived;
mod enabled_controllers;
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
mod state;
mod storage_migration;
mod stored;
pub mod unenforced;
mod volume_protection;

pub use admission_writes::AdmissionWrites;
pub use certificates::CertificateSigning;
pub use definitions::DefinitionController;
pub use enabled_controllers::EnabledControllers;
pub use policy_writes::PolicyWrites;
pub use publishers::{PublishedConfig, PublishedProxyConfig, publish};
pub use state::ControllerState;

/// Starts the background tasks that `--controllers` cannot disable.
///
/// - `event_ttl`: time after its last write at which an Event is deleted; zero means never.
/// - `history_retention`: time for which old revisions are readable.
pub fn start(state: &Arc<ControllerState>, event_ttl: Duration, history_retention: Duration) {
    let api_state = &state.api_state;
    tokio::spawn(expiry::run(Arc::clone(api_state), event_ttl));
    tokio::spawn(history::run(Arc::clone(api_state), history_retention));
    tokio::spawn(unenforced::report(Arc::clone(api_state)));
}

/// Starts the controllers that `--controllers` can disable. Without `signing`, the signer does not run.
pub fn start_controllers(
    state: &Arc<ControllerState>,
    enabled: EnabledControllers,
    signing: Option<CertificateSigning>,
) {
    if let Some(signing) = signing {
        tokio::spawn(certificates::sign(Arc::clone(state), signing));
    }
    if enabled.certificate_cleaner {
        tokio::spawn(certificates::clean(Arc::clone(state)));
    }
    if enabled.claim_protection || enabled.volume_protection {
        tokio::spawn(volume_protection::run(Arc::clone(state), enabled));
    }
    if enabled.garbage_collector {
        tokio::spawn(garbage::run(Arc::clone(state)));
    }
    if enabled.namespace_deletion {
        tokio::spawn(namespaces::run(Arc::clone(state)));
    }
    if enabled.resource_quota {
        tokio::spawn(quota::run(Arc::clone(state)));
    }
    if enabled.default_accounts {
        tokio::spawn(service_accounts::run(Arc::clone(state)));
    }
    if enabled.policy_type_checks {
        tokio::spawn(policy_types::run(Arc::clone(state)));
    }
    if enabled.storage_migration {
        tokio::spawn(storage_migration::run(Arc::clone(state)));
    }
    tokio::spawn(service_addresses::run(Arc::clone(state), enabled.service_cidrs));
}
