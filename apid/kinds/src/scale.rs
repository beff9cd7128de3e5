//! Subresource `scale`: desired and actual replica count in one form for all scalable kinds.
//!
//! # Contract
//!
//! [`of`] reads the Scale of an object with `spec.replicas`. The body of a write has the kind Scale.
//! [`validate`] checks the body and [`apply`] copies its replica count into the object. The write then
//! continues as an ordinary update with the subresource `scale`. The write ignores all other fields of the
//! body except the preconditions in its metadata.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::{Map, Object};
use serde_json::{Value, json};

use crate::table::cell::{self, NONE, PathReader};
use crate::table::{AGE, NAME, age};
use crate::{Column, Kind, Storage, Strategy, Table};

/// Kind of the bodies.
pub(crate) const KIND: Kind = Kind {
    group: "autoscaling",
    versions: &["v1"],
    kind: "Scale",
    resource: "scale",
    singular: "scale",
    short_names: &[],
    categories: &[],
    namespaced: true,
    storage: Storage::VirtualSubresource,
    verbs: &[],
    subresources: &[],
    schema: "autoscaling/v1.Scale",
    strategy: &Scale,
};

/// API version of the bodies. The group has the same name in all presets.
const API_VERSION: &str = "autoscaling/v1";

struct Scale;

impl Strategy for Scale {
    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::integer("Desired", "Pods wanted."),
        Column::integer("Available", "Pods there are."),
        AGE,
    ],
    cells: |scale, clock| {
        let replicas = |part: &str| json!(scale.integer(&format!("{part}.replicas")));
        vec![json!(scale.name()), replicas("spec"), replicas("status"), age(scale, clock)]
    },
};

/// Metadata fields that a Scale copies from its object.
const METADATA: [&str; 5] = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"];

/// Builds the Scale of an object.
pub fn of(object: &Object) -> Object {
    let shown =
        METADATA.iter().filter_map(|field| Some(((*field).to_owned(), object.meta()?.get(*field)?.clone())));
    let metadata: Map<String, Value> = shown.collect();
    let mut spec = Map::new();
    // Omitted if zero, like every number with omitempty.
    if let Some(replicas) = object.find("spec.replicas").and_then(Value::as_i64).filter(|r| *r != 0) {
        spec.insert("replicas".to_owned(), replicas.into());
    }
    let mut status = json!({"replicas": object.integer("status.replicas")});
    let selector = selector(object);
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

/// Serialized selector. Replication controllers select by labels, other kinds by a label selector.
fn selector(object: &Object) -> String {
    let parts = ["spec.selector.matchLabels", "spec.selector.matchExpressions"];
    let is = |part: &str| object.find(part).is_some_and(|value| !value.is_string());
    if parts.iter().any(|part| is(part)) {
        cell::selector(object, "spec.selector")
    } else {
        cell::labels(object, "spec.selector")
    }
}

/// Validates a Scale.
pub fn validate(scale: &Object) -> FieldErrors {
    let replicas = scale.integer("spec.replicas");
    let error = || {
        let detail = "must be greater than or equal to 0";
        FieldError::invalid(&FieldPath::new("spec.replicas"), replicas, detail)
    };
    (replicas < 0).then(error).into_iter().collect()
}

/// Copies the replica count of a Scale into the object.
pub fn apply(object: &mut Object, scale: &Object) {
    let replicas = scale.integer("spec.replicas");
    match object.get_mut("spec") {
        Some(Value::Object(spec)) => drop(spec.insert("replicas".to_owned(), replicas.into())),
        _ => object.set("spec", json!({"replicas": replicas})),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let scale =
                of(&object(json!({"kind": "X", "apiVersion": "apps/v1", "metadata": metadata_of_all,
                "spec": spec, "status": status})));
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
        let mut scale = object(json!({"spec": {"replicas": 5}, "status": {"replicas": 9}}));
        schema().conform(&mut scale).unwrap();
        assert!(validate(&scale).is_empty());
        apply(&mut deployment, &scale);
        assert_eq!(
            deployment.clone().into_value(),
            json!({"spec": {"replicas": 5, "paused": true}, "status": {"replicas": 3}})
        );
        apply(&mut deployment, &object(json!({})));
        assert_eq!(deployment.find("spec.replicas"), Some(&json!(0)), "a Scale without replicas sets zero");
        let errors = validate(&object(json!({"spec": {"replicas": -1}})));
        assert_eq!(
            errors.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["spec.replicas: Invalid value: -1: must be greater than or equal to 0"]
        );
    }
}
