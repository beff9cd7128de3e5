//! VolumeAttachment: desired and actual attachment of a volume to a node.

use apimachinery::field::{FieldError, FieldErrors};
use apimachinery::object::Object;

use crate::{format, volume_sources};

use crate::core::persistent_volume_rules::{self, SpecOwner};
use crate::defaults::part;
use crate::table::{AGE, NAME, Source};
use crate::validation::{Field, internal, text};
use crate::{BuiltInKind, Column, Context, MetadataChecks, StatusWrites, Strategy, Subresource, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    subresources: &[Subresource::status("VolumeAttachment")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::ALL,
        unconditional_update: false,
        status_writes: StatusWrites::StatusOnly,
        delete_returns_object: true,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column {
            format: "name",
            ..Column::text("Attacher", "Driver that attaches the volume.").text_at("spec.attacher")
        },
        Column::text("PV", "Persistent volume.").text_at("spec.source.persistentVolumeName"),
        Column::text("Node", "Node to which the volume is attached.").text_at("spec.nodeName"),
        Column::boolean("Attached", "Whether the volume is attached.")
            .with_source(Source::Flag("status.attached")),
        AGE,
    ],
    strategy: &VolumeAttachment,
    ..BuiltInKind::cluster_scoped("storage/v1.VolumeAttachment", "volumeattachments")
};

struct VolumeAttachment;

impl Strategy for VolumeAttachment {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        if let Some(spec) = part(object, "spec.source.inlineVolumeSpec") {
            volume_sources::fill_defaults(spec);
        }
    }

    fn prepare_update(&self, new: &mut Object, _old: &Object, _ctx: &Context<'_>) {
        // The feature gate of `errorCode`, MutableCSINodeAllocatableCount, is off by default.
        for error in ["status.attachError", "status.detachError"] {
            if let Some(error) = part(new, error) {
                error.remove("errorCode");
            }
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        let spec = Field::new(object.get("spec"), "spec");
        volume_sources::csi_driver_name(&spec.child("attacher"), &mut errors);
        validate_source(&spec.child("source"), &mut errors);
        text::check_format(&spec.child("nodeName"), format::subdomain, &mut errors);
        let status = Field::new(object.get("status"), "status");
        validate_metadata(&status.child("attachmentMetadata"), &mut errors);
        for error in ["attachError", "detachError"].map(|name| status.child(name)) {
            text::check_length(&error.child("message"), MESSAGE_MAX, &mut errors);
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        if new.get("spec") != old.get("spec") {
            let spec = Field::new(new.get("spec"), "spec");
            errors.push(internal::invalid_of_type(
                &spec,
                "storage/v1.VolumeAttachmentSpec",
                "field is immutable",
            ));
        }
        errors
    }
}

/// Maximum length, in bytes, of the message of an error.
const MESSAGE_MAX: usize = 1024;
/// Maximum total size, in bytes, of the keys and values of `attachmentMetadata`.
const METADATA_MAX: usize = 256 * 1024;

fn validate_source(source: &Field<'_, '_>, errors: &mut FieldErrors) {
    const DETAIL: &str = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    let (inline, name) = (source.child("inlineVolumeSpec"), source.child("persistentVolumeName"));
    match (inline.is_present(), name.is_present()) {
        (false, false) => errors.push(source.required(DETAIL)),
        (true, true) => errors.push(source.forbidden(DETAIL)),
        (true, false) => {
            persistent_volume_rules::validate_spec("", &inline, SpecOwner::VolumeAttachment, errors)
        }
        (false, true) if name.text().is_empty() => {
            errors.push(name.required("must specify non empty persistentVolumeName"));
        }
        (false, true) => {}
    }
    text::check_present_format(&name, format::subdomain, errors);
}

fn validate_metadata(metadata: &Field<'_, '_>, errors: &mut FieldErrors) {
    let mut size = 0;
    for (key, value) in metadata.entries() {
        if key.is_empty() {
            errors.push(metadata.invalid_value(key, "field must not be empty"));
        }
        size += key.len() + value.text().len();
    }
    if size > METADATA_MAX {
        errors.push(FieldError::too_long(&metadata.path(), METADATA_MAX));
    }
}
