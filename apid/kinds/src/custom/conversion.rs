//! Conversion webhook of a custom kind, and the ConversionReview that apid exchanges with the webhook.
//!
//! # Contract
//!
//! [`ConversionWebhook::review`] builds the request for a batch of objects, [`ConversionWebhook::converted`]
//! checks the response and returns the converted objects in the order of the request. The webhook can change
//! labels, annotations and all fields outside `metadata` except `kind`. [`ConversionWebhook::converted`]
//! restores all other metadata.
//!
//! # Errors
//!
//! An error contains a text for the client, in the words of kube-apiserver, such as
//! `conversion webhook for TYPE failed: REASON`. The error of an unusable response is a [`ResponseError`],
//! which also contains the type of the defect, for metrics.
//!
//! # Invariants
//!
//! INVARIANT (same object): a converted object has the kind, name, namespace and uid of the original object.

use apimachinery::field::{FieldErrors, aggregate};
use apimachinery::gvk::GroupVersion;
use apimachinery::names::Names;
use apimachinery::object::{Map, Object, Value};
use serde_json::json;

use crate::metadata;
use crate::table::cell::PathReader;
use crate::validation::{Field, text};

/// Versions of the ConversionReview that apid sends.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];
/// Group of the ConversionReview without its domain.
const GROUP: &str = "apiextensions";
const KIND: &str = "ConversionReview";

/// Type of the defect of an unusable response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseDefect {
    /// The response is not a ConversionReview that reports success.
    Malformed,
    /// The number of objects differs from that of the request.
    Partial,
    /// A converted object or its metadata is invalid.
    InvalidObject,
}

/// The reason why a response is unusable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseError {
    /// The type of the defect.
    pub defect: ResponseDefect,
    /// The text for the client.
    pub message: String,
}

impl ResponseError {
    fn new(defect: ResponseDefect, message: String) -> Self {
        ResponseError { defect, message }
    }
}

/// The error of objects for which there is no request to the webhook.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReviewError {
    /// The definition does not have the version of an object.
    #[error("request to convert CR from an invalid group/version: {0}")]
    UnknownVersion(String),
    /// apid knows none of the listed versions of the review.
    #[error("no supported conversion review versions")]
    NoReviewVersion,
}

/// The conversion webhook of a definition.
#[derive(Debug, PartialEq)]
pub struct ConversionWebhook {
    client_config: Value,
    /// The first of `conversionReviewVersions` that apid knows; None if apid knows none.
    review_version: Option<&'static str>,
    /// The `apiVersion` of all versions of the definition.
    api_versions: Vec<String>,
}

impl ConversionWebhook {
    /// Reads the conversion webhook of a definition; None if the conversion strategy is not `Webhook`.
    pub fn of(definition: &Object) -> Option<Self> {
        let conversion = definition.find("spec.conversion")?;
        if conversion.text("strategy") != "Webhook" {
            return None;
        }
        let review_versions =
            conversion.items("webhook.conversionReviewVersions").iter().filter_map(Value::as_str);
        let review_version = review_versions
            .filter_map(|version| REVIEW_VERSIONS.into_iter().find(|known| *known == version))
            .next();
        let group = definition.text("spec.group");
        let versions = definition.items("spec.versions").iter();
        Some(ConversionWebhook {
            client_config: conversion.find("webhook.clientConfig").cloned().unwrap_or_default(),
            review_version,
            api_versions: versions.map(|version| format!("{group}/{}", version.text("name"))).collect(),
        })
    }

    /// The `clientConfig`: `url` or `service`, and `caBundle`.
    pub fn client_config(&self) -> &Value {
        &self.client_config
    }

    /// Returns the request that converts objects to a version.
    ///
    /// # Errors
    ///
    /// See [`ReviewError`].
    pub fn review(
        &self,
        objects: &[Object],
        api_version: &str,
        uid: &str,
        names: &Names,
    ) -> Result<Value, ReviewError> {
        if let Some(object) = objects.iter().find(|object| !self.has_version(object.api_version())) {
            return Err(ReviewError::UnknownVersion(object.api_version().to_owned()));
        }
        let review_version = self.review_version.ok_or(ReviewError::NoReviewVersion)?;
        let objects: Vec<&Map<String, Value>> = objects.iter().map(|object| &object.0).collect();
        Ok(json!({
            "kind": KIND,
            "apiVersion": format!("{}/{review_version}", names.group(GROUP)),
            "request": {"uid": uid, "desiredAPIVersion": api_version, "objects": objects},
            "response": null,
        }))
    }

