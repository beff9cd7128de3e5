//! The access reviews (requirements A-REV-5 to A-REV-19).
//! The kinds are SelfSubjectAccessReview, SubjectAccessReview and LocalSubjectAccessReview.

use apimachinery::decision::{Verdict, explain_reason};
use apimachinery::field::{FieldError, FieldPath};
use apimachinery::object::{Map, Object, Value};
use apimachinery::status::Status;
use apimachinery::user::UserInfo;

use super::attributes::{check_attributes, format_path_attributes, read_attributes};
use super::{Review, ReviewResult, Reviewer, invalid, response_object, string_lists, strings};
use crate::authz::AuthzRequest;
use crate::mirror::MirrorNotReady;

/// Reviews the access of the requesting user.
pub(super) async fn answer_self(
    reviewer: &Reviewer<'_>,
    review: &Review<'_>,
    object: Object,
) -> Result<ReviewResult, MirrorNotReady> {
    let mut errors = check_attributes(spec(&object));
    errors.extend(check_metadata(&object, false));
    if !errors.is_empty() {
        return Ok(Err(invalid(reviewer.names, &errors)));
    }
    decide(reviewer, review, &object, "", review.user, Reader::Subject).await
}

/// Reviews the access of any user.
pub(super) async fn answer_any(
    reviewer: &Reviewer<'_>,
    review: &Review<'_>,
    object: Object,
) -> Result<ReviewResult, MirrorNotReady> {
    let mut errors = check_subject(spec(&object));
    errors.extend(check_metadata(&object, false));
    if !errors.is_empty() {
        return Ok(Err(invalid(reviewer.names, &errors)));
    }
    decide(reviewer, review, &object, "", &subject(spec(&object)), Reader::Reviewer).await
}

/// Reviews the access of any user in one namespace.
pub(super) async fn answer_local(
    reviewer: &Reviewer<'_>,
    review: &Review<'_>,
    object: Object,
) -> Result<ReviewResult, MirrorNotReady> {
    if !object.namespace().is_empty() && object.namespace() != review.namespace {
        let message = "the namespace of the provided object does not match the namespace sent on the request";
        return Ok(Err(Status::bad_request(message)));
    }
    let spec = spec(&object);
    let mut errors = check_subject(spec);
    errors.extend(check_metadata(&object, true));
    let path = FieldPath::new("spec");
    if let Some(resource) = object_at(spec, "resourceAttributes") {
        let namespace = resource.get("namespace").and_then(Value::as_str).unwrap_or_default();
        if namespace != review.namespace {
            let path = path.child("resourceAttributes").child("namespace");
            errors.push(FieldError::invalid(&path, namespace, "must match metadata.namespace"));
        }
    }
    if let Some(non_resource) = object_at(spec, "nonResourceAttributes") {
        let path = path.child("nonResourceAttributes");
        errors.push(FieldError::invalid_text(
            &path,
            &format_path_attributes(non_resource),
            "disallowed on this kind of request",
        ));
    }
    if !errors.is_empty() {
        return Ok(Err(invalid(reviewer.names, &errors)));
    }
    decide(reviewer, review, &object, review.namespace, &subject(spec), Reader::Reviewer).await
}

/// The reader of the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    /// The user of the reviewed request gets the reason of the decision, as in Kubernetes.
    Subject,
    /// A user who may create access reviews also gets the nearest misses of a denial.
    Reviewer,
}

async fn decide(
    reviewer: &Reviewer<'_>,
    review: &Review<'_>,
    object: &Object,
    namespace: &str,
    user: &UserInfo,
    reader: Reader,
) -> Result<ReviewResult, MirrorNotReady> {
    let attributes = read_attributes(spec(object));
    let request = AuthzRequest { user, attributes: &attributes, at_least: review.at_least };
    let mut decision = reviewer.active.authz.authorize(request).await?.decision;
    if reader == Reader::Reviewer && decision.verdict == Verdict::NoOpinion {
        decision.reason = explain_reason(&decision.reason, &reviewer.active.authz.nearest_misses(request)?);
    }
    let mut status = Map::new();
    status.insert("allowed".to_owned(), decision.allowed().into());
    if decision.verdict == Verdict::Deny {
        status.insert("denied".to_owned(), true.into());
    }
    for (field, text) in [("reason", decision.reason), ("evaluationError", decision.evaluation_error)] {
        if !text.is_empty() {
            status.insert(field.to_owned(), text.into());
        }
    }
    let spec = object.get("spec").cloned().unwrap_or_else(|| Value::Object(Map::new()));
    Ok(Ok(response_object(object, namespace, Some(spec), Value::Object(status))))
}

pub(super) fn spec(object: &Object) -> Option<&Map<String, Value>> {
    object.get("spec").and_then(Value::as_object)
}

fn object_at<'a>(spec: Option<&'a Map<String, Value>>, field: &str) -> Option<&'a Map<String, Value>> {
    spec?.get(field)?.as_object()
}

fn text<'a>(spec: Option<&'a Map<String, Value>>, field: &str) -> &'a str {
    spec.and_then(|spec| spec.get(field)).and_then(Value::as_str).unwrap_or_default()
}

pub(super) fn subject(spec: Option<&Map<String, Value>>) -> UserInfo {
    let field = |name: &str| spec.and_then(|spec| spec.get(name));
    UserInfo {
        name: text(spec, "user").to_owned(),
        uid: text(spec, "uid").to_owned(),
        groups: strings(field("groups")),
        extra: string_lists(field("extra"))
            .into_iter()
            .map(|(key, list)| (key.to_lowercase(), list))
            .collect(),
    }
}

fn check_subject(spec: Option<&Map<String, Value>>) -> Vec<FieldError> {
    let mut errors = check_attributes(spec);
    if text(spec, "user").is_empty() && strings(spec.and_then(|spec| spec.get("groups"))).is_empty() {
        let path = FieldPath::new("spec").child("user");
        errors.push(FieldError::invalid(&path, "", "at least one of user or group must be specified"));
    }
    errors
}

/// Rejects metadata, except fields that the server sets.
pub(super) fn check_metadata(object: &Object, namespaced: bool) -> Option<FieldError> {
    let meta = object.meta()?;
    let has_forbidden_field = meta.iter().any(|(field, value)| match field.as_str() {
        "managedFields" | "creationTimestamp" => false,
        "namespace" => !namespaced && value.as_str() != Some(""),
        _ => !(value.is_null() || value.as_str() == Some("") || value.as_object().is_some_and(Map::is_empty)),
    });
    let detail = if namespaced { "must be empty except for namespace" } else { "must be empty" };
    has_forbidden_field
        .then(|| FieldError::invalid(&FieldPath::new("metadata"), Value::Object(meta.clone()), detail))
}
