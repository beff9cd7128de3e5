//! Objects of a write in the version and kind that a webhook or policy matched.
//!
//! # Contract
//!
//! Plugins get objects of built-in kinds in the storage version, and custom objects in the version of the URL
//! path. Webhooks and policies see the version that a rule matched, with the names of the preset. For a
//! subresource with a body of another kind, such as `scale`, webhooks and policies see objects of that kind.
//!
//! A webhook or policy may return the object in another served version of the kind. An object of another kind
//! fails the write.

use std::borrow::Cow;
use std::sync::Arc;

use apimachinery::field::{FieldError, FieldPath, quote, shorten};
use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use apimachinery::status::{Reason, Status};
use kinds::{Context, Kind, Registry, Storage, Subresource, scale};
use schema::merge::Merge;
use serde_json::json;

use crate::matching::MatchedResource;
use crate::{Attributes, Environment};

/// Version and kind of the objects of a write for one webhook or policy.
pub(crate) struct Representation<'a> {
    /// The matched resource.
    pub(crate) resource: &'a Kind,
    /// The matched version.
    pub(crate) version: &'a str,
    environment: &'a Environment,
    /// Body of the subresource, if its kind differs from the kind of the resource.
    body: Option<Body>,
}

/// A changed object in the stored form.
pub(crate) struct RestoredObject {
    /// The object.
    pub(crate) object: Object,
    /// Paths of unknown fields, which the object does not have.
    pub(crate) unknown: Vec<String>,
}

/// Body of a subresource.
struct Body {
    kind: GroupVersionKind,
    /// The resource of the kind, if it is served.
    resource: Option<Arc<Kind>>,
    /// Whether the bodies are Scales of the stored objects.
    is_scale: bool,
}

/// Full names of a kind in a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GroupVersionKind {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
}

impl GroupVersionKind {
    /// The kind as an object with three fields.
    pub(crate) fn to_value(&self) -> Value {
        json!({"group": self.group, "version": self.version, "kind": self.kind})
    }

    fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

impl<'a> Representation<'a> {
    /// The representation of a write in a matched version.
    pub(crate) fn for_match(matched: &'a MatchedResource, attributes: &Attributes<'a>) -> Self {
        let (resource, version) = matched.resource_and_version(attributes);
        let environment = attributes.environment;
        let subresource = resource.subresource(attributes.subresource);
        let body = subresource.and_then(|subresource| Body::new(resource, version, subresource, environment));
        Representation { resource, version, environment, body }
    }

    /// The kind of the objects.
    pub(crate) fn kind(&self) -> GroupVersionKind {
        match &self.body {
            Some(body) => body.kind.clone(),
            None => GroupVersionKind {
                group: self.resource.group_kind.group.clone(),
                version: self.version.to_owned(),
                kind: self.resource.group_kind.kind.clone(),
            },
        }
    }

    /// The merge type of the objects; None for a body of an unknown kind.
    pub(crate) fn merge(&self) -> Option<Merge> {
        let resource = match &self.body {
            None => self.resource,
            Some(body) => body.resource.as_deref()?,
        };
        Some(resource.schema.merge())
    }