    /// Returns the objects of a response to the request for `objects`.
    ///
    /// # Errors
    ///
    /// The webhook reports a failure, or the response is malformed or changes the identity of an object.
    pub fn converted(
        &self,
        objects: &[Object],
        api_version: &str,
        uid: &str,
        response: Value,
        names: &Names,
    ) -> Result<Vec<Object>, ResponseError> {
        let type_label = type_of(objects);
        let converted = self
            .read(uid, response, names)
            .map_err(|reason| ResponseError::new(ResponseDefect::Malformed, failure(objects, &reason)))?;
        if converted.len() != objects.len() {
            let (found, expected) = (converted.len(), objects.len());
            let message =
                format!("conversion webhook for {type_label} returned {found} objects, expected {expected}");
            return Err(ResponseError::new(ResponseDefect::Partial, message));
        }
        let is_single = objects.len() == 1;
        let pairs = objects.iter().zip(converted).enumerate();
        let check = |(index, (original, converted)): (usize, (&Object, Value))| {
            let invalid = |part: &str, reason: String| {
                let position = if is_single { String::new() } else { format!(" at index {index}") };
                let part = match (part, is_single) {
                    ("object", false) => "converted object",
                    ("metadata", false) => "metadata in object",
                    (part, _) => part,
                };
                format!("conversion webhook for {type_label} returned invalid {part}{position}: {reason}")
            };
            let mut object = Object::from_value(converted)
                .map_err(|_| invalid("object", "the object is not a JSON object".to_owned()))?;
            check_type(original, &object, api_version).map_err(|reason| match is_single {
                true => {
                    format!(
                        "conversion webhook for {type_label} returned invalid object at index 0: {reason}"
                    )
                }
                false => invalid("object", reason),
            })?;
            check_identity(original, &object).map_err(|reason| invalid("object", reason))?;
            restore_metadata(original, &mut object).map_err(|reason| invalid("metadata", reason))?;
            Ok(object)
        };
        let checked: Result<Vec<Object>, String> = pairs.map(check).collect();
        checked.map_err(|message| ResponseError::new(ResponseDefect::InvalidObject, message))
    }

    fn has_version(&self, api_version: &str) -> bool {
        self.api_versions.iter().any(|known| known == api_version)
    }

    /// Returns `convertedObjects` of a successful response.
    fn read(&self, uid: &str, mut response: Value, names: &Names) -> Result<Vec<Value>, String> {
        let group = names.group(GROUP);
        let is_v1 = self.review_version == Some("v1");
        let expected = format!("{group}/{}", self.review_version.unwrap_or_default());
        let (kind, version) = (response.text("kind"), response.text("apiVersion"));
        if is_v1 && (kind, version) != (KIND, expected.as_str()) {
            let version = if version.contains('/') { version.to_owned() } else { format!("/{version}") };
            return Err(format!(
                "expected webhook response of {expected}, Kind={KIND}, got {version}, Kind={kind}"
            ));
        }
        let Some(Value::Object(mut response)) = response.get_mut("response").map(Value::take) else {
            return Err("no response provided".to_owned());
        };
        let text = |field: &str| response.get(field).and_then(Value::as_str).unwrap_or("");
        if is_v1 && text("uid") != uid {
            return Err(format!("expected response.uid={uid:?}, got {:?}", text("uid")));
        }
        let result = response.get("result").cloned().unwrap_or_default();
        match (result.text("status"), result.text("message")) {
            ("Success", _) => {}
            (status, "") => return Err(format!("response.result.status was '{status}', not 'Success'")),
            (_, message) => return Err(message.to_owned()),
        }
        match response.remove("convertedObjects") {
            Some(Value::Array(objects)) => Ok(objects),
            _ => Ok(Vec::new()),
        }
    }
}

/// Returns the error text of a failed webhook call for a batch of objects.
pub fn failure(objects: &[Object], reason: &str) -> String {
    format!("conversion webhook for {} failed: {reason}", type_of(objects))
}

/// Formats the type of the first object: `example.com/v1, Kind=Widget`.
fn type_of(objects: &[Object]) -> String {
    objects
        .first()
        .map_or_else(String::new, |object| format!("{}, Kind={}", object.api_version(), object.kind()))
}

