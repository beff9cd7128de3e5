//! Volumes of a pod.

use std::collections::BTreeMap;

use apimachinery::field::FieldErrors;
use apimachinery::object::Value;

use super::volume_files;
use crate::format;
use crate::validation::{Field, text};
use crate::volume_sources::{self as sources, Rule, SourceOwner};

/// Sources of a volume with their rules, in the order of validation.
const SOURCES: [(&str, Rule); 29] = [
    ("emptyDir", empty_dir),
    ("hostPath", sources::host_path),
    ("gitRepo", sources::git_repo),
    ("gcePersistentDisk", sources::gce_persistent_disk),
    ("awsElasticBlockStore", sources::aws_elastic_block_store),
    ("secret", volume_files::secret),
    ("nfs", sources::nfs),
    ("iscsi", sources::iscsi),
    ("glusterfs", sources::glusterfs),
    ("flocker", sources::flocker),
    ("persistentVolumeClaim", persistent_volume_claim),
    ("rbd", sources::rbd),
    ("cinder", sources::cinder),
    ("cephfs", sources::cephfs),
    ("quobyte", sources::quobyte),
    ("downwardAPI", volume_files::downward_api),
    ("fc", sources::fc),
    ("flexVolume", sources::flex_volume),
    ("configMap", volume_files::config_map),
    ("azureFile", sources::azure_file),
    ("vsphereVolume", sources::vsphere_volume),
    ("photonPersistentDisk", sources::photon_persistent_disk),
    ("portworxVolume", sources::portworx_volume),
    ("azureDisk", sources::azure_disk),
    ("storageos", sources::storage_os),
    ("projected", volume_files::projected),
    ("scaleIO", sources::scale_io),
    ("csi", csi),
    ("ephemeral", ephemeral),
];

/// Validates volumes. Returns the volumes without errors by name.
pub(super) fn validate<'v>(
    volumes: &Field<'v, '_>,
    errors: &mut FieldErrors,
) -> BTreeMap<&'v str, &'v Value> {
    let mut valid = BTreeMap::new();
    for volume in volumes.items() {
        let mut found = FieldErrors::new();
        source(&volume, &mut found);
        let name = volume.child("name");
        text::require_format(&name, format::label, &mut found);
        if valid.contains_key(name.text()) {
            found.push(name.duplicate());
        }
        match volume.value() {
            Some(value) if found.is_empty() => {
                valid.insert(name.text(), value);
            }
            _ => errors.extend(found),
        }
    }
    valid
}

fn source(volume: &Field<'_, '_>, errors: &mut FieldErrors) {
    let mut has_source = false;
    let names = volume.names();
    for (name, rule) in SOURCES.iter().filter(|(name, _)| names.contains(name)) {
        let source = volume.child(name);
        if has_source {
            // kube-apiserver spells two sources differently in this error.
            let reported = match *name {
                "cephfs" => volume.child("cephFS"),
                "downwardAPI" => volume.child("downwarAPI"),
                _ => source,
            };
            errors.push(reported.forbidden("may not specify more than 1 volume type"));
        } else {
            has_source = true;
            // kube-apiserver reports errors of this source under its name in Go.
            let reported = match *name {
                "gcePersistentDisk" => volume.child("persistentDisk").with_value(source.value()),
                _ => source,
            };
            rule(&reported, SourceOwner::Pod, errors);
        }
        let volume_name = volume.child("name");
        if *name == "iscsi"
            && let Some(detail) = sources::iscsi_name_violation(volume_name.text(), &volume.child(name))
        {
            errors.push(volume_name.invalid(detail));
        }
    }
    if !has_source {
        errors.push(volume.required("must specify a volume type"));
    }
}

fn empty_dir(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    let limit = source.child("sizeLimit");
    if schema::quantity::nanos(limit.text()).is_ok_and(|(nanos, _)| nanos < 0) {
        errors.push(limit.forbidden("SizeLimit field must be a valid resource quantity"));
    }
}

fn persistent_volume_claim(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    text::require(&source.child("claimName"), errors);
}

fn csi(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    sources::csi_driver_name(&source.child("driver"), errors);
    let secret = source.child("nodePublishSecretRef");
    if !secret.is_present() {
        return;
    }
    let name = secret.child("name");
    if name.text().is_empty() {
        errors.push(name.required(""));
    } else {
        // kube-apiserver omits the field with the secret reference from the path of a malformed name.
        text::check_format(&source.child("name").with_value(name.value()), format::subdomain, errors);
    }
}

fn ephemeral(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    let template = source.child("volumeClaimTemplate");
    if !template.is_present() {
        errors.push(template.required(""));
        return;
    }
    text::check_labels(&template.child("metadata").child("labels"), errors);
    sources::claim::claim_spec(&template.child("spec"), errors);
}
