//! ResourceSlice: devices that a driver offers.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use apimachinery::time;

use super::conversion::EarlierVersion;
use super::slice_rules;
use crate::defaults::{fill, maps_in_list, part};
use crate::same_fields::derive_version;
use crate::table::{AGE, NAME};
use crate::validation::{Field, immutable_fields};
use crate::{BuiltInKind, Column, Context, Generation, MetadataChecks, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        generation: Generation::Counted(&[]),
        ..WriteRules::BUILT_IN
    },
    selectable_fields: &["spec.driver", "spec.nodeName"],
    columns: &[
        NAME,
        Column::text("Node", "Node that has the devices.").text_at("spec.nodeName"),
        Column::text("Driver", "Driver of the devices.").text_at("spec.driver"),
        Column::text("Pool", "Pool of the devices.").text_at("spec.pool.name"),
        AGE,
    ],
    strategy: &ResourceSlice,
    ..BuiltInKind::cluster_scoped("resource/v1beta2.ResourceSlice", "resourceslices")
};

/// The kind in its first beta version.
pub(super) const V1BETA1: BuiltInKind =
    derive_version(KIND, "resource/v1beta1.ResourceSlice", &EarlierVersion::Slice);

/// The kind in its alpha version.
pub(super) const V1ALPHA3: BuiltInKind =
    derive_version(KIND, "resource/v1alpha3.ResourceSlice", &EarlierVersion::Slice);

struct ResourceSlice;

impl Strategy for ResourceSlice {
    fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        let Some(spec) = part(object, "spec") else { return };
        for device in maps_in_list(spec, "devices") {
            for taint in maps_in_list(device, "taints") {
                fill(taint, "timeAdded", time::time(ctx.clock.now()));
            }
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        slice_rules::validate(&Field::new(object.get("spec"), "spec"), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        immutable_fields(new, old, &["spec.driver", "spec.pool.name", "spec.nodeName"])
    }
}
