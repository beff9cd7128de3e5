//! VolumeAttachment: desired and actual attachment of a volume to a node.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::PathReader;
use crate::table::{AGE, NAME, age};
use crate::{
    Column, Kind, MetadataChecks, STANDARD_VERBS, StatusWrites, Storage, Strategy, Subresource, Table,
};

pub(super) const KIND: Kind = Kind {
    group: "storage",
    versions: &["v1"],
    kind: "VolumeAttachment",
    resource: "volumeattachments",
    singular: "volumeattachment",
    short_names: &[],
    categories: &[],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::status("VolumeAttachment")],
    schema: "storage/v1.VolumeAttachment",
    strategy: &VolumeAttachment,
};

struct VolumeAttachment;

impl Strategy for VolumeAttachment {
    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn delete_returns_object(&self) -> bool {
        true
    }

    fn unconditional_update(&self) -> bool {
        false
    }

    fn status_writes(&self) -> StatusWrites {
        StatusWrites::StatusOnly
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("Attacher", "The driver that attaches it."),
        Column::text("PV", "The volume."),
        Column::text("Node", "The node."),
        Column::boolean("Attached", "Whether it is attached."),
        AGE,
    ],
    cells: |object: &Object, clock: &dyn Clock| {
        vec![
            json!(object.name()),
            json!(object.text("spec.attacher")),
            json!(object.text("spec.source.persistentVolumeName")),
            json!(object.text("spec.nodeName")),
            json!(object.flag("status.attached")),
            age(object, clock),
        ]
    },
};
