//! DeviceClass: selection and configuration of devices that claims name.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use super::rules;
use crate::same_fields::same_fields;
use crate::table::{AGE, NAME};
use crate::validation::Field;
use crate::{BuiltInKind, Context, Generation, MetadataChecks, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        generation: Generation::Counted(&[]),
        ..WriteRules::BUILT_IN
    },
    columns: &[NAME, AGE],
    strategy: &DeviceClass,
    ..BuiltInKind::cluster_scoped("resource/v1beta2.DeviceClass", "deviceclasses")
};

/// The kind in its first beta version.
pub(super) const V1BETA1: BuiltInKind = same_fields(KIND, "resource/v1beta1.DeviceClass");

/// The kind in its alpha version.
pub(super) const V1ALPHA3: BuiltInKind = same_fields(KIND, "resource/v1alpha3.DeviceClass");

struct DeviceClass;

impl Strategy for DeviceClass {
    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let spec = Field::new(object.get("spec"), "spec");
        let mut errors = FieldErrors::new();
        rules::validate_selectors(&spec.child("selectors"), &mut errors);
        let config = spec.child("config");
        config.check_limit(rules::ITEMS_MAX, &mut errors);
        config.items().for_each(|item| rules::validate_configuration(&item, &mut errors));
        errors
    }
}
