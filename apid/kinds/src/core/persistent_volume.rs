//! PersistentVolume: storage with a lifetime independent of pods.

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::persistent_volume_rules;
use crate::defaults::{fill, fill_text, part};
use crate::pods::warnings;
use crate::table::cell::{PathReader, UNSET, access_modes};
use crate::table::{AGE, NAME, Source};
use crate::volume_sources;
use crate::{BuiltInKind, Column, Context, MetadataChecks, Revalidation, Strategy, Subresource, WriteRules};
use apimachinery::time;

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["pv"],
    subresources: &[Subresource::status("PersistentVolume")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::full(Revalidation::AllButStatus),
        revalidation: Revalidation::AllButStatus,
        delete_returns_object: true,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::text("Capacity", "Storage capacity of the volume.")
            .with_source(Source::TextOrNumber("spec.capacity.storage", "0")),
        Column::text("Access Modes", "Access modes of the volume."),
        Column::text("Reclaim Policy", "Policy for the volume after its release.")
            .text_at("spec.persistentVolumeReclaimPolicy"),
        Column::text("Status", "Phase of the volume."),
        Column::text("Claim", "Claim that is bound to the volume."),
        Column::text("StorageClass", "Storage class of the volume.").text_at("spec.storageClassName"),
        Column::text("VolumeAttributesClass", "Volume attributes class of the volume.")
            .text_or("spec.volumeAttributesClassName", UNSET),
        Column::text("Reason", "Reason for the phase.").text_at("status.reason"),
        AGE,
        Column::wide("VolumeMode", "Mode of the volume: file system or block device.")
            .text_or("spec.volumeMode", UNSET),
    ],
    cells,
    strategy: &PersistentVolume,
    ..BuiltInKind::cluster_scoped("core/v1.PersistentVolume", "persistentvolumes")
};

struct PersistentVolume;

impl Strategy for PersistentVolume {
    fn prepare_create(&self, object: &mut Object, ctx: &Context<'_>) {
        drop_attributes_class(object, None);
        let now = time::time(ctx.clock.now());
        object.set("status", json!({"phase": "Pending", "lastPhaseTransitionTime": now}));
    }

    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        let Some(spec) = part(object, "spec") else { return };
        volume_sources::fill_defaults(spec);
        fill_text(spec, "persistentVolumeReclaimPolicy", "Retain");
        fill(spec, "volumeMode", "Filesystem");
        fill_text(object.part_mut("status"), "phase", "Pending");
    }

    fn prepare_update(&self, new: &mut Object, old: &Object, ctx: &Context<'_>) {
        drop_attributes_class(new, Some(old));
        if ctx.subresource == "status" {
            record_transition(new, old, ctx);
        }
    }

    fn warnings(&self, new: &Object, _old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        let is_spec_write = ctx.subresource.is_empty();
        if is_spec_write { warnings::persistent_volume(new, ctx.names) } else { Vec::new() }
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        persistent_volume_rules::validate(object, ctx)
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        match ctx.subresource {
            "status" => FieldErrors::new(),
            _ => persistent_volume_rules::validate_update(new, old, ctx),
        }
    }
}

/// Removes the volume attributes class, unless the stored volume has one: the feature gate
/// VolumeAttributesClass is off by default.
fn drop_attributes_class(object: &mut Object, old: Option<&Object>) {
    const CLASS: &str = "volumeAttributesClassName";
    if old.is_none_or(|old| old.text("spec.volumeAttributesClassName").is_empty())
        && let Some(spec) = part(object, "spec")
    {
        spec.remove(CLASS);
    }
}

/// Sets `lastPhaseTransitionTime` on a phase change, unless the request set it.
fn record_transition(new: &mut Object, old: &Object, ctx: &Context<'_>) {
    const TRANSITION_TIME_PATH: &str = "status.lastPhaseTransitionTime";
    let is_recorded = !new.text(TRANSITION_TIME_PATH).is_empty()
        && new.text(TRANSITION_TIME_PATH) != old.text(TRANSITION_TIME_PATH);
    if new.text("status.phase") == old.text("status.phase") || is_recorded {
        return;
    }
    let now = time::time(ctx.clock.now());
    new.part_mut("status").insert("lastPhaseTransitionTime".to_owned(), now.into());
}

fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let claim = object.find("spec.claimRef");
    let claim = claim.map_or_else(String::new, |c| format!("{}/{}", c.text("namespace"), c.text("name")));
    let phase = if object.is_terminating() { "Terminating" } else { object.text("status.phase") };
    vec![json!(access_modes(object.items("spec.accessModes"))), json!(phase), json!(claim)]
}
