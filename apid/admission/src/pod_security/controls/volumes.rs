//! Volumes: host paths are forbidden (baseline); only the sources in [`ALLOWED`] are allowed (restricted).

use std::collections::BTreeSet;

use apimachinery::object::Value;

use super::{Violation, plural, quoted};
use crate::pod_containers::name;
use crate::pod_security::pod::Pod;

/// Volume sources that the restricted standard allows.
const ALLOWED: &[&str] = &[
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// Volume sources with a name in messages; other sources are `unknown`.
const NAMED: &[&str] = &[
    "hostPath",
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "gitRepo",
    "nfs",
    "iscsi",
    "glusterfs",
    "rbd",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "fc",
    "azureFile",
    "vsphereVolume",
    "quobyte",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "storageos",
];

/// Rejects volumes of type `hostPath`.
pub(super) fn host_path(pod: &Pod<'_>) -> Option<Violation> {
    let names: Vec<&str> = pod.volumes().filter(|volume| has_source(volume, "hostPath")).map(name).collect();
    if names.is_empty() {
        return None;
    }
    let detail = format!("{} {}", plural(names.len(), "volume", "volumes"), quoted(names));
    Some(Violation { reason: "hostPath volumes", detail })
}

/// Rejects volumes of types other than those of the restricted standard.
pub(super) fn restricted(pod: &Pod<'_>) -> Option<Violation> {
    let violating: Vec<_> =
        pod.volumes().filter(|volume| !ALLOWED.iter().any(|source| has_source(volume, source))).collect();
    if violating.is_empty() {
        return None;
    }
    let source = |volume: &&Value| {
        NAMED.iter().find(|source| has_source(volume, source)).copied().unwrap_or("unknown")
    };
    let sources: BTreeSet<&str> = violating.iter().map(source).collect();
    let detail = format!(
        "{} {} {} {} {}",
        plural(violating.len(), "volume", "volumes"),
        quoted(violating.iter().map(|volume| name(volume))),
        plural(violating.len(), "uses", "use"),
        plural(sources.len(), "restricted volume type", "restricted volume types"),
        quoted(sources)
    );
    Some(Violation { reason: "restricted volume types", detail })
}

fn has_source(volume: &Value, source: &str) -> bool {
    volume.get(source).is_some_and(|source| !source.is_null())
}
