//! PersistentVolumeClaim: a request for a volume and its binding to the volume.

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::persistent_volume_claim_rules;
use crate::defaults::{fill, fill_text, part};
use crate::pods;
use crate::table::cell::{PathReader, UNSET, access_modes};
use crate::table::{AGE, NAME};
use crate::{BuiltInKind, Column, Context, MetadataChecks, Revalidation, Strategy, Subresource, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["pvc"],
    subresources: &[Subresource::status("PersistentVolumeClaim")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::full(Revalidation::AllButStatus),
        revalidation: Revalidation::AllButStatus,
        delete_returns_object: true,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::text("Status", "Phase of the claim."),
        Column::text("Volume", "Volume that is bound to the claim.").text_at("spec.volumeName"),
        Column::text("Capacity", "Capacity of the bound volume."),
        Column::text("Access Modes", "Access modes of the bound volume."),
        Column::text("StorageClass", "Requested storage class.").text_at("spec.storageClassName"),
        Column::text("VolumeAttributesClass", "Requested volume attributes class.")
            .text_or("spec.volumeAttributesClassName", UNSET),
        AGE,
        Column::wide("VolumeMode", "Mode of the volume: file system or block device.")
            .text_or("spec.volumeMode", UNSET),
    ],
    cells,
    strategy: &PersistentVolumeClaim,
    ..BuiltInKind::namespaced("core/v1.PersistentVolumeClaim", "persistentvolumeclaims")
};

struct PersistentVolumeClaim;

impl Strategy for PersistentVolumeClaim {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        if let Some(status) = part(object, "status") {
            fill_text(status, "phase", "Pending");
        }
        let Some(spec) = part(object, "spec") else { return };
        fill(spec, "volumeMode", "Filesystem");
    }

    fn prepare_update(&self, new: &mut Object, old: &Object, ctx: &Context<'_>) {
        match ctx.subresource {
            "status" => drop_status_fields(new),
            _ => normalize(new, Some(old), ctx),
        }
    }

    fn warnings(&self, new: &Object, _old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        let is_spec_write = ctx.subresource.is_empty();
        if is_spec_write { pods::warnings::claim(new, ctx.names) } else { Vec::new() }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        persistent_volume_claim_rules::validate(object)
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        match ctx.subresource {
            "status" => persistent_volume_claim_rules::validate_status(new, ctx.names),
            _ => persistent_volume_claim_rules::validate_update(new, old, ctx),
        }
    }

    fn prepare_create(&self, object: &mut Object, ctx: &Context<'_>) {
        normalize(object, None, ctx);
        object.set("status", json!({"phase": "Pending"}));
    }
}

/// Removes status fields whose feature gate VolumeAttributesClass is off by default.
fn drop_status_fields(object: &mut Object) {
    if let Some(status) = part(object, "status") {
        status.remove("currentVolumeAttributesClassName");
        status.remove("modifyVolumeStatus");
    }
}

/// Whether a data source is of a kind that `dataSource` supports; `dataSourceRef` supports all kinds.
fn is_claim_or_snapshot(source: &Value, ctx: &Context<'_>) -> bool {
    match source.text("apiGroup") {
        "" => source.text("kind") == "PersistentVolumeClaim",
        group => source.text("kind") == "VolumeSnapshot" && group == ctx.names.group("snapshot.storage"),
    }
}

/// Removes fields of features that are off by default. Copies `dataSource` to an absent `dataSourceRef`, and
/// vice versa.
fn normalize(object: &mut Object, old: Option<&Object>, ctx: &Context<'_>) {
    let has_class = old.is_some_and(|old| !old.text("spec.volumeAttributesClassName").is_empty());
    let Some(spec) = part(object, "spec") else { return };
    if !has_class {
        spec.remove("volumeAttributesClassName");
    }
    // The feature gate CrossNamespaceVolumeDataSource is off by default.
    let has_namespace = |source: &Value| !source.text("namespace").is_empty();
    if spec.get("dataSourceRef").is_some_and(has_namespace) {
        spec.remove("dataSourceRef");
    }
    let lacks_reference =
        old.is_none_or(|old| old.find("spec.dataSource").is_none()) && spec.get("dataSourceRef").is_none();
    if lacks_reference && !spec.get("dataSource").is_some_and(|source| is_claim_or_snapshot(source, ctx)) {
        spec.remove("dataSource");
    }
    match (spec.get("dataSource").cloned(), spec.get("dataSourceRef").cloned()) {
        (Some(source), None) => fill(spec, "dataSourceRef", source),
        (None, Some(reference)) => fill(spec, "dataSource", reference),
        _ => {}
    }
}

fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let phase = if object.is_terminating() { "Terminating" } else { object.text("status.phase") };
    let (capacity, modes) = match object.text("spec.volumeName") {
        "" => (String::new(), String::new()),
        _ => (
            object.text_or_number("status.capacity.storage", "0"),
            access_modes(object.items("status.accessModes")),
        ),
    };
    vec![json!(phase), json!(capacity), json!(modes)]
}
