//! Admission plugin interface.

use std::sync::Arc;

use apimachinery::clock::{Clock, Rng};
use apimachinery::codec::Limits;
use apimachinery::names::Names;
use apimachinery::object::Object;
use kinds::CurrentRegistry;
use serving::gates::FeatureGates;
use webhooks::{ClientOptions, ServiceMap, WebhookClients};

use crate::quota::Reservations;
use crate::{
    Admission, AdmissionMetrics, Attributes, Authorizer, ObjectKind, Operation, PluginConfiguration,
    PluginConfigurationError, Reader, ReaderServices, Writer,
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
pub type WriteTarget = (ObjectKind, &'static str);

/// Set of writes that a plugin handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interest {
    /// The resources and subresources; None: all.
    pub targets: Option<&'static [WriteTarget]>,
    /// The operations.
    pub operations: &'static [Operation],
}

impl Interest {
    /// Creations and updates of all resources and subresources.
    pub const ALL_RESOURCES: Self =
        Interest { targets: None, operations: &[Operation::Create, Operation::Update] };
    /// Creations and updates of pods, without their subresources.
    pub const PODS: Self = Interest::only(&[(ObjectKind::POD, "")]);

    /// Creations and updates of these resources and subresources.
    pub const fn only(targets: &'static [WriteTarget]) -> Self {
        Interest { targets: Some(targets), ..Interest::ALL_RESOURCES }
    }

    /// These operations on the same resources and subresources.
    #[must_use]
    pub const fn on(self, operations: &'static [Operation]) -> Self {
        Interest { operations, ..self }
    }
}

/// A plugin that accepts no configuration.
pub(crate) trait BuildPlugin: Plugin + Sized {
    /// Builds the plugin.
    fn new(environment: &Environment) -> Self;
}

/// A plugin that accepts a configuration.
pub(crate) trait ConfigurePlugin: Plugin + Sized {
    /// Builds the plugin with the configuration, if the configuration file has one for the plugin.
    ///
    /// # Errors
    ///
    /// The location and the defect in the configuration.
    fn new(
        environment: &Environment,
        configuration: Option<&PluginConfiguration>,
    ) -> Result<Self, PluginConfigurationError>;
}

/// An admission plugin. The default implementation of both phases allows the write.
pub trait Plugin: Send + Sync + 'static {
    /// The writes that the plugin handles. The chain calls this once, at construction.
    fn interest(&self) -> Interest {
        Interest::ALL_RESOURCES
    }

    /// Mutating phase: may change the object or reject the write. Deletions have no object.
    fn mutate<'a>(
        &'a self,
        _attributes: &'a Attributes<'a>,
        _object: Option<&'a mut Object>,
    ) -> Admission<'a> {
        Admission::Ready(Ok(()))
    }

    /// Validating phase: may reject the write. The object has passed validation.
    fn validate<'a>(&'a self, _attributes: &'a Attributes<'a>, _object: Option<&'a Object>) -> Admission<'a> {
        Admission::Ready(Ok(()))
    }
}
