//! Event of the group `events`: the events of the core group with other field names.
//!
//! # Reference
//!
//! Requirements D-RM125-11 to -26. This group requires more fields than the core group. Validation errors use
//! the field names of the core group, except for the reporting controller.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::names::Names;
use apimachinery::object::Object;
use serde_json::Value;

use crate::conversion::rename;
use crate::core::EVENT;
use crate::table::cell::PathReader;
use crate::validation::Field;
use crate::validation::internal;
use crate::{BuiltInKind, Context, Conversion, NameRule, Storage, Strategy, metadata};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["ev"],
    storage: Storage::Shared(""),
    conversion: Some(&Event),
    columns: EVENT.columns,
    cells: EVENT.cells,
    strategy: &Event,
    ..BuiltInKind::namespaced("events/v1.Event", "events")
};

/// Field names in this group and in the core group.
const FIELDS: [(&str, &str); 7] = [
    ("regarding", "involvedObject"),
    ("note", "message"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

/// Selectable fields: names in this group and in the core group.
const SELECTABLE: [(&str, &str); 10] = [
    ("regarding.kind", "involvedObject.kind"),
    ("regarding.namespace", "involvedObject.namespace"),
    ("regarding.name", "involvedObject.name"),
    ("regarding.uid", "involvedObject.uid"),
    ("regarding.apiVersion", "involvedObject.apiVersion"),
    ("regarding.resourceVersion", "involvedObject.resourceVersion"),
    ("regarding.fieldPath", "involvedObject.fieldPath"),
    ("reason", "reason"),
    ("reportingController", "reportingComponent"),
    ("type", "type"),
];

/// Fields that an update through this group must not change.
/// Only `series` and the deprecated counters are mutable.
/// kube-apiserver compares the reason twice.
const IMMUTABLE: [&str; 14] = [
    "involvedObject",
    "reason",
    "message",
    "source",
    "firstTimestamp",
    "lastTimestamp",
    "count",
    "reason",
    "type",
    "eventTime",
    "action",
    "related",
    CONTROLLER,
    "reportingInstance",
];

/// Field with the name of the reporting controller in the core group.
const CONTROLLER: &str = "reportingComponent";

struct Event;

impl Strategy for Event {
    fn validate(&self, event: &Object, ctx: &Context<'_>) -> FieldErrors {
        let rules = metadata::Rules {
            name: NameRule::Subdomain,
            namespaced: true,
            standard_finalizers: Some(metadata::standard_finalizers(ctx.names)),
        };
        let mut errors = metadata::validate(event, rules);
        errors.extend(validate_series(event));
        if event.text("eventTime").is_empty() {
            errors.push(FieldError::required(&FieldPath::new("eventTime"), ""));
        }
        let mut push_invalid = |field: &str, detail: &str| {
            errors.push(FieldError::invalid(&FieldPath::new(field), "", detail));
        };
        if !matches!(event.text("type"), "Normal" | "Warning") {
            push_invalid("type", &format!("has invalid value: {}", event.text("type")));
        }
        let needs_unset = "needs to be unset";
        for field in ["firstTimestamp", "lastTimestamp"] {
            if !event.text(field).is_empty() {
                push_invalid(field, needs_unset);
            }
        }
        if event.integer("count") != 0 {
            push_invalid("count", needs_unset);
        }
        if !(event.text("source.component").is_empty() && event.text("source.host").is_empty()) {
            push_invalid("source", needs_unset);
        }
        errors
    }

    /// Renames the path of the reporting controller; errors of other fields keep the names of the core group.
    fn errors_of_version(&self, errors: FieldErrors) -> FieldErrors {
        let rename = |error: &FieldError| {
            let mut error = error.clone();
            if error.path.as_str() == CONTROLLER {
                error.path = FieldPath::new("reportingController");
            }
            error
        };
        errors.iter().map(rename).collect()
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        let mut errors = metadata::validate_update(new, old);
        errors.extend(metadata::validate_standard_finalizers(new, metadata::standard_finalizers(ctx.names)));
        for name in IMMUTABLE.iter().filter(|name| new.get(name) != old.get(name)) {
            let path = if *name == CONTROLLER { "reportingController" } else { name };
            let field = Field::new(new.get(name), path);
            errors.push(internal::invalid_of_field(&field, "core/v1.Event", name, "field is immutable"));
        }
        if new.get("series") != old.get("series") {
            errors.extend(validate_series(new));
        }
        errors
    }
}

/// Validates the series of a repeated event.
fn validate_series(event: &Object) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if event.get("series").is_none_or(Value::is_null) {
        return errors;
    }
    let path = FieldPath::new("series");
    if event.integer("series.count") < 2 {
        errors.push(FieldError::invalid(&path.child("count"), "", "should be at least 2"));
    }
    if event.text("series.lastObservedTime").is_empty() {
        errors.push(FieldError::required(&path.child("lastObservedTime"), ""));
    }
    errors
}

impl Conversion for Event {
    fn to_stored(&self, object: &mut Object, _names: &Names) {
        for (served, stored) in FIELDS {
            rename(object, served, stored);
        }
    }

    fn convert_from_storage(&self, object: &mut Object, _names: &Names) {
        for (served, stored) in FIELDS {
            rename(object, stored, served);
        }
    }

    fn stored_field(&self, field: &str) -> Option<&'static str> {
        SELECTABLE.iter().find(|(served, _)| *served == field).map(|(_, stored)| *stored)
    }
}
