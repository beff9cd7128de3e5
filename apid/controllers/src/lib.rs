//! Background tasks that keep objects consistent, and the identities with which apid itself writes.
//!
//! # Contract
//!
//! [`namespaces::ensure_built_in`] runs before any other write. [`start_objects::run`] creates the other
//! objects that a server has from its start. [`start`] starts the background tasks. Most of them are
//! controllers, which the module `runner` runs; the module `table` lists those that `--controllers` enables.
//! Of several apids with a common store, only the leader runs the loops of [`start_loops`]; see [`leadership`].
//! Background tasks read the watch cache and write through the verbs, so the audit log shows their writes
//! like requests (requirement D-SVC-2). The modules `expiry` and `history` write to the store directly. A
//! restart loses no work, because each task begins with the existing objects.

use std::sync::Arc;
use std::time::Duration;

use serving::gates::Gate;

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
mod identity_lease;
mod leadership;
pub mod namespaces;
mod orderly_end;
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
pub use definitions::{DefinitionController, clean_up as clean_up_definitions};
pub use identity_lease::ServerIdentity;
pub use leadership::Leadership;
pub(crate) use leadership::Loops;
pub use policy_writes::PolicyWrites;
pub use publishers::{PublishedConfig, PublishedProxyConfig};
pub use state::ControllerState;
pub use table::{CERTIFICATE_SIGNER, EnabledControllers, GARBAGE_COLLECTOR, ROOT_CA_PUBLISHER};

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
    /// The machine and the port, for the Leases of an apid with a common store.
    pub server: ServerIdentity,
}

/// Starts the background tasks of this apid, and the loops of the leader. These loops run at once in an apid with an
/// embedded store, otherwise while this apid leads.
pub fn start(state: &Arc<ControllerState>, options: ControllerOptions) {
    let api_state = &state.api_state;
    tokio::spawn(aggregation::run(Arc::clone(state)));
    tokio::spawn(history::run(Arc::clone(api_state), options.history_retention));
    tokio::spawn(unenforced::report(Arc::clone(api_state)));
    if !state.leadership.is_elected() {
        start_loops(state, &options).detach();
        return;
    }
    if api_state.gates.enabled(Gate::ApiServerIdentity) {
        tokio::spawn(identity_lease::renew(Arc::clone(state), options.server.clone()));
    }
    let state = Arc::clone(state);
    tokio::spawn(async move {
        leadership::run(Arc::clone(&state), &options.server.host_name, || start_loops(&state, &options))
            .await;
    });
}

/// Starts the loops that must run once: the enabled controllers, and those that `--controllers` cannot disable.
pub(crate) fn start_loops(state: &Arc<ControllerState>, options: &ControllerOptions) -> Loops {
    let (enabled, api_state) = (&options.enabled, &state.api_state);
    let mut loops = Loops::default();
    table::start_controllers(&mut loops, state, options);
    loops.spawn(definitions::clean_up(Arc::clone(state)));
    loops.spawn(service_addresses::run(Arc::clone(state), enabled.is_enabled(table::SERVICE_CIDRS)));
    loops.spawn(publishers::authentication::run(Arc::clone(state), options.published_config.clone()));
    let cleans_up = enabled.is_enabled(table::TOKEN_SECRET_CLEANER);
    loops.spawn(publishers::legacy_tokens::run(Arc::clone(state), cleans_up));
    loops.spawn(expiry::run(Arc::clone(api_state), options.event_ttl));
    if state.leadership.is_elected() {
        loops.spawn(identity_lease::remove_outdated(Arc::clone(state)));
    }
    loops
}
