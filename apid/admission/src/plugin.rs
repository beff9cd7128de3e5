//! What a plugin is.

use std::sync::Arc;

use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::status::Status;

use crate::{Attributes, Eventual, Operation, Reader};

/// What plugins are built of.
#[derive(Clone)]
pub struct Environment {
    /// Names of the preset.
    pub names: Arc<Names>,
    /// Other objects.
    pub reader: Arc<dyn Reader>,
}

/// A plugin. Both methods answer yes unless they are implemented.
pub trait Plugin: Send + Sync + 'static {
    /// Whether it has a say in such writes.
    fn handles(&self, operation: Operation) -> bool;

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
