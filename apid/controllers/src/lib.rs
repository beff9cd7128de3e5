//! Background tasks that keep objects consistent, and the identities with which apid itself writes.
//!
//! # Contract
//!
//! [`namespaces::ensure_built_in`] runs before any other write. [`start_objects::run`] creates the other
//! objects that a server has from its start. [`start`] starts the background tasks. Most of them are
//! controllers, which the module `runner` runs; the module `table` lists those that `--controllers` enables.
//! Background tasks read the watch cache and write through the verbs, so the audit log shows their writes
//! like requests (requirement D-SVC-2). The modules `expiry` and `history` write to the store directly. A
//! restart loses no work, because each task begins with the existing objects.

use std::sync::Arc;
use std::time::Duration;

mod actor;
mod admission_writes;
pub mod aggregation;
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
mod queue;
mod queue_metrics;
mod quota;
mod reflector;
mod runner;
mod service_accounts;
mod service_addresses;
pub mod start_objects;
mod state;
mod storage_migration;
mod stored;
mod table;
pub mod unenforced;
mod volume_protection;

pub use admission_writes::AdmissionWrites;
pub use certificates::CertificateSigning;
pub use definitions::DefinitionController;
pub use policy_writes::PolicyWrites;
pub use publishers::{PublishedConfig, PublishedProxyConfig};
pub use state::ControllerState;
pub use table::{
    CERTIFICATE_SIGNER, EnabledControllers, GARBAGE_COLLECTOR, ROOT_CA_PUBLISHER, start_controllers,
};

/// The configuration of the controllers.
#[derive(Clone, Debug, Default)]
pub struct ControllerOptions {
    /// The controllers that run.
    pub enabled: EnabledControllers,
    /// Files of the CA of the signer. Without them, the signer does not run.
    pub signing: Option<CertificateSigning>,
    /// Configuration that apid publishes for its clients.
    pub published_config: PublishedConfig,
    /// Time after its last write at which an Event is deleted; zero means never.
    pub event_ttl: Duration,
    /// Time for which old revisions are readable.
    pub history_retention: Duration,
}

/// Starts the enabled controllers and the background tasks that `--controllers` cannot disable.
pub fn start(state: &Arc<ControllerState>, options: &ControllerOptions) {
    let (enabled, api_state) = (&options.enabled, &state.api_state);
    start_controllers(state, options);
    tokio::spawn(aggregation::run(Arc::clone(state)));
    tokio::spawn(service_addresses::run(Arc::clone(state), enabled.is_enabled(table::SERVICE_CIDRS)));
    tokio::spawn(publishers::authentication::run(Arc::clone(state), options.published_config.clone()));
    let cleans_up = enabled.is_enabled(table::TOKEN_SECRET_CLEANER);
    tokio::spawn(publishers::legacy_tokens::run(Arc::clone(state), cleans_up));
    tokio::spawn(expiry::run(Arc::clone(api_state), options.event_ttl));
    tokio::spawn(history::run(Arc::clone(api_state), options.history_retention));
    tokio::spawn(unenforced::report(Arc::clone(api_state)));
}
