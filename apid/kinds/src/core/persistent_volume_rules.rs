//! Validation of persistent volumes.

use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use apimachinery::object::Object;
use schema::InternalForm;
use serde_json::Value;

use crate::pods::validation::required_node_selector;
use crate::table::cell::PathReader as _;
use crate::validation::{Field, difference, internal, path, resource, text};
use crate::volume_sources::claim::{VOLUME_MODES, access_modes};
use crate::volume_sources::{self as sources, Rule, SourceOwner};
use crate::{Context, format};

/// Sources with their rules, in the order of validation.
const SOURCES: [(&str, Rule); 22] = [
    ("hostPath", sources::host_path),
    ("gcePersistentDisk", sources::gce_persistent_disk),
    ("awsElasticBlockStore", sources::aws_elastic_block_store),
    ("glusterfs", sources::glusterfs),
    ("flocker", sources::flocker),
    ("nfs", sources::nfs),
    ("rbd", sources::rbd),
    ("quobyte", sources::quobyte),
    ("cephfs", sources::cephfs),
    ("iscsi", sources::iscsi),
    ("cinder", sources::cinder),
    ("fc", sources::fc),
    ("flexVolume", sources::flex_volume),
    ("azureFile", sources::azure_file),
    ("vsphereVolume", sources::vsphere_volume),
    ("photonPersistentDisk", sources::photon_persistent_disk),
    ("portworxVolume", sources::portworx_volume),
    ("azureDisk", sources::azure_disk),
    ("scaleIO", sources::scale_io),
    ("local", local),
    ("storageos", sources::storage_os),
    ("csi", csi),
];

/// Sources that support the annotation for mount options.
const SOURCES_WITH_MOUNT_OPTIONS: [&str; 13] = [
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "glusterfs",
    "nfs",
    "rbd",
    "quobyte",
    "iscsi",
    "cinder",
    "cephfs",
    "azureFile",
    "vsphereVolume",
    "azureDisk",
    "photonPersistentDisk",
];

/// A label of nodes: a sub-domain, which may be empty, and a name.
type NodeLabel = (&'static str, &'static str);

/// Beta labels of nodes with the labels that replaced them. An update may replace a beta label.
const REPLACED_LABELS: [(NodeLabel, NodeLabel); 5] = [
    (("beta", "arch"), ("", "arch")),
    (("beta", "os"), ("", "os")),
    (("beta", "instance-type"), ("node", "instance-type")),
    (("failure-domain.beta", "region"), ("topology", "region")),
    (("failure-domain.beta", "zone"), ("topology", "zone")),
];

/// Message for a field that a volume attachment must not contain.
const INLINE: &str = "may not be specified in the context of inline volumes";

/// Owner of the spec of a volume.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SpecOwner {
    /// A persistent volume.
    PersistentVolume,
    /// A volume attachment, whose volumes have no claim.
    VolumeAttachment,
}

/// Validates a persistent volume.
pub(super) fn validate(object: &Object, ctx: &Context<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let field = Field::new(object.get("spec"), "spec");
    validate_spec(object.name(), &field, SpecOwner::PersistentVolume, &mut errors);
    validate_mount_options(object, &field, ctx, &mut errors);
    errors
}

/// Validates the spec of a persistent volume, which volume attachments may contain.
pub(crate) fn validate_spec(name: &str, spec: &Field<'_, '_>, owner: SpecOwner, errors: &mut FieldErrors) {
    let is_inline = owner == SpecOwner::VolumeAttachment;
    if is_inline {
        for field in ["claimRef", "capacity"].map(|name| spec.child(name)) {
            field.forbid(INLINE, errors);
        }
        spec.child("csi").require_present("has to be specified in the context of inline volumes", errors);
    }
    let modes = spec.child("accessModes");
    modes.require_items("", errors);
    access_modes(&modes, errors);
    if !is_inline {
        validate_capacity(&spec.child("capacity"), errors);
    }
    let policy = spec.child("persistentVolumeReclaimPolicy");
    if is_inline && !matches!(policy.text(), "" | "Retain") {
        errors.push(policy.forbidden("may only be Retain in the context of inline volumes"));
    } else if !policy.text().is_empty() {
        text::check_supported(&policy, &["Delete", "Recycle", "Retain"], errors);
    }
    let affinity = spec.child("nodeAffinity");
    if is_inline {
        affinity.forbid(INLINE, errors);
    } else if affinity.is_present() {
        let required = affinity.child("required");
        if required.is_present() {
            required_node_selector(&required, errors);
        } else {
            errors.push(required.required("must specify required node constraints"));
        }
    }
    validate_source(name, spec, errors);
    let class = spec.child("storageClassName");
    if !class.text().is_empty() {
        if is_inline {
            errors.push(class.forbidden(INLINE));
        } else {
            text::check_format(&class, format::subdomain, errors);
        }
    }
    let mode = spec.child("volumeMode");
    if is_inline && mode.is_present() && mode.text() != "Filesystem" {
        let detail = "may not specify volumeMode other than Filesystem in the context of inline volumes";
        errors.push(mode.forbidden(detail));
    } else {
        text::check_supported(&mode, &VOLUME_MODES, errors);
    }
}

