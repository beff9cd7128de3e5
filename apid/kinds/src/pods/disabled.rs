//! Removal of pod fields whose feature is off by default in release 1.33.
//!
//! kube-apiserver removes such fields from new objects before validation. apid does not implement these
//! features, so it always removes them.

use std::collections::HashSet;

use apimachinery::object::Value;

use crate::defaults::{Fields, maps_in_list};

/// Removes the fields of disabled features from a pod spec.
pub(super) fn remove_from_spec(spec: &mut Fields) {
    // Feature gates PodLevelResources and DynamicResourceAllocation.
    spec.remove("resources");
    spec.remove("resourceClaims");
    remove_image_volumes(spec);
    for volume in maps_in_list(spec, "volumes") {
        remove_trust_bundles(volume);
    }
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in maps_in_list(spec, list) {
            remove_from_container(container, list);
        }
    }
}

/// Removes the fields of disabled features from the status of a pod.
pub(crate) fn remove_from_status(status: &mut Fields) {
    // Feature gates DynamicResourceAllocation and PodObservedGenerationTracking.
    status.remove("resourceClaimStatuses");
    status.remove("observedGeneration");
    for condition in maps_in_list(status, "conditions") {
        condition.remove("observedGeneration");
    }
    // Feature gate ResourceHealthStatus.
    for list in ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"] {
        for container in maps_in_list(status, list) {
            container.remove("allocatedResourcesStatus");
        }
    }
}

fn remove_from_container(container: &mut Fields, list: &str) {
    if let Some(Value::Object(resources)) = container.get_mut("resources") {
        resources.remove("claims");
    }
    // Feature gate ContainerStopSignals.
    if let Some(Value::Object(lifecycle)) = container.get_mut("lifecycle") {
        lifecycle.remove("stopSignal");
    }
    // Feature gate ContainerRestartRules: while it is off, the only restart policy of a container is `Always`
    // for init containers. Validation reports the policy of an ephemeral container.
    let policy = container.get("restartPolicy").and_then(Value::as_str).unwrap_or_default();
    let is_kept = match list {
        "containers" => false,
        "initContainers" => policy == "Always",
        _ => !policy.is_empty(),
    };
    if !is_kept {
        container.remove("restartPolicy");
    }
}

/// Removes volumes with an image (feature gate ImageVolume), and the mounts of these volumes.
fn remove_image_volumes(spec: &mut Fields) {
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
        for container in maps_in_list(spec, list) {
            if let Some(Value::Array(mounts)) = container.get_mut("volumeMounts") {
                mounts.retain(|mount| mount.get("name").is_none_or(|name| !images.contains(name)));
            }
        }
    }
}

/// Removes projections of trust bundles (feature gate ClusterTrustBundleProjection).
fn remove_trust_bundles(volume: &mut Fields) {
    let Some(Value::Object(projected)) = volume.get_mut("projected") else { return };
    for source in maps_in_list(projected, "sources") {
        source.remove("clusterTrustBundle");
    }
}