fn check_type(original: &Object, converted: &Object, api_version: &str) -> Result<(), String> {
    if converted.api_version() != api_version {
        let found = GroupVersion::parse(converted.api_version()).map(|version| version.to_string());
        let found = found.unwrap_or_default();
        return Err(format!("invalid groupVersion (expected {api_version}, received {found})"));
    }
    if converted.kind() != original.kind() {
        let (expected, found) = (original.kind(), converted.kind());
        return Err(format!("invalid kind (expected {expected}, received {found})"));
    }
    Ok(())
}

fn check_identity(original: &Object, converted: &Object) -> Result<(), String> {
    let fields = [
        ("name", original.name(), converted.name()),
        ("namespace", original.namespace(), converted.namespace()),
        ("UID", original.uid(), converted.uid()),
    ];
    match fields.into_iter().find(|(_, expected, found)| expected != found) {
        Some((field, expected, found)) => Err(format!("must have the same {field}: {expected} != {found}")),
        None => Ok(()),
    }
}

/// Replaces the metadata by that of the original object, except labels and annotations.
fn restore_metadata(original: &Object, converted: &mut Object) -> Result<(), String> {
    let returned = match converted.remove("metadata") {
        Some(Value::Object(returned)) => returned,
        Some(other) => {
            return Err(format!("invalid metadata of type {} in converted object", type_name(&other)));
        }
        None => return Err("missing metadata in converted object".to_owned()),
    };
    let mut metadata = original.meta().cloned().unwrap_or_default();
    for field in ["labels", "annotations"] {
        let old_value = metadata.remove(field);
        match returned.get(field) {
            None | Some(Value::Null) => {}
            Some(value @ Value::Object(texts)) => {
                if let Some((key, value)) = texts.iter().find(|(_, value)| !value.is_string()) {
                    let found = type_name(value);
                    return Err(format!(
                        "metadata.{field}[{key}] must be a string, but is {found} in converted object"
                    ));
                }
                if old_value.as_ref().and_then(Value::as_object) != Some(texts) {
                    let errors = validate_texts(field, value);
                    if !errors.is_empty() {
                        return Err(aggregate(&errors));
                    }
                }
                metadata.insert(field.to_owned(), Value::Object(texts.clone()));
            }
            Some(other) => {
                let found = type_name(other);
                return Err(format!("invalid metadata.{field} of type {found} in converted object"));
            }
        }
    }
    converted.set("metadata", metadata);
    Ok(())
}

fn validate_texts(field: &str, texts: &Value) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if field == "labels" {
        text::check_labels(&Field::new(Some(texts), "metadata.labels"), &mut errors);
    } else {
        metadata::validate_annotations(&Field::new(Some(texts), "metadata.annotation"), &mut errors);
    }
    errors
}