/// Validates the capacity: the storage and no other resource.
fn validate_capacity(capacity: &Field<'_, '_>, errors: &mut FieldErrors) {
    let count = capacity.entries().count();
    if count == 0 {
        errors.push(capacity.required(""));
    }
    if count > 1 || !capacity.child("storage").is_present() {
        errors.push(capacity.not_supported(&["storage"]));
    }
    for (_, amount) in capacity.entries() {
        resource::check_not_negative(&amount, errors);
        let nanos = apimachinery::quantity::nanos(amount.text()).map_or(0, |(nanos, _)| nanos);
        if nanos <= 0 {
            errors.push(amount.invalid("must be greater than zero"));
        }
    }
}

fn validate_source(name: &str, spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let mut has_source = false;
    for (kind, rule) in SOURCES {
        let source = spec.child(kind);
        if !source.is_present() {
            continue;
        }
        // kube-apiserver does not report `flexVolume` as a second source.
        if has_source && kind != "flexVolume" {
            // kube-apiserver spells this source differently in this error.
            let reported = if kind == "cephfs" { spec.child("cephFS") } else { source };
            errors.push(reported.forbidden("may not specify more than 1 volume type"));
            continue;
        }
        has_source = true;
        // kube-apiserver reports errors of this source under its name in Go.
        let reported = match kind {
            "gcePersistentDisk" => spec.child("persistentDisk").with_value(source.value()),
            _ => source,
        };
        rule(&reported, SourceOwner::PersistentVolume, errors);
        match kind {
            "iscsi" => check_iscsi_name_length(name, &source, errors),
            "local" if !spec.child("nodeAffinity").is_present() => {
                let affinity = spec.child("nodeAffinity");
                errors.push(affinity.required("Local volume requires node affinity"));
            }
            _ => {}
        }
    }
    if !has_source {
        errors.push(spec.required("must specify a volume type"));
    }
    let (host_path, policy) = (spec.child("hostPath"), spec.child("persistentVolumeReclaimPolicy"));
    let is_root = is_root(host_path.child("path").text());
    if is_root && policy.text() == "Recycle" {
        errors.push(policy.forbidden("may not be 'recycle' for a hostPath mount of '/'"));
    }
}

/// Whether an absolute path is the root directory.
fn is_root(path: &str) -> bool {
    path.starts_with('/') && path.split('/').all(|segment| matches!(segment, "" | "." | ".."))
}

fn check_iscsi_name_length(name: &str, source: &Field<'_, '_>, errors: &mut FieldErrors) {
    if let Some(detail) = sources::iscsi_name_violation(name, source) {
        let portal = source.child("targetPortal");
        errors.push(source.child("targetportal").with_value(portal.value()).invalid(detail));
    }
}

fn local(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    let directory = source.child("path");
    if directory.text().is_empty() {
        errors.push(directory.required(""));
        return;
    }
    path::check_backsteps(&directory, errors);
}

fn csi(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    sources::csi_driver_name(&source.child("driver"), errors);
    text::require(&source.child("volumeHandle"), errors);
    for name in [
        "controllerPublishSecretRef",
        "controllerExpandSecretRef",
        "nodePublishSecretRef",
        "nodeExpandSecretRef",
    ] {
        let secret = source.child(name);
        if secret.is_present() {
            text::require_format(&secret.child("name"), format::subdomain, errors);
            text::require_format(&secret.child("namespace"), format::label, errors);
        }
    }
}