    /// Converts an object of the write to the representation.
    ///
    /// # Errors
    ///
    /// 500: the version cannot represent the object.
    pub(crate) fn convert<'o>(&self, object: Cow<'o, Object>) -> Result<Cow<'o, Object>, Status> {
        let names = &self.environment.names;
        let is_scale = match &self.body {
            Some(body) if !body.is_scale => return Ok(object),
            body => body.is_some(),
        };
        let (_, current) = object.api_version().rsplit_once('/').unwrap_or(("", object.api_version()));
        if !is_scale && current == self.version && self.resource.is_sent_as_stored(names) {
            return Ok(object);
        }
        let mut object = object.into_owned();
        self.resource.represent(&mut object, names).map_err(Status::internal)?;
        if is_scale {
            return Ok(Cow::Owned(scale::of(self.resource, &object)));
        }
        let kind = self.kind();
        object.set_type(&kind.api_version(), &kind.kind);
        Ok(Cow::Owned(object))
    }

    /// Converts a changed object back, with defaults. `before` is the object of the write before the change.
    ///
    /// # Errors
    ///
    /// 500: the changed object does not conform to its schema, or has another kind. 422: a custom object has
    /// another kind or version.
    pub(crate) fn restore(
        &self,
        mut changed: Object,
        before: &Object,
        subresource: &str,
    ) -> Result<RestoredObject, Status> {
        let environment = self.environment;
        let names = &environment.names;
        let registry = environment.registry.get();
        let other_version = self.check_type(&mut changed, &registry, names)?;
        let resource = other_version.map_or(self.resource, |version| &**version);
        let mut unknown = Vec::new();
        match &self.body {
            None => {
                unknown = resource.conform_body(&mut changed, names).map_err(Status::internal)?.unknown;
            }
            Some(body) if body.is_scale => {
                let mut target = before.clone();
                self.resource.convert_from_storage(&mut target, names).map_err(Status::internal)?;
                scale::apply(self.resource, &mut target, &changed);
                changed = target;
            }
            Some(body) => {
                if let Some(resource) = &body.resource {
                    unknown = resource.conform_body(&mut changed, names).map_err(Status::internal)?.unknown;
                }
                return Ok(RestoredObject { object: changed, unknown });
            }
        }
        resource.to_stored(&mut changed, names).map_err(Status::internal)?;
        let context = Context { names, clock: &*environment.clock, rng: &*environment.rng, subresource };
        self.resource.stored().default(&mut changed, &context);
        Ok(RestoredObject { object: changed, unknown })
    }

    /// Checks that a changed object still has the kind of the representation. Sets a missing kind and version
    /// of a built-in kind.
    ///
    /// Returns the resource of the object's version, if the version of a built-in kind changed.
    ///
    /// # Errors
    ///
    /// See [`Representation::restore`].
    fn check_type<'r>(
        &self,
        changed: &mut Object,
        registry: &'r Registry,
        names: &Names,
    ) -> Result<Option<&'r Arc<Kind>>, Status> {
        let expected = self.kind();
        let expected_version = expected.api_version();
        let text = |field: &str| match changed.get(field) {
            None | Some(Value::Null) => Ok(""),
            Some(Value::String(text)) => Ok(text.as_str()),
            Some(_) => Err(Status::internal(format!(
                "couldn't get version/kind; json parse error: {field} is not a string"
            ))),
        };
        let (kind, api_version) = (text("kind")?, text("apiVersion")?);
        if (kind, api_version) == (expected.kind.as_str(), expected_version.as_str()) {
            return Ok(None);
        }
        if self.resource.is_custom() && self.body.is_none() {
            return Err(self.custom_type_mismatch(changed.name(), kind, api_version, registry));
        }
        let kind = if kind.is_empty() { expected.kind.as_str() } else { kind };
        let api_version = if api_version.is_empty() { &expected_version } else { api_version };
        if (kind, api_version) == (expected.kind.as_str(), expected_version.as_str()) {
            changed.set_type(&expected_version, &expected.kind);
            return Ok(None);
        }
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let found = registry.find_kind_version(group, version, kind).filter(|found| !found.is_custom());
        let same_kind = |found: &&Arc<Kind>| found.key_prefix == self.resource.key_prefix;
        if let Some(found) = found.filter(same_kind).filter(|_| self.body.is_none()) {
            return Ok(Some(found));
        }
        Err(match found {
            Some(_) => {
                let package = self.internal_package();
                let text = format!(
                    "converting ({version}.{kind}) to ({package}.{}): unknown conversion",
                    expected.kind
                );
                Status::failure(Reason::Unknown, text)
            }
            None => {
                let scheme = names.scheme_source(self.resource.stem().unwrap_or_default());
                let scheme = scheme.map(|scheme| format!(" in scheme {}", quote(scheme))).unwrap_or_default();
                let (kind, version) = (quote(&shorten(kind)), quote(&shorten(api_version)));
                Status::internal(format!("no kind {kind} is registered for version {version}{scheme}"))
            }
        })
    }

    /// The Status for a changed custom object whose kind or version differs.
    fn custom_type_mismatch(&self, name: &str, kind: &str, api_version: &str, registry: &Registry) -> Status {
        if kind.is_empty() {
            return Status::internal("Object 'Kind' is missing in the changed object");
        }
        if !registry.versions_of(self.resource).any(|version| version.api_version() == api_version) {
            let version = shorten(api_version);
            let text = format!("request to convert CR to an invalid group/version: {version}");
            return Status::failure(Reason::Unknown, text);
        }
        if kind != self.resource.name() {
            return self.resource.invalid_kind(name, kind);
        }
        let detail = format!("must be {}", self.kind().api_version());
        let error = FieldError::invalid(&FieldPath::new("apiVersion"), api_version, &detail);
        Status::invalid(&self.resource.group_kind, name, &[error])
    }

    /// Go package of the internal type in kube-apiserver, for messages about other kinds.
    fn internal_package(&self) -> &str {
        let resource = self.body.as_ref().and_then(|body| body.resource.as_deref()).unwrap_or(self.resource);
        resource.internal_package()
    }
}

impl Body {
    fn new(
        resource: &Kind,
        version: &str,
        subresource: &Subresource,
        environment: &Environment,
    ) -> Option<Self> {
        let names = &environment.names;
        let kind = resource.body_kind(subresource);
        if kind == resource.name() && subresource.group_version.is_none() {
            return None;
        }
        let (group, version) = match subresource.group_version {
            Some((stem, version)) => (names.group(stem), version),
            None => (resource.group_kind.group.clone(), version),
        };
        let body = environment.registry.get().body(resource, subresource, names).cloned();
        let is_scale = body.as_ref().is_some_and(|body| body.storage == Storage::VirtualSubresource);
        let kind = GroupVersionKind { group, version: version.to_owned(), kind: kind.to_owned() };
        Some(Body { kind, resource: body, is_scale })
    }
}
