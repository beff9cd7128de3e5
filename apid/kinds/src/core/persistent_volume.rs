//! PersistentVolume: storage with a lifetime independent of pods.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::table::cell::{PathReader, UNSET, access_modes};
use crate::table::{AGE, NAME, age};
use crate::{Column, Context, Kind, STANDARD_VERBS, Storage, Strategy, Subresource, Table};
use apimachinery::time;

pub(super) const KIND: Kind = Kind {
    group: "",
    versions: &["v1"],
    kind: "PersistentVolume",
    resource: "persistentvolumes",
    singular: "persistentvolume",
    short_names: &["pv"],
    categories: &[],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::status("PersistentVolume")],
    schema: "core/v1.PersistentVolume",
    strategy: &PersistentVolume,
};

struct PersistentVolume;

impl Strategy for PersistentVolume {
    fn delete_returns_object(&self) -> bool {
        true
    }

    fn prepare_create(&self, object: &mut Object, ctx: &Context<'_>) {
        let now = time::time(ctx.clock.now());
        object.set("status", json!({"phase": "Pending", "lastPhaseTransitionTime": now}));
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("Capacity", "How much it holds."),
        Column::text("Access Modes", "How it can be mounted."),
        Column::text("Reclaim Policy", "What becomes of it when it is released."),
        Column::text("Status", "Whether it is free or claimed."),
        Column::text("Claim", "The claim that has it."),
        Column::text("StorageClass", "The class it belongs to."),
        Column::text("VolumeAttributesClass", "The class of its attributes."),
        Column::text("Reason", "Why it is in this state."),
        AGE,
        Column::wide("VolumeMode", "Whether it is a file system or a raw device."),
    ],
    cells,
};

fn cells(object: &Object, clock: &dyn Clock) -> Vec<Value> {
    let claim = object.find("spec.claimRef");
    let claim = claim.map_or_else(String::new, |c| format!("{}/{}", c.text("namespace"), c.text("name")));
    let phase = if object.is_terminating() { "Terminating" } else { object.text("status.phase") };
    vec![
        json!(object.name()),
        json!(object.text_or_number("spec.capacity.storage", "0")),
        json!(access_modes(object.items("spec.accessModes"))),
        json!(object.text("spec.persistentVolumeReclaimPolicy")),
        json!(phase),
        json!(claim),
        json!(object.text("spec.storageClassName")),
        json!(object.text_or("spec.volumeAttributesClassName", UNSET)),
        json!(object.text("status.reason")),
        age(object, clock),
        json!(object.text_or("spec.volumeMode", UNSET)),
    ]
}
