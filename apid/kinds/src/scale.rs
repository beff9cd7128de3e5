//! Subresource `scale`: desired and actual replica count in one form for all scalable kinds.
//!
//! # Contract
//!
//! [`of`] reads the Scale of an object: from `spec.replicas` of a built-in kind, from the
//! [`ScalePaths`](crate::custom::ScalePaths) of a custom kind. The body of a write has the kind Scale.
//! [`validate`] checks the body and [`apply`] copies its replica count into the object. The write then
//! continues as an ordinary update with the subresource `scale`. The write ignores all other fields of the
//! body except the preconditions in its metadata.

use apimachinery::field::{FieldErrors, quote};
use apimachinery::names::Names;
use apimachinery::object::{Map, Object};
use serde_json::{Value, json};

use crate::table::cell::{self, NONE, PathReader};
use crate::table::{AGE, NAME, Source};
use crate::validation::{Field, number};
use crate::{BuiltInKind, Column, Kind, NameRule, Storage, metadata};

/// Kind of the bodies of the subresource `scale`.
pub(crate) const KIND: BuiltInKind = BuiltInKind {
    storage: Storage::VirtualSubresource,
    verbs: &[],
    columns: &[
        NAME,
        Column::integer("Desired", "Desired number of pods.").with_source(Source::Number("spec.replicas")),
        Column::integer("Available", "Current number of pods.")
            .with_source(Source::Number("status.replicas")),
        AGE,
    ],
    ..BuiltInKind::namespaced("autoscaling/v1.Scale", "scale")
};

/// The `apiVersion` of a Scale. The group has the same name in all presets.
const API_VERSION: &str = "autoscaling/v1";

/// Metadata fields that a Scale copies from its object.
const METADATA: [&str; 5] = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"];

/// Builds the Scale of an object.
pub fn of(kind: &Kind, object: &Object) -> Object {
    let paths = kind.definition().and_then(|definition| definition.scale.as_ref());
    let (desired, actual, selector) = match paths {
        None => {
            let desired = object.find("spec.replicas").and_then(Value::as_i64);
            (desired, object.integer("status.replicas"), selector(object))
        }
        Some(paths) => {
            let number = |path: &[String]| value_at(object, path).and_then(Value::as_i64);
            let selector = paths.label_selector.as_deref().and_then(|path| value_at(object, path)?.as_str());
            let selector = selector.filter(|text| !text.is_empty()).unwrap_or(NONE).to_owned();
            (number(&paths.spec_replicas), number(&paths.status_replicas).unwrap_or(0), selector)
        }
    };
    let metadata_fields =
        METADATA.iter().filter_map(|field| Some(((*field).to_owned(), object.meta()?.get(*field)?.clone())));
    let metadata: Map<String, Value> = metadata_fields.collect();
    let mut spec = Map::new();
    // A Scale omits zero replicas, because the field has `omitempty` in Go.
    if let Some(replicas) = desired.filter(|replicas| *replicas != 0) {
        spec.insert("replicas".to_owned(), replicas.into());
    }
    let mut status = json!({"replicas": actual});
    if selector != NONE
        && let Value::Object(status) = &mut status
    {
        status.insert("selector".to_owned(), selector.into());
    }
    let mut scale = Object::default();
    scale.set_type(API_VERSION, KIND.kind);
    scale.set("metadata", metadata);
    scale.set("spec", spec);
    scale.set("status", status);
    scale
}

fn value_at<'a>(object: &'a Object, path: &[String]) -> Option<&'a Value> {
    let (first, rest) = path.split_first()?;
    rest.iter().try_fold(object.get(first)?, |value, field| value.get(field))
}

/// The error of a custom object without its desired number of replicas. The path has a leading dot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the spec replicas field {} does not exist", quote(path))]
pub struct MissingReplicas {
    path: String,
}

/// Checks that a Scale can represent the object: a custom object must have its desired number of replicas.
///
/// # Errors
///
/// The object has no such field.
pub fn check(kind: &Kind, object: &Object) -> Result<(), MissingReplicas> {
    match kind.definition().and_then(|definition| definition.scale.as_ref()) {
        Some(paths) if value_at(object, &paths.spec_replicas).is_none() => {
            Err(MissingReplicas { path: format!(".{}", paths.spec_replicas.join(".")) })
        }
        _ => Ok(()),
    }
}

/// Serialized selector. Replication controllers select by labels, other kinds by a label selector.
fn selector(object: &Object) -> String {
    let parts = ["spec.selector.matchLabels", "spec.selector.matchExpressions"];
    let is_structure = |part: &str| object.find(part).is_some_and(|value| !value.is_string());
    if parts.iter().any(|part| is_structure(part)) {
        cell::selector(object, "spec.selector")
    } else {
        cell::labels(object, "spec.selector")
    }
}

