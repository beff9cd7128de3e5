//! Warnings about volumes: deprecated sources, and files of a volume that hide others.

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

/// Deprecated annotations of volumes and claims: the name, the release that deprecated it, and the field.
const CLASS_ANNOTATION: (&str, &str, &str) = ("storage-class", "v1.8", "storageClassName");
const OPTIONS_ANNOTATION: (&str, &str, &str) = ("mount-options", "v1.31", "mountOptions");

/// Reports deprecated sources of volumes.
pub(super) fn deprecated(volumes: &Field<'_, '_>, warnings: &mut Vec<String>) {
    for volume in volumes.items() {
        deprecated_sources(&volume, warnings);
        let ephemeral = volume.child("ephemeral");
        let template = ephemeral.child("volumeClaimTemplate");
        claim_spec(&template.child("spec"), warnings);
    }
}

fn deprecated_sources(owner: &Field<'_, '_>, warnings: &mut Vec<String>) {
    for (field, name, text) in DEPRECATED_SOURCES {
        if owner.child(field).is_present() {
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
    deprecated_sources(&spec, &mut warnings);
    warnings
}

/// Reports files of a volume that hide other files of it, and projections without a source.
pub(super) fn overlapping_paths(volumes: &Field<'_, '_>, warnings: &mut Vec<String>) {
    for volume in volumes.items() {
        let name = volume.child("name").text();
        for (source, owner, described) in [
            ("configMap", "name", "ConfigMap"),
            ("secret", "secretName", "Secret"),
            ("downwardAPI", "", "DownwardAPI"),
        ] {
            let source = volume.child(source);
            let described = match owner {
                "" => described.to_owned(),
                owner => format!("{described} {:?}", source.child(owner).text()),
            };
            for overlap in overlaps(&source.child("items")) {
                warnings.push(format!("volume {name:?} ({described}): overlapping paths: {overlap}"));
            }
        }
        let projected = volume.child("projected");
        for source in projected.child("sources").items() {
            let kinds = ["secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle"];
            if !kinds.iter().any(|kind| source.child(kind).is_present()) {
                warnings.push(format!("volume {name:?} (Projected) has no sources provided"));
            }
        }
    }
}

/// Pairs of paths of which the first is equal to the second, or is below it.
fn overlaps(items: &Field<'_, '_>) -> Vec<String> {
    let mut paths: Vec<&str> = items
        .list()
        .iter()
        .filter_map(|item| Some(item.get("path")?.as_str()?.trim_end_matches('/')))
        .collect();
    paths.sort_unstable();
    let mut found = Vec::new();
    for (i, path) in paths.iter().enumerate() {
        for shorter in paths.iter().take(i) {
            let is_below =
                path.strip_prefix(shorter).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
            if is_below {
                found.push(format!("{path:?} with {shorter:?}"));
            }
        }
    }
    found
}
