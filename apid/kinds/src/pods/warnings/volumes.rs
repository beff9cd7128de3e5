//! Warnings about volumes and claims: deprecated sources and annotations, and fractional amounts.

use apimachinery::names::Names;
use apimachinery::object::Object;

use super::{containers, scheduling};
use crate::validation::Field;

/// Deprecated sources: the field, its name in warnings, and the text.
const DEPRECATED_SOURCES: [(&str, &str, &str); 9] = [
    ("photonPersistentDisk", "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"),
    ("gitRepo", "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"),
    ("scaleIO", "scaleIO", "deprecated in v1.16, non-functional in v1.22+"),
    ("flocker", "flocker", "deprecated in v1.22, non-functional in v1.25+"),
    ("storageos", "storageOS", "deprecated in v1.22, non-functional in v1.25+"),
    ("quobyte", "quobyte", "deprecated in v1.22, non-functional in v1.25+"),
    ("glusterfs", "glusterfs", "deprecated in v1.25, non-functional in v1.26+"),
    ("cephfs", "cephfs", "deprecated in v1.28, non-functional in v1.31+"),
    ("rbd", "rbd", "deprecated in v1.28, non-functional in v1.31+"),
];

/// Deprecated annotation for the storage class: the name, the release that deprecated it, and the field to
/// use.
const CLASS_ANNOTATION: (&str, &str, &str) = ("storage-class", "v1.8", "storageClassName");
/// Deprecated annotation for mount options, in the same form.
const OPTIONS_ANNOTATION: (&str, &str, &str) = ("mount-options", "v1.31", "mountOptions");

/// Reports deprecated sources of volumes.
pub(super) fn deprecated(volumes: &Field<'_, '_>, warnings: &mut Vec<String>) {
    for volume in volumes.items() {
        deprecated_sources(&volume, &[], warnings);
        let ephemeral = volume.child("ephemeral");
        let template = ephemeral.child("volumeClaimTemplate");
        claim_spec(&template.child("spec"), warnings);
    }
}

fn deprecated_sources(owner: &Field<'_, '_>, except: &[&str], warnings: &mut Vec<String>) {
    for (field, name, text) in DEPRECATED_SOURCES {
        if !except.contains(&field) && owner.child(field).is_present() {
            warnings.push(format!("{}: {text}", owner.child(name).path()));
        }
    }
}

/// Reports a fractional amount of storage that a claim requests. `spec` is the spec of the claim.
pub(crate) fn claim_spec(spec: &Field<'_, '_>, warnings: &mut Vec<String>) {
    let resources = spec.child("resources");
    containers::fractional_bytes(&resources.child("requests"), "storage", warnings);
}

/// Warnings about a persistent volume claim.
pub(crate) fn claim(claim: &Object, names: &Names) -> Vec<String> {
    let mut warnings = Vec::new();
    annotations(claim, &[CLASS_ANNOTATION], names, &mut warnings);
    claim_spec(&Field::new(claim.get("spec"), "spec"), &mut warnings);
    warnings
}

fn annotations(
    object: &Object,
    deprecated: &[(&str, &str, &str)],
    names: &Names,
    warnings: &mut Vec<String>,
) {
    for (name, since, field) in deprecated {
        let key = names.label_sub_key("volume.beta", name);
        if object.annotation(&key).is_some() {
            warnings.push(format!(
                "metadata.annotations[{key}]: deprecated since {since}; use {field:?} attribute instead"
            ));
        }
    }
}

/// Warnings about a persistent volume.
pub(crate) fn persistent_volume(volume: &Object, names: &Names) -> Vec<String> {
    let mut warnings = Vec::new();
    annotations(volume, &[CLASS_ANNOTATION, OPTIONS_ANNOTATION], names, &mut warnings);
    let spec = Field::new(volume.get("spec"), "spec");
    let policy = spec.child("persistentVolumeReclaimPolicy");
    if policy.text() == "Recycle" {
        warnings.push(format!(
            "{}: The Recycle reclaim policy is deprecated. Instead, the recommended approach is to use dynamic provisioning.",
            policy.path()
        ));
    }
    let affinity = spec.child("nodeAffinity");
    let required = affinity.child("required");
    scheduling::node_terms(&required.child("nodeSelectorTerms"), names, &mut warnings);
    // kube-apiserver does not warn of these sources of persistent volumes.
    deprecated_sources(&spec, &["flocker", "quobyte"], &mut warnings);
    warnings
}
