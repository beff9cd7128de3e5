//! Admission plugin interface.

use std::future::{Future, ready};
use std::sync::Arc;

use apimachinery::clock::{Clock, Rng};
use apimachinery::codec::Limits;
use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::CurrentRegistry;
use serving::gates::FeatureGates;
use webhooks::{ClientOptions, ServiceMap, WebhookClients};

use crate::quota::Reservations;
use crate::reinvocation::Reinvocation;
use crate::{
    AdmissionMetrics, Attributes, Authorizer, ObjectKind, Operation, Reader, ReaderServices, Writer,
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
    /// Limits of an object that webhooks and policies changed.
    pub limits: Limits,
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
pub(crate) type WriteTarget = (ObjectKind, &'static str);

/// Set of writes that a plugin handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interest {
    /// The resources and subresources; None: all.
    pub(crate) targets: Option<&'static [WriteTarget]>,
    /// The operations.
    pub(crate) operations: &'static [Operation],
}

impl Interest {
    /// Creations and updates of all resources and subresources.
    pub(crate) const ALL_RESOURCES: Self =
        Interest { targets: None, operations: &[Operation::Create, Operation::Update] };
    /// Creations and updates of pods, without their subresources.
    pub(crate) const PODS: Self = Interest::only(&[(ObjectKind::POD, "")]);

    /// Creations and updates of these resources and subresources.
    pub(crate) const fn only(targets: &'static [WriteTarget]) -> Self {
        Interest { targets: Some(targets), ..Interest::ALL_RESOURCES }
    }

    /// These operations on the same resources and subresources.
    #[must_use]
    pub(crate) const fn on(self, operations: &'static [Operation]) -> Self {
        Interest { operations, ..self }
    }
}

/// An admission plugin. The default implementation of both phases allows the write.
///
/// The futures are not boxed: a plugin that does not wait costs no allocation.
pub(crate) trait Plugin: Send + Sync + 'static {
    /// The writes that the plugin handles.
    const INTEREST: Interest = Interest::ALL_RESOURCES;

    /// The writes that the plugin handles, if they depend on its value.
    fn interest(&self) -> Interest {
        Self::INTEREST
    }

    /// Mutating phase: may change the object or reject the write. Deletions have no object.
    fn mutate(
        &self,
        _attributes: &Attributes<'_>,
        _object: Option<&mut Object>,
    ) -> impl Future<Output = Result<(), Status>> + Send {
        ready(Ok(()))
    }

    /// Mutating phase of a plugin that can request or skip the second round.
    fn mutate_in_round(
        &self,
        attributes: &Attributes<'_>,
        object: Option<&mut Object>,
        _: &mut Reinvocation,
    ) -> impl Future<Output = Result<(), Status>> + Send {
        self.mutate(attributes, object)
    }

    /// Validating phase: may reject the write. The object has passed validation.
    fn validate(
        &self,
        _attributes: &Attributes<'_>,
        _object: Option<&Object>,
    ) -> impl Future<Output = Result<(), Status>> + Send {
        ready(Ok(()))
    }
}
