//! What a plugin is.

use std::sync::Arc;

use apimachinery::clock::{Chance, Clock};
use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::status::Status;

use crate::quota::Reservations;
use crate::{Attributes, Authorizer, Eventual, ObjectKind, Operation, Reader, Writer};

/// What plugins are built of.
#[derive(Clone)]
pub struct Environment {
    /// Names of the preset.
    pub names: Arc<Names>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Chance.
    pub chance: Arc<dyn Chance>,
    /// Other objects.
    pub reader: Arc<dyn Reader>,
    /// Writes of the server itself.
    pub writer: Arc<dyn Writer>,
    /// What users may do.
    pub authorizer: Arc<dyn Authorizer>,
    /// What writes under way have been promised of quotas.
    pub reservations: Arc<Reservations>,
}

/// A resource and its subresource (`""` for the main resource).
pub type Place = (ObjectKind, &'static str);

/// The writes that may concern a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Those of any resource and subresource.
    All,
    /// Those of these alone.
    Only(&'static [Place]),
}

impl Interest {
    /// The writes of pods, without their subresources.
    pub const PODS: Self = Interest::Only(&[(ObjectKind::POD, "")]);
}

/// A plugin. Both phases answer yes unless they are implemented.
pub trait Plugin: Send + Sync + 'static {
    /// Whether it has a say in such writes: those that create or update, unless it is implemented. Asked once, when the
    /// chain is made.
    fn handles(&self, operation: Operation) -> bool {
        matches!(operation, Operation::Create | Operation::Update)
    }

    /// The resources it has a say in. Asked once, when the chain is made.
    fn interest(&self) -> Interest {
        Interest::All
    }

    /// May change the object, and may refuse the write. Deletions have no object.
    fn mutate<'a>(
        &'a self,
        _attributes: &'a Attributes<'a>,
        _object: Option<&'a mut Object>,
    ) -> Eventual<'a, Result<(), Status>> {
        Eventual::Now(Ok(()))
    }

    /// May refuse the write. The object has been validated.
    fn validate<'a>(
        &'a self,
        _attributes: &'a Attributes<'a>,
        _object: Option<&'a Object>,
    ) -> Eventual<'a, Result<(), Status>> {
        Eventual::Now(Ok(()))
    }
}
