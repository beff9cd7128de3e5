//! Objects of a write in the version and kind that a webhook or policy matched.
//!
//! # Contract
//!
//! Plugins work on objects in the storage version. Webhooks and policies see the version that a rule matched,
//! with the names of the preset. A subresource with a body of another kind, such as `scale`, shows that kind.

use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::status::Status;
use kinds::{Context, Registry, Resource, scale};

use crate::matching::MatchedResource;
use crate::{Attributes, Environment, Operation};

/// Version and kind in which the objects of a write are shown.
pub(crate) struct Representation<'a> {
    /// The matched resource.
    pub(crate) resource: &'a Resource,
    /// The matched version.
    pub(crate) version: &'a str,
    /// Body kind of the subresource, if it differs from the kind of the resource.
    body: Option<std::sync::Arc<Resource>>,
}

/// Full names of a kind in a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupVersionKind {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
}

impl<'a> Representation<'a> {
    /// The representation of a write in a matched version.
    pub(crate) fn matched(
        matched: &'a MatchedResource,
        attributes: &Attributes<'a>,
        registry: &Registry,
        names: &Names,
    ) -> Self {
        let (resource, version) = matched.of(attributes);
        let subresource = resource.kind.subresource(attributes.subresource);
        let body = subresource.and_then(|subresource| registry.body(resource, subresource, names));
        let body = body.filter(|body| body.group_kind != resource.group_kind).cloned();
        Representation { resource, version, body }
    }

    /// The shown kind.
    pub(crate) fn kind(&self) -> GroupVersionKind {
        let (resource, version) = match &self.body {
            Some(body) => (&**body, body.kind.version()),
            None => (self.resource, self.version),
        };
        GroupVersionKind {
            group: resource.group_kind.group.clone(),
            version: version.to_owned(),
            kind: resource.group_kind.kind.clone(),
        }
    }

    /// Whether the objects are Scales of the stored objects.
    fn is_scale(&self, attributes: &Attributes<'_>) -> bool {
        self.body.is_some() && attributes.operation == Operation::Update
    }

    /// Converts an object of the write to the representation.
    ///
    /// # Errors
    ///
    /// 500: the version cannot represent the object.
    pub(crate) fn show(
        &self,
        object: &Object,
        attributes: &Attributes<'_>,
        names: &Names,
    ) -> Result<Object, Status> {
        let mut shown = object.clone();
        if self.body.is_some() && !self.is_scale(attributes) {
            return Ok(shown);
        }
        self.resource.represent(&mut shown, names).map_err(Status::internal)?;
        Ok(if self.is_scale(attributes) { scale::of(&self.resource.kind, &shown) } else { shown })
    }

    /// Converts a changed object back, with defaults. `before` is the object of the write before the change.
    ///
    /// # Errors
    ///
    /// 500: the changed object does not conform to its schema.
    pub(crate) fn restore(
        &self,
        mut changed: Object,
        before: &Object,
        attributes: &Attributes<'_>,
        environment: &Environment,
    ) -> Result<Object, Status> {
        let names = &environment.names;
        if self.is_scale(attributes) {
            let mut target = before.clone();
            self.resource.convert_from_storage(&mut target, names).map_err(Status::internal)?;
            scale::apply(&self.resource.kind, &mut target, &changed);
            changed = target;
        } else {
            let shown = self.body.as_deref().unwrap_or(self.resource);
            shown.conform_body(&mut changed, names).map_err(Status::internal)?;
            if self.body.is_some() {
                return Ok(changed);
            }
        }
        self.resource.to_stored(&mut changed, names).map_err(Status::internal)?;
        let context = Context {
            names,
            clock: &*environment.clock,
            rng: &*environment.rng,
            subresource: attributes.subresource,
        };
        self.resource.stored().default(&mut changed, &context);
        Ok(changed)
    }
}
