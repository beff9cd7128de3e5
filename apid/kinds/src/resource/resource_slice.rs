//! ResourceSlice: devices that a driver offers.

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use apimachinery::time;
use serde_json::{Value, json};

use super::conversion::EarlierVersion;
use super::slice_rules;
use crate::defaults::{fill, maps_in_list, part};
use crate::strategy::DefaultStrategy;
use crate::table::cell::PathReader;
use crate::table::{AGE, NAME, age};
use crate::validation::Field;
use crate::{Column, Context, Generation, Kind, MetadataChecks, Storage, Strategy, Table};

/// Selectable fields.
pub(super) const FIELDS: &[&str] = &["spec.driver", "spec.nodeName"];

pub(super) const KIND: Kind = Kind {
    group: "resource",
    versions: &["v1beta2"],
    kind: "ResourceSlice",
    resource: "resourceslices",
    singular: "resourceslice",
    schema: "resource/v1beta2.ResourceSlice",
    metadata_checks: MetadataChecks::CHANGES,
    generation: Generation::Counted(&[]),
    selectable_fields: FIELDS,
    table: &TABLE,
    strategy: &ResourceSlice,
    ..Kind::CLUSTER_SCOPED
};

/// The kind in its first beta version.
pub(super) const V1BETA1: Kind =
    Kind { versions: &["v1beta1"], schema: "resource/v1beta1.ResourceSlice", ..EARLIER };

/// The kind in its alpha version.
pub(super) const V1ALPHA3: Kind =
    Kind { versions: &["v1alpha3"], schema: "resource/v1alpha3.ResourceSlice", ..EARLIER };

const EARLIER: Kind = Kind {
    storage: Storage::Shared("resource"),
    conversion: Some(&EarlierVersion::Slice),
    strategy: &DefaultStrategy,
    ..KIND
};

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
        let mut errors = FieldErrors::new();
        for path in ["spec.driver", "spec.pool.name", "spec.nodeName"] {
            if new.find(path) != old.find(path) {
                let value = new.find(path).cloned().unwrap_or(Value::Null);
                errors.push(Field::new(new.find(path), path).invalid_value(value, "field is immutable"));
            }
        }
        errors
    }
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("Node", "Node that has the devices."),
        Column::text("Driver", "Driver of the devices."),
        Column::text("Pool", "Pool of the devices."),
        AGE,
    ],
    cells: |object: &Object, clock: &dyn Clock| {
        let text = |path: &str| json!(object.text(path));
        vec![
            json!(object.name()),
            text("spec.nodeName"),
            text("spec.driver"),
            text("spec.pool.name"),
            age(object, clock),
        ]
    },
};
