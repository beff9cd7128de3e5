//! PersistentVolumeClaim: a request for a volume and its binding to the volume.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::table::cell::{PathReader, UNSET, access_modes};
use crate::table::{AGE, NAME, age};
use crate::{Column, Context, Kind, STANDARD_VERBS, Storage, Strategy, Subresource, Table};

pub(super) const KIND: Kind = Kind {
    group: "",
    versions: &["v1"],
    kind: "PersistentVolumeClaim",
    resource: "persistentvolumeclaims",
    singular: "persistentvolumeclaim",
    short_names: &["pvc"],
    categories: &[],
    namespaced: true,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::status("PersistentVolumeClaim")],
    schema: "core/v1.PersistentVolumeClaim",
    strategy: &PersistentVolumeClaim,
};

struct PersistentVolumeClaim;

impl Strategy for PersistentVolumeClaim {
    fn delete_returns_object(&self) -> bool {
        true
    }

    fn prepare_create(&self, object: &mut Object, _ctx: &Context<'_>) {
        object.set("status", json!({"phase": "Pending"}));
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("Status", "Whether it has a volume."),
        Column::text("Volume", "The volume it has."),
        Column::text("Capacity", "How much that holds."),
        Column::text("Access Modes", "How it can be mounted."),
        Column::text("StorageClass", "The class it asks for."),
        Column::text("VolumeAttributesClass", "The class of attributes it asks for."),
        AGE,
        Column::wide("VolumeMode", "Whether it is a file system or a raw device."),
    ],
    cells,
};

fn cells(object: &Object, clock: &dyn Clock) -> Vec<Value> {
    let phase = if object.is_terminating() { "Terminating" } else { object.text("status.phase") };
    let volume = object.text("spec.volumeName");
    let (capacity, modes) = match volume {
        "" => (String::new(), String::new()),
        _ => (
            object.text_or_number("status.capacity.storage", "0"),
            access_modes(object.items("status.accessModes")),
        ),
    };
    vec![
        json!(object.name()),
        json!(phase),
        json!(volume),
        json!(capacity),
        json!(modes),
        json!(object.text("spec.storageClassName")),
        json!(object.text_or("spec.volumeAttributesClassName", UNSET)),
        age(object, clock),
        json!(object.text_or("spec.volumeMode", UNSET)),
    ]
}
