//! Workloads of `apps/v1beta1`, `apps/v1beta2` and `extensions/v1beta1`.
//!
//! # Reference
//!
//! Both `v1beta1` versions default the selector and the labels from the pod template, and have other defaults
//! for update strategies and history limits. In `v1`, annotations without a domain replace the fields that
//! `v1` lacks.

use apimachinery::names::Names;
use apimachinery::object::{Map, Object, Value};
use serde_json::json;

use super::fields::{annotate, child_or_new, default, is_set, part, remove_annotation};
use super::{FieldChanges, Notes};

/// Annotation of `v1` for `spec.rollbackTo.revision` of a Deployment.
const ROLLBACK: &str = "deprecated.deployment.rollback.to";
/// Annotation of `v1` for `spec.templateGeneration` of a DaemonSet.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";
/// The value that means no limit in `extensions/v1beta1`.
const NO_LIMIT: i32 = i32::MAX;

pub(super) const VERSIONS: &[FieldChanges] = &[
    FieldChanges::new(
        ("extensions", "v1beta1", "Deployment"),
        upgrade_extensions_deployment,
        downgrade_deployment,
    ),
    FieldChanges::new(
        ("extensions", "v1beta1", "DaemonSet"),
        upgrade_extensions_daemon_set,
        downgrade_extensions_daemon_set,
    ),
    FieldChanges::new(
        ("extensions", "v1beta1", "ReplicaSet"),
        default_selector_and_labels,
        remove_null_selector,
    ),
    FieldChanges::new(("apps", "v1beta1", "Deployment"), upgrade_v1beta1_deployment, downgrade_deployment),
    FieldChanges::new(("apps", "v1beta1", "StatefulSet"), upgrade_v1beta1_stateful_set, remove_null_selector),
    FieldChanges::new(("apps", "v1beta1", "ReplicaSet"), default_selector_and_labels, remove_null_selector),
    FieldChanges::new(
        ("apps", "v1beta2", "DaemonSet"),
        |object, names, _| require_template_generation(object, names),
        require_template_generation,
    ),
];

/// Defaults the selector and the labels of the object from the labels of the pod template.
fn default_selector_and_labels(object: &mut Object, _names: &Names, notes: &mut Notes) {
    let Some(labels) =
        object.at(&["spec", "template", "metadata", "labels"]).filter(|v| v.is_object()).cloned()
    else {
        return;
    };
    if let Some(spec) = part(object, "spec")
        && default(spec, "selector", json!({"matchLabels": labels.clone()}))
    {
        notes.add(
            "spec.selector",
            "the old version selects by the labels of the template; v1 requires the selector",
        );
    }
    let metadata = object.meta_mut();
    let has_labels =
        metadata.get("labels").and_then(Value::as_object).is_some_and(|labels| !labels.is_empty());
    if !has_labels && labels.as_object().is_some_and(|labels| !labels.is_empty()) {
        metadata.insert("labels".to_owned(), labels);
    }
}

fn upgrade_v1beta1_deployment(object: &mut Object, names: &Names, notes: &mut Notes) {
    default_selector_and_labels(object, names, notes);
    if let Some(spec) = part(object, "spec")
        && default(spec, "revisionHistoryLimit", 2)
    {
        notes.add("spec.revisionHistoryLimit", "2 is the default of the old version; v1 has 10");
    }
    move_rollback(object, notes);
}

fn upgrade_extensions_deployment(object: &mut Object, names: &Names, notes: &mut Notes) {
    default_selector_and_labels(object, names, notes);
    if let Some(spec) = part(object, "spec") {
        for (field, new) in [("revisionHistoryLimit", 10), ("progressDeadlineSeconds", 600)] {
            if default(spec, field, NO_LIMIT) {
                notes.add(
                    &format!("spec.{field}"),
                    &format!("{NO_LIMIT} (no limit) is the default of the old version; v1 has {new}"),
                );
            }
        }
        if let Some(strategy) = child_or_new(spec, "strategy") {
            let is_rolling = match strategy.get("type") {
                None | Some(Value::Null) => true,
                Some(value) => matches!(value.as_str(), Some("" | "RollingUpdate")),
            };
            if (is_rolling || is_set(strategy, "rollingUpdate"))
                && let Some(update) = child_or_new(strategy, "rollingUpdate")
            {
                for field in ["maxUnavailable", "maxSurge"] {
                    if default(update, field, 1) {
                        notes.add(
                            &format!("spec.strategy.rollingUpdate.{field}"),
                            "1 is the default of the old version; v1 has 25%",
                        );
                    }
                }
            }
        }
    }
    move_rollback(object, notes);
}

