//! The review resources: identity and access checks as API objects (requirements A-REV, A-SSR),
//! and their explanations.
//!
//! # Contract
//!
//! apid has decoded and pruned the object. A review validates the object and returns it with a new `status`,
//! or returns an error Status. Nothing is stored.
//!
//! Each kind has one file and one line in [`Reviewer::review`]. A review may wait, because authenticators and
//! authorizers may wait for remote services.
//!
//! # Invariants
//!
//! INVARIANT (bounded reviews): a review beyond the limits of [`apimachinery::review`] returns 422 directly
//! after JSON decoding. The validation of selectors stops at [`MAX_ERRORS`] errors, and takes linear time.

mod access;
mod access_explanation;
mod access_spec;
mod attributes;
mod configuration_access;
mod rules;
mod self_subject;
mod token;
mod token_explanation;
mod token_spec;

use std::collections::BTreeMap;

use apimachinery::clock::Clock;
use apimachinery::field::FieldError;
use apimachinery::gvk::GroupKind;
use apimachinery::names::Names;
use apimachinery::object::{Map, Object, Value};
use apimachinery::review::check_sizes;
use apimachinery::status::Status;
use apimachinery::user::UserInfo;
use serde_json::json;

use crate::active_config::ActiveConfig;
use crate::mirror::{AtLeast, MirrorNotReady};

/// The number of validation errors at which the validation of the selectors of one review stops.
const MAX_ERRORS: usize = 1_000;

/// One review request.
#[derive(Clone, Copy, Debug)]
pub struct Review<'a> {
    /// The plural resource name in lower case.
    pub resource: &'a str,
    /// The namespace of the path; empty for cluster-wide reviews.
    pub namespace: &'a str,
    /// The requesting user.
    pub user: &'a UserInfo,
    /// The review object in JSON.
    pub object: &'a [u8],
    /// The mirror of the apid that sent the review, at its minimum revision.
    pub at_least: AtLeast<'a>,
    /// The request id for the log.
    pub request_id: &'a str,
}

/// The reason why a review has no object with a `status`.
#[derive(Debug, thiserror::Error)]
pub enum ReviewError {
    /// The mirror is older than the minimum revision of the review.
    #[error(transparent)]
    MirrorNotReady(#[from] MirrorNotReady),
    /// The review resource is unknown.
    #[error("reviews of `{0}` are not implemented")]
    UnknownResource(String),
    /// The review is invalid, or the client may not create it; the client gets this Status.
    #[error("{}", .0.message)]
    Status(Status),
}

impl From<Status> for ReviewError {
    fn from(status: Status) -> Self {
        ReviewError::Status(status)
    }
}

/// The object with its `status`.
pub type ReviewResult = Result<Object, ReviewError>;

/// Performs reviews with one configuration.
#[derive(Clone, Copy)]
pub struct Reviewer<'a> {
    /// The names preset.
    pub names: &'a Names,
    /// The active authenticators and authorizers.
    pub active: &'a ActiveConfig,
    /// The clock.
    pub clock: &'a dyn Clock,
}

impl std::fmt::Debug for Reviewer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reviewer").field("active", self.active).finish_non_exhaustive()
    }
}

impl Reviewer<'_> {
    /// Performs one review.
    ///
    /// # Errors
    ///
    /// [`ReviewError`].
    pub async fn review(&self, review: Review<'_>) -> ReviewResult {
        let value: Value =
            serde_json::from_slice(review.object).map_err(|error| Status::bad_request(error.to_string()))?;
        let object =
            Object::from_value(value).map_err(|_| Status::bad_request("the review is not an object"))?;
        check_sizes(self.names, &object).map_err(|status| *status)?;
        match review.resource {
            "tokenreviews" => token::answer(self, &review, object).await,
            "selfsubjectreviews" => Ok(self_subject::answer(&review, &object)),
            "selfsubjectaccessreviews" => access::answer_self(self, &review, object).await,
            "subjectaccessreviews" => access::answer_subject(self, &review, object).await,
            "localsubjectaccessreviews" => access::answer_local(self, &review, object).await,
            access_explanation::RESOURCE => access_explanation::answer(self, &review, object).await,
            "tokenexplanations" => token_explanation::answer(self, &review, object).await,
            "selfsubjectrulesreviews" => rules::answer(self, &review, &object),
            other => Err(ReviewError::UnknownResource(other.to_owned())),
        }
    }
}

/// Returns a 422 whose message has an empty kind, as in Kubernetes, because clients show the message.
fn invalid(names: &Names, errors: &[FieldError]) -> Status {
    let group_kind = GroupKind { group: names.group("authorization"), kind: String::new() };
    Status::invalid(&group_kind, "", errors)
}

/// Builds the response: type, metadata with the namespace, spec if any, and status.
fn response_object(object: &Object, namespace: &str, spec: Option<Value>, status: Value) -> Object {
    let mut answer = Object::default();
    answer.set_type(object.api_version(), object.kind());
    answer.set("metadata", if namespace.is_empty() { json!({}) } else { json!({"namespace": namespace}) });
    if let Some(spec) = spec {
        answer.set("spec", spec);
    }
    answer.set("status", status);
    answer
}

/// Converts a user to its API form.
fn user_json(user: &UserInfo) -> Value {
    let mut json = Map::new();
    for (field, text) in [("username", &user.name), ("uid", &user.uid)] {
        if !text.is_empty() {
            json.insert(field.to_owned(), text.as_str().into());
        }
    }
    if !user.groups.is_empty() {
        json.insert("groups".to_owned(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        json.insert("extra".to_owned(), json!(user.extra));
    }
    Value::Object(json)
}

/// Returns the strings of a JSON list; other items are skipped.
fn strings(list: Option<&Value>) -> Vec<String> {
    let items = list.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Returns a JSON object of lists of strings; other values are empty lists.
fn string_lists(map: Option<&Value>) -> BTreeMap<String, Vec<String>> {
    let entries = map.and_then(Value::as_object).into_iter().flatten();
    entries.map(|(key, list)| (key.clone(), strings(Some(list)))).collect()
}

#[cfg(test)]
mod tests;