/// Validates a Scale for an object of a kind. A Scale of a custom object has no rules of its own: the rules of the
/// object limit the number of replicas.
pub fn validate(kind: &Kind, scale: &Object, names: &Names) -> FieldErrors {
    if kind.is_custom() {
        return FieldErrors::new();
    }
    let rules = metadata::Rules {
        name: NameRule::Subdomain,
        namespaced: true,
        standard_finalizers: Some(metadata::standard_finalizers(names)),
    };
    let mut errors = metadata::validate(scale, rules);
    number::check_not_negative(&Field::new(scale.find("spec.replicas"), "spec.replicas"), &mut errors);
    errors
}

/// Copies the replica count of a Scale into the object.
pub fn apply(kind: &Kind, object: &mut Object, scale: &Object) {
    let replicas = scale.integer("spec.replicas");
    if let Some(definition) = kind.definition() {
        if let Some(paths) = &definition.scale {
            set_at(&mut object.0, &paths.spec_replicas, replicas);
        }
        return;
    }
    match object.get_mut("spec") {
        Some(Value::Object(spec)) => drop(spec.insert("replicas".to_owned(), replicas.into())),
        _ => object.set("spec", json!({"replicas": replicas})),
    }
}

/// Sets a number. Creates missing maps on the path, and replaces values of another type by maps.
fn set_at(map: &mut Map<String, Value>, path: &[String], number: i64) {
    match path {
        [] => {}
        [last] => drop(map.insert(last.clone(), number.into())),
        [first, rest @ ..] => {
            let next = map.entry(first.as_str()).or_insert_with(|| json!({}));
            if !next.is_object() {
                *next = json!({});
            }
            if let Value::Object(next) = next {
                set_at(next, rest, number);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;
    use crate::EnabledVersions;

    fn built_in() -> Kind {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        Kind::built_in(&KIND, &names, &EnabledVersions::default())
    }

    fn object(value: Value) -> Object {
        Object::from_value(value).unwrap()
    }

    fn schema() -> &'static schema::Schema {
        schema::Schema::of(KIND.schema).unwrap()
    }

    #[test]
    fn scale_has_desired_and_actual_replicas() {
        let metadata = json!({"name": "w", "namespace": "team", "uid": "u", "resourceVersion": "7",
            "creationTimestamp": "2024-01-02T03:04:05Z"});
        for (spec, status, want_spec, want_status) in [
            (
                json!({"replicas": 3, "selector": {"matchLabels": {"app": "w"}, "matchExpressions": [
                    {"key": "x", "operator": "DoesNotExist"}]}}),
                json!({"replicas": 2, "readyReplicas": 1}),
                json!({"replicas": 3}),
                json!({"replicas": 2, "selector": "app=w,!x"}),
            ),
            (
                json!({"replicas": 1, "selector": {"matchExpressions": [
                    {"key": "app", "operator": "In", "values": ["web", "b"]}]}}),
                json!({}),
                json!({"replicas": 1}),
                json!({"replicas": 0, "selector": "app in (b,web)"}),
            ),
            // A replication controller; a label key may equal a field name of a label selector.
            (
                json!({"replicas": 0, "selector": {"matchLabels": "a"}}),
                json!({"replicas": 1}),
                json!({}),
                json!({"replicas": 1, "selector": "matchLabels=a"}),
            ),
            (json!({}), json!({}), json!({}), json!({"replicas": 0})),
        ] {
            let mut metadata_of_all = metadata.clone();
            metadata_of_all["labels"] = json!({"not": "shown"});
            let scale = of(
                &built_in(),
                &object(json!({"kind": "X", "apiVersion": "apps/v1", "metadata": metadata_of_all,
                "spec": spec, "status": status})),
            );
            let want = json!({"kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
                "spec": want_spec, "status": want_status});
            assert_eq!(scale.clone().into_value(), want);
            let mut again = scale.clone();
            assert_eq!(schema().conform(&mut again).unwrap().unknown, [""; 0]);
            assert_eq!(again, scale, "the Scale is in stored form");
        }
    }

    #[test]
    fn scale_write_changes_replicas_only() {
        let mut deployment =
            object(json!({"spec": {"replicas": 3, "paused": true}, "status": {"replicas": 3}}));
        let identity = json!({"name": "w", "namespace": "team"});
        let mut scale =
            object(json!({"metadata": identity, "spec": {"replicas": 5}, "status": {"replicas": 9}}));
        schema().conform(&mut scale).unwrap();
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        assert!(validate(&built_in(), &scale, &names).is_empty());
        apply(&built_in(), &mut deployment, &scale);
        assert_eq!(
            deployment.clone().into_value(),
            json!({"spec": {"replicas": 5, "paused": true}, "status": {"replicas": 3}})
        );
        apply(&built_in(), &mut deployment, &object(json!({})));
        assert_eq!(deployment.find("spec.replicas"), Some(&json!(0)), "a Scale without replicas sets zero");
        let finalizers = json!({"name": "w", "namespace": "team", "finalizers": ["bad"]});
        let errors =
            validate(&built_in(), &object(json!({"metadata": finalizers, "spec": {"replicas": -1}})), &names);
        assert_eq!(
            errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
            [
                "metadata.finalizers[0]: Invalid value: \"bad\": name is neither a standard finalizer name nor is it fully \
                 qualified",
                "spec.replicas: Invalid value: -1: must be greater than or equal to 0"
            ]
        );
    }
}
