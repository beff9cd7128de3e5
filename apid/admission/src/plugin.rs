//! Admission plugin interface.

use std::sync::Arc;

use apimachinery::clock::{Clock, Rng};
use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::CurrentRegistry;
use serving::gates::FeatureGates;
use webhooks::{ClientOptions, ServiceMap, WebhookClients};

use crate::quota::Reservations;
use crate::{
    AdmissionMetrics, Attributes, Authorizer, MaybeFuture, ObjectKind, Operation, Reader, ReaderServices,
    Writer,
};

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
}

/// Returns clients of webhooks; they look up Services through the reader.
pub fn webhook_clients(
    reader: Arc<dyn Reader>,
    service_map: ServiceMap,
    names: &Arc<Names>,
    clock: &Arc<dyn Clock>,
    rng: &Arc<dyn Rng>,
) -> Arc<WebhookClients> {
    Arc::new(WebhookClients::new(ClientOptions {
        lookup: Arc::new(ReaderServices(reader)),
        service_map,
        names: Arc::clone(names),
        clock: Arc::clone(clock),
        rng: Arc::clone(rng),
    }))
}

/// The kind of a resource, and a subresource (`""` for the main resource).
pub type WriteTarget = (ObjectKind, &'static str);

/// Set of writes that a plugin is interested in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Writes to all resources and subresources.
    All,
    /// Writes to these resources and subresources only.
    Only(&'static [WriteTarget]),
}

impl Interest {
    /// Writes to pods, without their subresources.
    pub const PODS: Self = Interest::Only(&[(ObjectKind::POD, "")]);
}

/// An admission plugin. The default implementation of both phases allows the write.
pub trait Plugin: Send + Sync + 'static {
    /// Whether the plugin handles an operation. The default is create and update.
    /// The chain calls this once, at construction.
    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    /// Resources and subresources that the plugin handles. The chain calls this once, at construction.
    fn interest(&self) -> Interest {
        Interest::All
    }

    /// Mutating phase: may change the object or reject the write. Deletions have no object.
    fn mutate<'a>(
        &'a self,
        _attributes: &'a Attributes<'a>,
        _object: Option<&'a mut Object>,
    ) -> MaybeFuture<'a, Result<(), Status>> {
        MaybeFuture::Ready(Ok(()))
    }

    /// Validating phase: may reject the write. The object has passed validation.
    fn validate<'a>(
        &'a self,
        _attributes: &'a Attributes<'a>,
        _object: Option<&'a Object>,
    ) -> MaybeFuture<'a, Result<(), Status>> {
        MaybeFuture::Ready(Ok(()))
    }
}