/// Moves `spec.rollbackTo` to its annotation.
fn move_rollback(object: &mut Object, notes: &mut Notes) {
    remove_annotation(object, ROLLBACK);
    let Some(spec) = part(object, "spec") else { return };
    let Some(rollback) = spec.remove("rollbackTo").filter(Value::is_object) else { return };
    let revision = rollback.get("revision").and_then(Value::as_i64).unwrap_or(0);
    annotate(object, ROLLBACK, &revision.to_string());
    notes.add(
        "spec.rollbackTo",
        &format!("v1 has no such field; the revision is the annotation `{ROLLBACK}`"),
    );
}

/// Moves the annotation of a rollback to `spec.rollbackTo`.
fn downgrade_deployment(object: &mut Object, names: &Names) {
    let revision = remove_annotation(object, ROLLBACK).and_then(|text| text.parse::<i64>().ok());
    if let Some(revision) = revision
        && let Some(spec) = part(object, "spec")
    {
        let mut rollback = Map::new();
        if revision != 0 {
            rollback.insert("revision".to_owned(), revision.into());
        }
        spec.insert("rollbackTo".to_owned(), rollback.into());
    }
    remove_null_selector(object, names);
}

/// Removes an unset selector, which `v1` writes as null.
fn remove_null_selector(object: &mut Object, _names: &Names) {
    if let Some(spec) = part(object, "spec")
        && !is_set(spec, "selector")
    {
        spec.remove("selector");
    }
}

fn upgrade_extensions_daemon_set(object: &mut Object, names: &Names, notes: &mut Notes) {
    default_selector_and_labels(object, names, notes);
    remove_annotation(object, TEMPLATE_GENERATION);
    let mut generation = 0;
    if let Some(spec) = part(object, "spec") {
        generation = spec.remove("templateGeneration").and_then(|value| value.as_i64()).unwrap_or(0);
        if let Some(strategy) = child_or_new(spec, "updateStrategy") {
            default_on_delete(strategy, notes);
        }
    }
    annotate(object, TEMPLATE_GENERATION, &generation.to_string());
}

fn downgrade_extensions_daemon_set(object: &mut Object, names: &Names) {
    let generation = remove_annotation(object, TEMPLATE_GENERATION).and_then(|text| text.parse::<i64>().ok());
    if let Some(generation) = generation.filter(|generation| *generation != 0)
        && let Some(spec) = part(object, "spec")
    {
        spec.insert("templateGeneration".to_owned(), generation.into());
    }
    remove_null_selector(object, names);
}

/// Sets an absent annotation of the template generation to 0: objects of `v1beta2` always have the
/// annotation.
fn require_template_generation(object: &mut Object, _names: &Names) {
    if object.annotation(TEMPLATE_GENERATION).is_none() {
        annotate(object, TEMPLATE_GENERATION, "0");
    }
}

fn upgrade_v1beta1_stateful_set(object: &mut Object, names: &Names, notes: &mut Notes) {
    default_selector_and_labels(object, names, notes);
    if let Some(spec) = part(object, "spec")
        && let Some(strategy) = child_or_new(spec, "updateStrategy")
    {
        default_on_delete(strategy, notes);
    }
}

/// Sets the strategy type `OnDelete`, the default of both `v1beta1` versions, if the type is unset.
fn default_on_delete(strategy: &mut Map<String, Value>, notes: &mut Notes) {
    if strategy.get("type").is_none_or(|value| value.is_null() || value.as_str() == Some("")) {
        strategy.insert("type".to_owned(), "OnDelete".into());
        notes.add(
            "spec.updateStrategy.type",
            "OnDelete is the default of the old version; v1 has RollingUpdate",
        );
    }
}
