//! StorageClass: a class of storage and its provisioner.

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::storage_class_rules;
use crate::defaults::fill;
use crate::table::cell::PathReader;
use crate::table::{AGE, NAME, age};
use crate::{Column, Context, Kind, MetadataChecks, Revalidation, Strategy, Table};

pub(super) const KIND: Kind = Kind {
    group: "storage",
    kind: "StorageClass",
    resource: "storageclasses",
    singular: "storageclass",
    short_names: &["sc"],
    schema: "storage/v1.StorageClass",
    metadata_checks: MetadataChecks::full(Revalidation::Always),
    delete_returns_object: true,
    table: &TABLE,
    strategy: &StorageClass,
    ..Kind::CLUSTER_SCOPED
};

struct StorageClass;

impl Strategy for StorageClass {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        fill(&mut object.0, "reclaimPolicy", "Delete");
        fill(&mut object.0, "volumeBindingMode", "Immediate");
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        storage_class_rules::validate(object)
    }

    fn warnings(&self, new: &Object, _old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        storage_class_rules::warnings(new, ctx.names)
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        storage_class_rules::validate_update(new, old)
    }
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("Provisioner", "Provisioner of the volumes of the class."),
        Column::text("ReclaimPolicy", "Policy for volumes after their release."),
        Column::text("VolumeBindingMode", "Mode of provisioning and binding of volumes."),
        Column::text("AllowVolumeExpansion", "Whether volumes can grow."),
        AGE,
    ],
    cells,
};

fn cells(object: &Object, clock: &dyn Clock) -> Vec<Value> {
    let name =
        if is_default(object) { format!("{} (default)", object.name()) } else { object.name().to_owned() };
    vec![
        json!(name),
        json!(object.text("provisioner")),
        json!(object.text_or("reclaimPolicy", "Delete")),
        json!(object.text_or("volumeBindingMode", "Immediate")),
        json!(object.flag("allowVolumeExpansion")),
        age(object, clock),
    ]
}

/// Whether the annotation `storageclass.<domain>/is-default-class` marks the default class.
fn is_default(object: &Object) -> bool {
    object.annotations().any(|(key, value)| {
        key.starts_with("storageclass.") && key.ends_with("/is-default-class") && value == "true"
    })
}
