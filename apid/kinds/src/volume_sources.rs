//! Sources of volumes that pods and persistent volumes share.
//!
//! # Reference
//!
//! Rules, messages and their order are those of kube-apiserver 1.33.

pub(crate) mod claim;

use apimachinery::field::{FieldError, FieldErrors};
use apimachinery::object::Value;

use crate::defaults::{Fields, fill};
use crate::format;
use crate::validation::{Field, path, text};

/// Owner of a source. Some sources have further fields in persistent volumes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SourceOwner {
    /// A volume of a pod.
    Pod,
    /// A persistent volume.
    PersistentVolume,
}

/// Validation rule of a volume source.
pub(crate) type Rule = fn(&Field<'_, '_>, SourceOwner, &mut FieldErrors);

/// Allowed types of a `hostPath` source.
const HOST_PATH_TYPES: [&str; 8] =
    ["", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];

/// Maximum length, in bytes, of a CSI driver name.
const DRIVER_NAME_MAX: usize = 63;

/// Default values of volume sources: source, field and value.
const DEFAULTS: [(&str, &str, &str); 10] = [
    ("hostPath", "type", ""),
    ("iscsi", "iscsiInterface", "default"),
    ("rbd", "pool", "rbd"),
    ("rbd", "user", "admin"),
    ("rbd", "keyring", "/etc/ceph/keyring"),
    ("azureDisk", "cachingMode", "ReadWrite"),
    ("azureDisk", "fsType", "ext4"),
    ("azureDisk", "kind", "Shared"),
    ("scaleIO", "storageMode", "ThinProvisioned"),
    ("scaleIO", "fsType", "xfs"),
];

/// Sets the default values of the sources of a volume.
pub(crate) fn fill_defaults(volume: &mut Fields) {
    for (source, fields) in volume.iter_mut() {
        let Value::Object(fields) = fields else { continue };
        for (_, field, value) in DEFAULTS.iter().filter(|(owner, ..)| owner == source) {
            fill(fields, field, *value);
        }
        if source == "azureDisk" {
            fill(fields, "readOnly", false);
        }
    }
}

/// Reports each named field that is missing.
fn require(source: &Field<'_, '_>, fields: &[&str], errors: &mut FieldErrors) {
    for name in fields {
        text::require(&source.child(name), errors);
    }
}

/// Reports a whole number outside 0 to 255.
fn check_byte(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    let number = field.integer().unwrap_or(0);
    if !(0..=255).contains(&number) {
        errors.push(field.invalid_value(number, "must be between 0 and 255, inclusive"));
    }
}

pub(crate) fn host_path(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    let file = source.child("path");
    if file.text().is_empty() {
        errors.push(file.required(""));
        return;
    }
    path::check_backsteps(&file, errors);
    text::check_supported(&source.child("type"), &HOST_PATH_TYPES, errors);
}

pub(crate) fn git_repo(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    require(source, &["repository"], errors);
    path::check_local_descending(&source.child("directory"), errors);
}

pub(crate) fn gce_persistent_disk(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    require(source, &["pdName"], errors);
    check_partition(&source.child("partition"), errors);
}

/// Validates the number of a partition. Zero is the whole disk; the message of kube-apiserver does not
/// mention zero.
fn check_partition(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if field.integer().is_some_and(|number| !(0..=255).contains(&number)) {
        errors.push(field.invalid("must be between 1 and 255, inclusive"));
    }
}

pub(crate) fn aws_elastic_block_store(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    require(source, &["volumeID"], errors);
    check_partition(&source.child("partition"), errors);
}

pub(crate) fn nfs(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    require(source, &["server", "path"], errors);
    let directory = source.child("path");
    if !directory.text().starts_with('/') {
        errors.push(directory.invalid_value(directory.text(), "must be an absolute path"));
    }
}

/// Maximum length, in bytes, of `<name>:<targetPortal>` of an iSCSI volume with an initiator.
const ISCSI_NAME_MAX: usize = 64;

/// Text of the violation if the name of a volume is too long with the portal of an iSCSI source that has an initiator.
pub(crate) fn iscsi_name_violation(name: &str, source: &Field<'_, '_>) -> Option<&'static str> {
    let length = name.len() + 1 + source.child("targetPortal").text().len();
    (source.child("initiatorName").is_present() && length > ISCSI_NAME_MAX).then_some(
        "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is \
         specified.",
    )
}

