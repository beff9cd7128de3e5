//! StorageClass: a class of storage and its provisioner.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::json;

use super::storage_class_rules;
use crate::defaults::fill;
use crate::table::{AGE, NAME, Source};
use crate::validation::immutable_fields;
use crate::{BuiltInKind, Column, Context, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["sc"],
    rules: WriteRules { delete_returns_object: true, ..WriteRules::BUILT_IN },
    columns: &[
        NAME.with_source(Source::Computed),
        Column::text("Provisioner", "Provisioner of the volumes of the class.").text_at("provisioner"),
        Column::text("ReclaimPolicy", "Policy for volumes after their release.")
            .text_or("reclaimPolicy", "Delete"),
        Column::text("VolumeBindingMode", "Mode of provisioning and binding of volumes.")
            .text_or("volumeBindingMode", "Immediate"),
        Column::text("AllowVolumeExpansion", "Whether volumes can grow.")
            .with_source(Source::Flag("allowVolumeExpansion")),
        AGE,
    ],
    cells: |class, _| {
        let default_mark = if is_default(class) { " (default)" } else { "" };
        vec![json!(format!("{}{default_mark}", class.name()))]
    },
    strategy: &StorageClass,
    ..BuiltInKind::cluster_scoped("storage/v1.StorageClass", "storageclasses")
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
        immutable_fields(new, old, &["parameters", "provisioner", "reclaimPolicy", "volumeBindingMode"])
    }
}

/// Whether the annotation `storageclass.<domain>/is-default-class` marks the default class.
fn is_default(object: &Object) -> bool {
    object.annotations().any(|(key, value)| {
        key.starts_with("storageclass.") && key.ends_with("/is-default-class") && value == "true"
    })
}
