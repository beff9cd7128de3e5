//! Dependencies of admission plugins.

use std::sync::Arc;

use apimachinery::clock::{Clock, Rng};
use apimachinery::codec::Limits;
use apimachinery::names::Names;
use forwarding::{ForwardingOptions, ServiceResolver};
use kinds::CurrentRegistry;
use serving::gates::FeatureGates;
use webhooks::{ClientOptions, WebhookClients};

use crate::quota::Reservations;
use crate::{AdmissionMetrics, Authorizer, Reader, ReaderServices, Writer};

/// Dependencies of plugins.
#[derive(Clone)]
pub struct Environment {
    /// Names of the preset.
    pub names: Arc<Names>,
    /// Source of wall-clock and monotonic time.
    pub clock: Arc<dyn Clock>,
    /// Source of uids and generated names.
    pub rng: Arc<dyn Rng>,
    /// Reads other objects.
    pub reader: Arc<dyn Reader>,
    /// Writes objects as apid itself.
    pub writer: Arc<dyn Writer>,
    /// Decides whether a user may perform an action other than the write itself.
    pub authorizer: Arc<dyn Authorizer>,
    /// The served kinds.
    pub registry: Arc<CurrentRegistry>,
    /// Quota reservations of in-flight writes.
    pub reservations: Arc<Reservations>,
    /// Clients of webhooks.
    pub webhooks: Arc<WebhookClients>,
    /// Metrics of webhooks and policies.
    pub metrics: Arc<AdmissionMetrics>,
    /// Feature gates.
    pub gates: FeatureGates,
    /// Limits of an object that webhooks and policies changed.
    pub limits: Limits,
}

/// Returns clients of webhooks; they look up Services through the reader. `options`: the addresses that the flags of the
/// server allow and give to Services.
pub fn webhook_clients(
    reader: Arc<dyn Reader>,
    options: &ForwardingOptions,
    names: &Arc<Names>,
    clock: &Arc<dyn Clock>,
    rng: &Arc<dyn Rng>,
) -> Arc<WebhookClients> {
    let services = ServiceResolver::new(
        Arc::new(ReaderServices(reader)),
        options.service_map.clone(),
        Arc::clone(names),
        Arc::clone(rng),
        Arc::clone(&options.addresses),
    );
    Arc::new(WebhookClients::new(ClientOptions {
        services: Arc::new(services),
        names: Arc::clone(names),
        clock: Arc::clone(clock),
    }))
}