pub(crate) fn iscsi(source: &Field<'_, '_>, owner: SourceOwner, errors: &mut FieldErrors) {
    require(source, &["targetPortal"], errors);
    let name = source.child("iqn");
    if name.text().is_empty() {
        errors.push(name.required(""));
    } else {
        validate_iscsi_name(&name, owner, errors);
    }
    check_byte(&source.child("lun"), errors);
    let secret = source.child("secretRef");
    if (source.child("chapAuthDiscovery").flag() || source.child("chapAuthSession").flag())
        && !secret.is_present()
    {
        errors.push(secret.required(""));
    }
    let initiator = source.child("initiatorName");
    if initiator.is_present() {
        validate_iscsi_name(&source.child("initiatorname").with_value(initiator.value()), owner, errors);
    }
    if owner == SourceOwner::PersistentVolume && secret.is_present() {
        text::require(&secret.child("name"), errors);
    }
}

fn validate_iscsi_name(name: &Field<'_, '_>, owner: SourceOwner, errors: &mut FieldErrors) {
    if owner == SourceOwner::Pod
        && !["iqn", "eui", "naa"].iter().any(|prefix| name.text().starts_with(prefix))
    {
        errors.push(name.invalid("must be valid format starting with iqn, eui, or naa"));
    } else if !is_iscsi_name(name.text()) {
        errors.push(name.invalid("must be valid format"));
    }
}

/// Whether a name has one of the formats `iqn.`, `eui.` and `naa.`.
fn is_iscsi_name(name: &str) -> bool {
    if let Some(rest) = name.strip_prefix("iqn.") {
        let Some((date, rest)) = rest.split_at_checked(7) else { return false };
        let is_date =
            date.bytes().enumerate().all(|(i, b)| if i == 4 { b == b'-' } else { b.is_ascii_digit() });
        let Some(authority) = rest.strip_prefix('.') else { return false };
        let authority = authority.split(':').next().unwrap_or("");
        return is_date
            && !authority.is_empty()
            && authority.split('.').all(|label| {
                !label.is_empty() && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            });
    }
    let is_hex = |text: &str, lengths: &[usize]| {
        lengths.contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit())
    };
    name.strip_prefix("eui.").is_some_and(|rest| is_hex(rest, &[16]))
        || name.strip_prefix("naa.").is_some_and(|rest| is_hex(rest, &[16, 32]))
}

pub(crate) fn glusterfs(source: &Field<'_, '_>, owner: SourceOwner, errors: &mut FieldErrors) {
    require(source, &["endpoints", "path"], errors);
    let namespace = source.child("endpointsNamespace");
    if owner == SourceOwner::PersistentVolume && namespace.is_present() {
        text::check_name(&namespace, namespace.text(), format::label, errors);
    }
}

pub(crate) fn flocker(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    let (name, uuid) = (source.child("datasetName"), source.child("datasetUUID"));
    if name.text().is_empty() && uuid.text().is_empty() {
        errors.push(source.required("one of datasetName and datasetUUID is required"));
    }
    if !name.text().is_empty() && !uuid.text().is_empty() {
        let detail = "datasetName and datasetUUID can not be specified simultaneously";
        errors.push(source.invalid_value("resource", detail));
    }
    if name.text().contains('/') {
        errors.push(name.invalid("must not contain '/'"));
    }
}

pub(crate) fn rbd(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    require_monitors(source, errors);
    require(source, &["image"], errors);
}

fn require_monitors(source: &Field<'_, '_>, errors: &mut FieldErrors) {
    source.child("monitors").require_items("", errors);
}

pub(crate) fn cinder(source: &Field<'_, '_>, owner: SourceOwner, errors: &mut FieldErrors) {
    require(source, &["volumeID"], errors);
    validate_secret_reference(&source.child("secretRef"), owner, errors);
}

fn validate_secret_reference(secret: &Field<'_, '_>, owner: SourceOwner, errors: &mut FieldErrors) {
    if !secret.is_present() {
        return;
    }
    require(secret, &["name"], errors);
    if owner == SourceOwner::PersistentVolume {
        require(secret, &["namespace"], errors);
    }
}

