//! PriorityClass: a pod priority for scheduling and preemption.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::PathReader;
use crate::table::{AGE, NAME, Source};
use crate::validation::{Field, immutable_fields, text};
use crate::{BuiltInKind, Column, Context, Generation, MetadataChecks, Revalidation, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["pc"],
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        // The generation stays 1: changes of the mutable fields (`description`, `globalDefault`) do not increment it.
        generation: Generation::Fixed,
        revalidation: Revalidation::Never,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::integer("Value", "Priority of pods; higher values come first.")
            .with_source(Source::Number("value")),
        Column::boolean("Global-Default", "Whether the class is the default of pods without a class.")
            .with_source(Source::Flag("globalDefault")),
        AGE,
        Column::text("PreemptionPolicy", "Whether pods of the class preempt pods of lower priority.")
            .text_or("preemptionPolicy", "PreemptLowerPriority"),
    ],
    strategy: &PriorityClass,
    ..BuiltInKind::cluster_scoped("scheduling/v1.PriorityClass", "priorityclasses")
};

struct PriorityClass;

impl Strategy for PriorityClass {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        if object.get("preemptionPolicy").is_none() {
            object.set("preemptionPolicy", json!("PreemptLowerPriority"));
        }
    }

    fn deletion_refusal(&self, name: &str) -> Option<&'static str> {
        let is_of_system = SYSTEM_CLASSES.iter().any(|(class, _)| *class == name);
        is_of_system.then_some("this is a system priority class and cannot be deleted")
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        validate(object)
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        let value = Field::new(new.get("value"), "value");
        if value.integer().unwrap_or(0) != old.integer("value") {
            errors.push(value.forbidden("may not be changed in an update."));
        }
        errors.extend(immutable_fields(new, old, &["preemptionPolicy"]));
        errors
    }
}

/// Maximum priority of a class that is not a system class.
const VALUE_MAX: i64 = 1_000_000_000;

/// System classes with their priorities.
const SYSTEM_CLASSES: [(&str, i64); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];

fn validate(object: &Object) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let value = Field::new(object.get("value"), "value");
    if object.name().starts_with("system-") {
        if let Some(reason) = system_class_error(object) {
            errors.push(FieldError::forbidden(
                &FieldPath::new("metadata.name"),
                &format!(
                    "priority class names with 'system-' prefix are reserved for system use only. error: {reason}"
                ),
            ));
        }
    } else if value.integer().unwrap_or(0) > VALUE_MAX {
        let detail = format!("maximum allowed value of a user defined priority is {VALUE_MAX}");
        errors.push(value.forbidden(&detail));
    }
    let policy = Field::new(object.get("preemptionPolicy"), "preemptionPolicy");
    text::require_supported(&policy, &["PreemptLowerPriority", "Never"], &mut errors);
    errors
}

/// The reason why a priority class is not a valid system class; None for a valid system class.
fn system_class_error(object: &Object) -> Option<String> {
    let name = object.name();
    match SYSTEM_CLASSES.iter().find(|(class, _)| *class == name) {
        None => Some(format!("{name} is not a known system priority class")),
        Some((_, value)) if object.integer("value") != *value => {
            Some(format!("value of {name} PriorityClass must be {value}"))
        }
        Some(_) if object.flag("globalDefault") => {
            Some(format!("globalDefault of {name} PriorityClass must be false"))
        }
        Some(_) => None,
    }
}
