//! DeviceTaintRule: a taint for all devices that match a selector.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use apimachinery::time;

use super::rules;
use crate::defaults::{fill, part};
use crate::format;
use crate::table::{AGE, NAME};
use crate::validation::{Field, text};
use crate::{BuiltInKind, Context, Generation, MetadataChecks, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        generation: Generation::Counted(&[]),
        ..WriteRules::BUILT_IN
    },
    columns: &[NAME, AGE],
    strategy: &DeviceTaintRule,
    ..BuiltInKind::cluster_scoped("resource/v1alpha3.DeviceTaintRule", "devicetaintrules")
};

struct DeviceTaintRule;

impl Strategy for DeviceTaintRule {
    fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        if let Some(taint) = part(object, "spec.taint") {
            fill(taint, "timeAdded", time::time(ctx.clock.now()));
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let spec = Field::new(object.get("spec"), "spec");
        let selector = spec.child("deviceSelector");
        let mut errors = FieldErrors::new();
        let (driver, pool, device) =
            (selector.child("driver"), selector.child("pool"), selector.child("device"));
        if driver.is_present() {
            rules::validate_driver(&driver, &mut errors);
        }
        if pool.is_present() {
            rules::validate_pool(&pool, &mut errors);
        }
        text::check_present_format(&device, format::label, &mut errors);
        rules::validate_taint(&spec.child("taint"), &mut errors);
        errors
    }
}
