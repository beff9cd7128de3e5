//! Removal of pod fields whose feature is off by default in release 1.33.
//!
//! kube-apiserver removes such fields from new objects before validation. apid does not implement these
//! features, so it always removes them.

use std::collections::HashSet;

use apimachinery::object::Value;

use crate::defaults::{Fields, each};

/// Removes the fields of disabled features from a pod spec.
pub(super) fn remove(spec: &mut Fields) {
    // PodLevelResources and DynamicResourceAllocation.
    spec.remove("resources");
    spec.remove("resourceClaims");
    image_volumes(spec);
    for volume in each(spec, "volumes") {
        trust_bundles(volume);
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in each(spec, list) {
            container_fields(container, list);
        }
    }
}

/// Removes the fields of disabled features from the status of a pod.
pub(crate) fn remove_from_status(status: &mut Fields) {
    // DynamicResourceAllocation and PodObservedGenerationTracking.
    status.remove("resourceClaimStatuses");
    status.remove("observedGeneration");
    for condition in each(status, "conditions") {
        condition.remove("observedGeneration");
    }
    // ResourceHealthStatus.
    for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        for container in each(status, list) {
            container.remove("allocatedResourcesStatus");
        }
    }
}

fn container_fields(container: &mut Fields, list: &str) {
    if let Some(Value::Object(resources)) = container.get_mut("resources") {
        resources.remove("claims");
    }
    // ContainerStopSignals.
    if let Some(Value::Object(lifecycle)) = container.get_mut("lifecycle") {
        lifecycle.remove("stopSignal");
    }
    // ContainerRestartRules: only init containers have their own policy. kube-apiserver treats an empty text
    // as absent.
    let is_unset = container.get("restartPolicy").and_then(Value::as_str) == Some("");
    if list == "containers" || is_unset {
        container.remove("restartPolicy");
    }
}

/// Removes volumes with an image (ImageVolume), and the mounts of these volumes.
fn image_volumes(spec: &mut Fields) {
    let Some(Value::Array(volumes)) = spec.get_mut("volumes") else { return };
    let has_image = |volume: &Value| volume.get("image").is_some_and(|image| !image.is_null());
    let images: HashSet<Value> = volumes
        .iter()
        .filter(|volume| has_image(volume))
        .filter_map(|volume| volume.get("name").cloned())
        .collect();
    if images.is_empty() {
        return;
    }
    volumes.retain(|volume| !has_image(volume));
    if volumes.is_empty() {
        spec.remove("volumes");
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in each(spec, list) {
            if let Some(Value::Array(mounts)) = container.get_mut("volumeMounts") {
                mounts.retain(|mount| mount.get("name").is_none_or(|name| !images.contains(name)));
            }
        }
    }
}

/// Removes projections of trust bundles (ClusterTrustBundleProjection).
fn trust_bundles(volume: &mut Fields) {
    let Some(Value::Object(projected)) = volume.get_mut("projected") else { return };
    for source in each(projected, "sources") {
        source.remove("clusterTrustBundle");
    }
}
