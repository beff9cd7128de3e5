//! Admission plugin interface.

use std::future::{Future, ready};

use apimachinery::object::Object;
use apimachinery::status::Status;

use crate::reinvocation::Reinvocation;
use crate::{Attributes, ObjectKind, Operation};

/// The kind of a resource, and a subresource (`""` for the main resource).
pub(crate) type WriteTarget = (ObjectKind, &'static str);

/// Set of writes that a plugin handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interest {
    /// The resources and subresources; None means all.
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
