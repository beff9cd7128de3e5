//! VolumeAttributesClass: attributes of volumes that can change after their creation.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use super::storage_class_rules::{validate_driver_name, validate_parameters};
use crate::same_fields::same_fields;
use crate::table::{AGE, NAME};
use crate::validation::Field;
use crate::{BuiltInKind, Column, Context, MetadataChecks, Revalidation, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["vac"],
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        delete_returns_object: true,
        // No field can change.
        revalidation: Revalidation::Never,
        ..WriteRules::BUILT_IN
    },
    columns: &[NAME, Column::text("DriverName", "Driver of the volumes.").text_at("driverName"), AGE],
    strategy: &VolumeAttributesClass,
    ..BuiltInKind::cluster_scoped("storage/v1beta1.VolumeAttributesClass", "volumeattributesclasses")
};

/// The kind in its alpha version.
pub(super) const V1ALPHA1: BuiltInKind = same_fields(KIND, "storage/v1alpha1.VolumeAttributesClass");

struct VolumeAttributesClass;

impl Strategy for VolumeAttributesClass {
    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        validate_driver_name(&Field::new(object.get("driverName"), "driverName"), &mut errors);
        let field = Field::new(object.get("parameters"), "parameters");
        if field.entries().next().is_none() {
            errors.push(field.required("must contain at least one key/value pair"));
        }
        validate_parameters(&field, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        for name in ["driverName", "parameters"] {
            if new.get(name) != old.get(name) {
                let detail = format!("updates to {name} are forbidden.");
                errors.push(Field::new(new.get(name), name).forbidden(&detail));
            }
        }
        errors
    }
}