/// Returns the Go name of a JSON type, which messages of kube-apiserver show.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::Preset;

    fn webhook(versions: &[&str]) -> ConversionWebhook {
        let webhook = json!({
            "clientConfig": {"url": "https://c"}, "conversionReviewVersions": versions,
        });
        let definition = json!({"spec": {
            "group": "g.io", "versions": [{"name": "v1"}, {"name": "v2"}],
            "conversion": {"strategy": "Webhook", "webhook": webhook},
        }});
        ConversionWebhook::of(&Object::from_value(definition).unwrap()).unwrap()
    }

    fn object(version: &str, name: &str) -> Object {
        Object::from_value(json!({"apiVersion": format!("g.io/{version}"), "kind": "W", "spec": {},
            "metadata": {"name": name, "uid": "1", "labels": {"a": "b"}, "generation": 3}}))
        .unwrap()
    }

    #[track_caller]
    fn check(change: impl Fn(&mut Value), expected: Result<Value, (ResponseDefect, &str)>) {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let webhook = webhook(&["v3", "v1"]);
        let originals = [object("v1", "x")];
        let request = webhook.review(&originals, "g.io/v2", "u", &names).unwrap();
        assert_eq!(request["apiVersion"], "apiextensions.k8s.io/v1");
        assert_eq!(request["request"]["desiredAPIVersion"], "g.io/v2");
        let mut converted = request["request"]["objects"][0].clone();
        converted["apiVersion"] = json!("g.io/v2");
        let mut response = json!({"kind": "ConversionReview", "apiVersion": "apiextensions.k8s.io/v1",
            "response": {"uid": "u", "result": {"status": "Success"}, "convertedObjects": [converted]}});
        change(&mut response);
        let found = webhook.converted(&originals, "g.io/v2", "u", response, &names);
        match expected {
            Ok(expected) => assert_eq!(found.unwrap()[0].clone().into_value(), expected),
            Err((defect, reason)) => {
                let message = format!("conversion webhook for g.io/v1, Kind=W {reason}");
                assert_eq!(found.unwrap_err(), ResponseError { defect, message });
            }
        }
    }

    #[test]
    fn conversion_keeps_identity_and_metadata_except_labels_and_annotations() {
        let change = |response: &mut Value| {
            let object = &mut response["response"]["convertedObjects"][0];
            object["spec"] = json!({"n": 1});
            object["metadata"] = json!({"name": "x", "uid": "1", "generation": 9, "finalizers": ["x/y"],
                "annotations": {"k": "v"}});
        };
        check(
            change,
            Ok(json!({"apiVersion": "g.io/v2", "kind": "W", "spec": {"n": 1},
                "metadata": {"name": "x", "uid": "1", "generation": 3, "annotations": {"k": "v"}}})),
        );
    }

    #[test]
    fn response_of_converter_that_breaks_the_protocol_is_a_failure() {
        use ResponseDefect::{InvalidObject, Malformed, Partial};

        let object = |field: &'static str, value: Value| {
            move |response: &mut Value| response["response"]["convertedObjects"][0][field] = value.clone()
        };
        let metadata = |field: &'static str, value: Value| {
            move |response: &mut Value| {
                response["response"]["convertedObjects"][0]["metadata"][field] = value.clone();
            }
        };
        check(|r| r["response"] = Value::Null, Err((Malformed, "failed: no response provided")));
        check(
            |r| r["apiVersion"] = json!("v1"),
            Err((
                Malformed,
                "failed: expected webhook response of apiextensions.k8s.io/v1, Kind=ConversionReview, \
                 got /v1, Kind=ConversionReview",
            )),
        );
        check(
            |r| r["response"]["uid"] = json!("w"),
            Err((Malformed, "failed: expected response.uid=\"u\", got \"w\"")),
        );
        check(
            |r| r["response"]["result"] = json!({"status": "Failed", "message": "no way"}),
            Err((Malformed, "failed: no way")),
        );
        check(
            |r| r["response"]["result"] = json!({}),
            Err((Malformed, "failed: response.result.status was '', not 'Success'")),
        );
        check(
            |r| r["response"]["convertedObjects"] = json!([]),
            Err((Partial, "returned 0 objects, expected 1")),
        );
        check(
            object("apiVersion", json!("g.io/v1")),
            Err((
                InvalidObject,
                "returned invalid object at index 0: invalid groupVersion (expected g.io/v2, received g.io/v1)",
            )),
        );
        check(
            object("kind", json!("V")),
            Err((InvalidObject, "returned invalid object at index 0: invalid kind (expected W, received V)")),
        );
        check(
            metadata("name", json!("y")),
            Err((InvalidObject, "returned invalid object: must have the same name: x != y")),
        );
        check(
            metadata("uid", json!("2")),
            Err((InvalidObject, "returned invalid object: must have the same UID: 1 != 2")),
        );
        check(
            metadata("labels", json!({"a": 1})),
            Err((
                InvalidObject,
                "returned invalid metadata: metadata.labels[a] must be a string, but is int64 in converted object",
            )),
        );
        check(
            metadata("labels", json!("x")),
            Err((
                InvalidObject,
                "returned invalid metadata: invalid metadata.labels of type string in converted object",
            )),
        );
        check(
            object("metadata", json!([])),
            Err((InvalidObject, "returned invalid object: must have the same name: x != ")),
        );
    }

    #[test]
    fn review_needs_known_versions_of_objects_and_review() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let foreign = [object("v9", "x")];
        assert_eq!(
            webhook(&["v1"]).review(&foreign, "g.io/v2", "u", &names).unwrap_err().to_string(),
            "request to convert CR from an invalid group/version: g.io/v9"
        );
        let unknown = webhook(&["v7"]).review(&[object("v1", "x")], "g.io/v2", "u", &names);
        assert_eq!(unknown.unwrap_err().to_string(), "no supported conversion review versions");
    }
}
