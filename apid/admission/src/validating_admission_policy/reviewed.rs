//! The write in the form in which a policy sees it: objects in the matched version, and the variable `request`.

use std::borrow::Cow;

use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use expressions::AuthorizationCheck;
use kinds::{Registry, Resource, Storage, scale};
use serde_json::{Map, json};

use crate::matching::MatchedResource;
use crate::{Attributes, ObjectKind};

/// The objects of a write in one version.
pub(super) struct ReviewedObjects<'a> {
    /// The new object.
    pub(super) new: Option<Cow<'a, Object>>,
    /// The old object.
    pub(super) old: Option<Cow<'a, Object>>,
}

/// Kind and version of the bodies of a request.
struct BodyKind<'a> {
    group: Cow<'a, str>,
    version: Cow<'a, str>,
    kind: &'a str,
    /// Whether the objects are in the form of the stored kind.
    is_stored: bool,
    /// Whether the bodies are views of the stored objects.
    is_scale: bool,
}

impl<'a> BodyKind<'a> {
    fn new(
        attributes: &Attributes<'_>,
        (resource, version): (&'a Resource, &'a str),
        registry: &Registry,
        names: &Names,
    ) -> Self {
        let own = BodyKind {
            group: Cow::Borrowed(&resource.group_kind.group),
            version: Cow::Borrowed(version),
            kind: resource.kind.kind(),
            is_stored: true,
            is_scale: false,
        };
        let Some(subresource) = resource.kind.subresource(attributes.subresource) else { return own };
        let kind = resource.kind.body_kind(subresource);
        if kind == resource.kind.kind() && subresource.group_version.is_none() {
            return own;
        }
        let (group, version) = match subresource.group_version {
            Some((stem, version)) => (Cow::Owned(names.group(stem)), Cow::Owned(version.to_owned())),
            None => (own.group, own.version),
        };
        let body = registry.body(resource, subresource, names);
        let is_scale = body.is_some_and(|body| body.kind.storage() == Storage::VirtualSubresource);
        BodyKind { group, version, kind, is_stored: is_scale, is_scale }
    }

    fn to_value(&self) -> Value {
        json!({"group": self.group, "version": self.version, "kind": self.kind})
    }
}

/// Converts the objects of a write to the matched version.
///
/// # Errors
///
/// The version cannot represent an object.
pub(super) fn objects<'a>(
    attributes: &Attributes<'a>,
    new: Option<&'a Object>,
    matched: &MatchedResource,
    registry: &Registry,
    names: &Names,
) -> Result<ReviewedObjects<'a>, Status> {
    let (resource, version) = matched.of(attributes);
    let body = BodyKind::new(attributes, (resource, version), registry, names);
    let convert = |object: &'a Object| -> Result<Cow<'a, Object>, Status> {
        if !body.is_stored {
            return Ok(Cow::Borrowed(object));
        }
        let (_, current) = object.api_version().rsplit_once('/').unwrap_or(("", object.api_version()));
        if resource.is_sent_as_stored(names) && current == version && !body.is_scale {
            return Ok(Cow::Borrowed(object));
        }
        let mut object = object.clone();
        resource.represent(&mut object, names).map_err(Status::internal)?;
        if body.is_scale {
            return Ok(Cow::Owned(scale::of(&resource.kind, &object)));
        }
        object.set_type(&api_version(&body.group, &body.version), body.kind);
        Ok(Cow::Owned(object))
    };
    Ok(ReviewedObjects {
        new: new.map(&convert).transpose()?,
        old: attributes.old.map(&convert).transpose()?,
    })
}

fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// The value of the variable `request`.
pub(super) fn request(
    attributes: &Attributes<'_>,
    matched: &MatchedResource,
    registry: &Registry,
    names: &Names,
) -> Value {
    let requested = (attributes.served, attributes.version);
    let kind = |version| BodyKind::new(attributes, version, registry, names).to_value();
    let resource = |(resource, version): (&Resource, &str)| {
        let name = &resource.group_resource;
        json!({"group": name.group, "version": version, "resource": name.resource})
    };
    let mut request = Map::new();
    let mut set = |field: &str, value: Value| drop(request.insert(field.to_owned(), value));
    set("kind", kind(matched.of(attributes)));
    set("resource", resource(matched.of(attributes)));
    set("requestKind", kind(requested));
    set("requestResource", resource(requested));
    for (field, text) in [
        ("subResource", attributes.subresource),
        ("requestSubResource", attributes.subresource),
        ("name", attributes.name),
        ("namespace", attributes.request_namespace()),
    ] {
        if !text.is_empty() {
            set(field, text.into());
        }
    }
    set("operation", attributes.operation.as_str().into());
    set("userInfo", user(attributes));
    set("dryRun", attributes.dry_run.into());
    set("options", attributes.options.clone());
    Value::Object(request)
}

fn user(attributes: &Attributes<'_>) -> Value {
    let user = attributes.user;
    let mut info = Map::new();
    info.insert("username".to_owned(), user.name.as_str().into());
    if !user.uid.is_empty() {
        info.insert("uid".to_owned(), user.uid.as_str().into());
    }
    if !user.groups.is_empty() {
        info.insert("groups".to_owned(), user.groups.as_slice().into());
    }
    if !user.extra.is_empty() {
        let extra = user.extra.iter().map(|(key, values)| (key.clone(), values.as_slice().into()));
        info.insert("extra".to_owned(), Value::Object(extra.collect()));
    }
    Value::Object(info)
}

/// The authorization check of the resource of a write, without its verb.
pub(super) fn resource_check(attributes: &Attributes<'_>, matched: &MatchedResource) -> AuthorizationCheck {
    let (resource, _) = matched.of(attributes);
    AuthorizationCheck {
        group: resource.group_resource.group.clone(),
        resource: resource.group_resource.resource.clone(),
        subresource: attributes.subresource.to_owned(),
        namespace: attributes.request_namespace().to_owned(),
        name: attributes.name.to_owned(),
        ..AuthorizationCheck::default()
    }
}

/// Name of the namespace of a write; `""` for cluster-scoped objects and for Namespaces.
pub(super) fn namespace<'a>(attributes: &Attributes<'a>) -> &'a str {
    if attributes.is_of(ObjectKind::NAMESPACE) { "" } else { attributes.namespace }
}