pub(crate) fn cephfs(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    require_monitors(source, errors);
}

pub(crate) fn quobyte(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    let (registry, tenant) = (source.child("registry"), source.child("tenant"));
    let detail = "must be a host:port pair or multiple pairs separated by commas";
    if registry.text().is_empty() {
        errors.push(registry.required(detail));
    } else if tenant.text().len() >= 65 {
        errors.push(tenant.required("must be a UUID and may not exceed a length of 64 characters"));
    } else {
        for pair in registry.text().split(',') {
            if pair.rsplit_once(':').is_none_or(|(host, _)| host.contains(':') && !host.ends_with(']')) {
                errors.push(registry.invalid(detail));
            }
        }
    }
    require(source, &["volume"], errors);
}

pub(crate) fn fc(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    let (targets, ids) = (source.child("targetWWNs"), source.child("wwids"));
    if targets.list().is_empty() && ids.list().is_empty() {
        errors.push(targets.required("must specify either targetWWNs or wwids, but not both"));
    }
    if targets.list().is_empty() {
        return;
    }
    if !ids.list().is_empty() {
        errors.push(targets.invalid("targetWWNs and wwids can not be specified simultaneously"));
    }
    let unit = source.child("lun");
    if unit.is_present() {
        check_byte(&unit, errors);
    } else {
        errors.push(unit.required("lun is required if targetWWNs is specified"));
    }
}

pub(crate) fn azure_file(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    require(source, &["secretName", "shareName"], errors);
    let namespace = source.child("secretNamespace");
    if namespace.is_present() && namespace.text().is_empty() {
        errors.push(namespace.required(""));
    }
}

pub(crate) fn vsphere_volume(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    require(source, &["volumePath"], errors);
}

pub(crate) fn photon_persistent_disk(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    require(source, &["pdID"], errors);
}

pub(crate) fn portworx_volume(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    require(source, &["volumeID"], errors);
}

pub(crate) fn azure_disk(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    const MANAGED: &str =
        "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}";
    const BLOB: &str = "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd";
    require(source, &["diskName", "diskURI"], errors);
    text::check_supported(&source.child("cachingMode"), &["None", "ReadOnly", "ReadWrite"], errors);
    let (kind, uri) = (source.child("kind"), source.child("diskURI"));
    text::check_supported(&kind, &["Dedicated", "Managed", "Shared"], errors);
    let is_managed = kind.text() == "Managed";
    let prefix = if is_managed { "/subscriptions/" } else { "https://" };
    if kind.is_present() && !uri.text().starts_with(prefix) {
        let supported = if is_managed { MANAGED } else { BLOB };
        errors.push(FieldError::not_supported(&uri.path(), uri.text(), &[supported]));
    }
}

pub(crate) fn storage_os(source: &Field<'_, '_>, owner: SourceOwner, errors: &mut FieldErrors) {
    text::require_format(&source.child("volumeName"), format::label, errors);
    text::check_nonempty_format(&source.child("volumeNamespace"), format::label, errors);
    validate_secret_reference(&source.child("secretRef"), owner, errors);
}

pub(crate) fn scale_io(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    require(source, &["gateway", "system", "volumeName"], errors);
}

pub(crate) fn flex_volume(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    require(source, &["driver"], errors);
    for (key, option) in source.child("options").entries() {
        let is_reserved = ["kubernetes.io", "k8s.io"].iter().any(|domain| {
            key.split('/').next().is_some_and(|prefix| {
                key.contains('/') && (prefix == *domain || prefix.ends_with(&format!(".{domain}")))
            })
        });
        if is_reserved {
            errors.push(option.invalid_value(key, "kubernetes.io and k8s.io namespaces are reserved"));
        }
    }
}

/// Validates the name of a CSI driver.
pub(crate) fn csi_driver_name(name: &Field<'_, '_>, errors: &mut FieldErrors) {
    if name.text().is_empty() {
        errors.push(name.required(""));
        return;
    }
    text::check_length(name, DRIVER_NAME_MAX, errors);
    for message in format::subdomain(&name.text().to_lowercase()) {
        errors.push(name.invalid_name(name.text(), &message));
    }
}