fn validate_mount_options(
    object: &Object,
    spec: &Field<'_, '_>,
    ctx: &Context<'_>,
    errors: &mut FieldErrors,
) {
    let key = ctx.names.label_sub_key("volume.beta", "mount-options");
    let is_supported = SOURCES_WITH_MOUNT_OPTIONS.iter().any(|name| spec.child(name).is_present());
    if object.annotation(&key).is_some() && !is_supported {
        let annotations = Field::new(None, "metadata.annotations");
        errors.push(annotations.child(&key).forbidden("may not specify mount options for this volume type"));
    }
}

/// Validates an update: the whole new volume and its changes, as in kube-apiserver.
pub(super) fn validate_update(new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
    let mut errors = validate(new, ctx);
    let (new, old) = (Field::new(new.get("spec"), "spec"), Field::new(old.get("spec"), "spec"));
    if SOURCES.iter().any(|(name, _)| !is_same_source(name, &new, &old)) {
        let [before, after] = [&old, &new].map(|spec| {
            InternalForm::of_embedded(spec.value(), "core/v1.PersistentVolumeSpec", "PersistentVolumeSource")
        });
        let changes = difference::lines(&before, &after);
        let detail = format!("spec.persistentvolumesource is immutable after creation\n{changes}");
        errors.push(new.child("persistentvolumesource").forbidden(&detail));
    }
    // The paths in kube-apiserver omit `spec`.
    for name in ["volumeMode", "nodeAffinity"] {
        let (new, old) = (new.child(name), old.child(name));
        let field = Field::new(new.value(), name);
        if name == "volumeMode" && new.value() != old.value() {
            errors.push(field.invalid("field is immutable"));
        }
        if name == "nodeAffinity" && old.is_present() && !is_same_affinity(&new, &old, ctx.names) {
            let detail = "field is immutable, except for updating from beta label to GA";
            errors.push(internal::invalid_of_field(&field, "core/v1.PersistentVolumeSpec", name, detail));
        }
    }
    errors
}

/// Whether an update keeps a source. The update may add a secret for the expansion of a CSI volume.
fn is_same_source(name: &str, new: &Field<'_, '_>, old: &Field<'_, '_>) -> bool {
    const EXPANSION: &str = "controllerExpandSecretRef";
    let (new, old) = (new.child(name), old.child(name));
    if name == "csi"
        && old.is_present()
        && !old.child(EXPANSION).is_present()
        && let Some(Value::Object(fields)) = new.value()
    {
        let mut fields = fields.clone();
        fields.remove(EXPANSION);
        return old.value() == Some(&Value::Object(fields));
    }
    new.value() == old.value()
}

/// Whether an update keeps a node affinity, apart from beta labels that it replaces. As in kube-apiserver, the
/// replacement of any other key is the empty key, which only the rules about keys report.
fn is_same_affinity(new: &Field<'_, '_>, old: &Field<'_, '_>, names: &Names) -> bool {
    let (Some(new), Some(old)) = (new.value(), old.value()) else { return false };
    let mut expected = old.clone();
    let key = |(sub, name): (&str, &str)| {
        if sub.is_empty() { names.label_key(name) } else { names.label_sub_key(sub, name) }
    };
    let terms = expected.pointer_mut("/required/nodeSelectorTerms").and_then(Value::as_array_mut);
    for (i, term) in terms.into_iter().flatten().enumerate() {
        for list in ["matchExpressions", "matchFields"] {
            let requirements = term.get_mut(list).and_then(Value::as_array_mut);
            for (j, requirement) in requirements.into_iter().flatten().enumerate() {
                let pointer = format!("/required/nodeSelectorTerms/{i}/{list}/{j}/key");
                let new_key = new.pointer(&pointer).and_then(Value::as_str).unwrap_or("");
                let old_key = requirement.text("key");
                let replaced = REPLACED_LABELS.iter().find(|(beta, _)| old_key == key(*beta));
                let replacement = replaced.map(|(_, label)| key(*label)).unwrap_or_default();
                if new_key == replacement
                    && let Some(key) = requirement.get_mut("key")
                {
                    *key = new_key.into();
                }
            }
        }
    }
    *new == expected
}
