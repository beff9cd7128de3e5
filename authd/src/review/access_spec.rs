//! The spec of access reviews and AccessExplanations: validation and decoding of subject and attributes.
//!
//! # Contract
//!
//! [`AccessSpec::read`] validates spec and metadata together, so that one 422 has all causes in the order of
//! Kubernetes: attributes, subject, metadata, namespace (requirements A-REV-15 to A-REV-18).

use apimachinery::attributes::Attributes;
use apimachinery::field::{FieldError, FieldPath};
use apimachinery::names::Names;
use apimachinery::object::{Map, Object, Value};
use apimachinery::status::Status;
use apimachinery::user::UserInfo;

use super::attributes::{
    Fields, attribute_objects, check_attributes, format_path_attributes, read_attributes, text,
};
use super::{invalid, string_lists, strings};

/// The form of a spec, which depends on the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpecForm<'a> {
    /// The subject may be absent: SelfSubjectAccessReview and AccessExplanation.
    OptionalSubject,
    /// The spec names a user or a group: SubjectAccessReview.
    RequiredSubject,
    /// Like `RequiredSubject`, with a resource in this namespace: LocalSubjectAccessReview.
    Namespaced(&'a str),
}

/// A valid spec.
#[derive(Clone, Debug)]
pub(super) struct AccessSpec {
    /// The user of the reviewed request; empty without a subject.
    pub(super) subject: UserInfo,
    /// The attributes of the reviewed request.
    pub(super) attributes: Attributes,
}

impl AccessSpec {
    /// Validates and decodes the spec of an object.
    ///
    /// # Errors
    ///
    /// A Status 422 with a cause for each error.
    pub(super) fn read(names: &Names, object: &Object, form: SpecForm<'_>) -> Result<Self, Status> {
        let no_spec = Map::new();
        let spec = object.get("spec").and_then(Value::as_object).unwrap_or(&no_spec);
        let mut errors = check_attributes(spec);
        if form != SpecForm::OptionalSubject {
            errors.extend(check_subject(spec));
        }
        errors.extend(check_metadata(object, matches!(form, SpecForm::Namespaced(_))));
        if let SpecForm::Namespaced(namespace) = form {
            check_namespace(spec, namespace, &mut errors);
        }
        if !errors.is_empty() {
            return Err(invalid(names, &errors));
        }
        Ok(AccessSpec { subject: read_subject(spec), attributes: read_attributes(spec) })
    }
}

fn read_subject(spec: &Fields) -> UserInfo {
    let extra = string_lists(spec.get("extra")).into_iter();
    UserInfo {
        name: text(spec, "user").to_owned(),
        uid: text(spec, "uid").to_owned(),
        groups: strings(spec.get("groups")),
        extra: extra.map(|(key, list)| (key.to_lowercase(), list)).collect(),
    }
}

fn check_subject(spec: &Fields) -> Option<FieldError> {
    (text(spec, "user").is_empty() && strings(spec.get("groups")).is_empty()).then(|| {
        let path = FieldPath::new("spec").child("user");
        FieldError::invalid(&path, "", "at least one of user or group must be specified")
    })
}

/// Rejects metadata, except `managedFields`, `creationTimestamp` and `namespace`. As in kube-apiserver, the
/// namespace of a kind without namespaces is ignored.
fn check_metadata(object: &Object, namespaced: bool) -> Option<FieldError> {
    let meta = object.meta()?;
    let has_forbidden_field = meta.iter().any(|(field, value)| match field.as_str() {
        "managedFields" | "creationTimestamp" | "namespace" => false,
        _ => !(value.is_null() || value.as_str() == Some("") || value.as_object().is_some_and(Map::is_empty)),
    });
    let detail = if namespaced { "must be empty except for namespace" } else { "must be empty" };
    has_forbidden_field
        .then(|| FieldError::invalid(&FieldPath::new("metadata"), Value::Object(meta.clone()), detail))
}

/// Rejects a resource outside the namespace of the review, and non-resource attributes.
fn check_namespace(spec: &Fields, namespace: &str, errors: &mut Vec<FieldError>) {
    let path = FieldPath::new("spec");
    let (resource, non_resource) = attribute_objects(spec);
    if let Some(resource) = resource {
        let resource_namespace = text(resource, "namespace");
        if resource_namespace != namespace {
            let path = path.child("resourceAttributes").child("namespace");
            errors.push(FieldError::invalid(&path, resource_namespace, "must match metadata.namespace"));
        }
    }
    if let Some(non_resource) = non_resource {
        errors.push(FieldError::invalid_json(
            &path.child("nonResourceAttributes"),
            &format_path_attributes(non_resource),
            "disallowed on this kind of request",
        ));
    }
}
