//! Pod subresources that change one part of a running pod: `ephemeralcontainers` and `resize`.
//!
//! A write to one of these subresources ignores all other fields of its body.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::field::{FieldError, FieldErrors, FieldPath, quote};
use apimachinery::names::Names;
use apimachinery::object::{Map, Object};
use apimachinery::quantity;
use serde_json::Value;

use super::pod_status;
use crate::pods;
use crate::table::cell::PathReader;

/// Subresource that adds ephemeral containers.
pub(super) const EPHEMERAL: &str = "ephemeralcontainers";
/// Subresource that changes the resources of containers.
pub(super) const RESIZE: &str = "resize";

const EPHEMERAL_FIELD: &str = "ephemeralContainers";
/// Container lists that are fixed at creation.
const FIXED_CONTAINER_LISTS: [&str; 2] = ["containers", "initContainers"];

/// Container fields of the body that a resize validates. Validation rejects a changed `resizePolicy`.
const RESIZE_FIELDS: [&str; 2] = ["resources", "resizePolicy"];

/// Keeps the ephemeral containers of the body and restores all other fields.
pub(super) fn keep_ephemeral(new: &mut Object, old: &Object) {
    let containers = spec(new).and_then(|spec| spec.remove(EPHEMERAL_FIELD));
    restore(new, old);
    let Some(spec) = spec(new) else { return };
    match containers {
        Some(containers) => drop(spec.insert(EPHEMERAL_FIELD.to_owned(), containers)),
        None => drop(spec.remove(EPHEMERAL_FIELD)),
    }
}

/// Keeps the container resources of the body and restores all other fields.
/// Leaves a body with other container names unchanged; validation rejects such a body.
pub(super) fn keep_resources(new: &mut Object, old: &Object) {
    let names = |pod: &Object, list: &str| -> Vec<String> {
        pod.items(&format!("spec.{list}")).iter().map(|c| c.text("name").to_owned()).collect()
    };
    if FIXED_CONTAINER_LISTS.iter().any(|list| names(new, list) != names(old, list)) {
        return;
    }
    let body_lists = FIXED_CONTAINER_LISTS.map(|list| new.items(&format!("spec.{list}")).to_vec());
    restore(new, old);
    let Some(spec) = spec(new) else { return };
    for (list, body_containers) in FIXED_CONTAINER_LISTS.iter().zip(body_lists) {
        let Some(Value::Array(containers)) = spec.get_mut(*list) else { continue };
        for (container, mut body_container) in containers.iter_mut().zip(body_containers) {
            let (Some(container), Some(body_container)) =
                (container.as_object_mut(), body_container.as_object_mut())
            else {
                continue;
            };
            for field in RESIZE_FIELDS {
                match body_container.remove(field) {
                    Some(value) => drop(container.insert(field.to_owned(), value)),
                    None => drop(container.remove(field)),
                }
            }
        }
    }
}

/// Validates ephemeral containers and their changes.
pub(super) fn validate_ephemeral(new: &Object, old: &Object, names: &Names) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let path = FieldPath::new("spec").child(EPHEMERAL_FIELD);
    errors.extend(pods::validation::ephemeral_containers(new, names));
    let containers = new.items("spec.ephemeralContainers");
    let mut by_name: BTreeMap<&str, &Value> = BTreeMap::new();
    for container in containers {
        by_name.entry(container.text("name")).or_insert(container);
    }
    for old_container in old.items("spec.ephemeralContainers") {
        let name = quote(old_container.text("name"));
        let change = match by_name.get(old_container.text("name")).copied() {
            None => "removed",
            Some(new_container) if new_container != old_container => "changed",
            Some(_) => continue,
        };
        let detail = format!("existing ephemeral containers {name} may not be {change}");
        errors.push(FieldError::forbidden(&path, &detail));
    }
    errors
}

/// Validates a resize.
pub(super) fn validate_resize(new: &Object, old: &Object, names: &Names) -> FieldErrors {
    let path = FieldPath::new("spec");
    let mut errors = pods::validation::resources_of_containers(new, names);
    for list in FIXED_CONTAINER_LISTS {
        let old_containers = old.items(&format!("spec.{list}"));
        for (i, container) in new.items(&format!("spec.{list}")).iter().enumerate() {
            let Some(old_container) = old_containers.get(i) else { continue };
            for kind in ["limits", "requests"] {
                let (old_amounts, new_amounts) = (
                    old_container.entries(&format!("resources.{kind}")),
                    container.entries(&format!("resources.{kind}")),
                );
                let remaining: BTreeSet<&str> = new_amounts.iter().map(|(name, _)| *name).collect();
                if old_amounts.iter().any(|(name, _)| !remaining.contains(name)) {
                    let path = path.child(list).index(i).child("resources").child(kind);
                    errors.push(FieldError::forbidden(&path, &format!("resource {kind} cannot be removed")));
                }
            }
            if lowers_memory_limit(container, old_container) {
                let path = path.child(list).index(i).child("resources").child("limits").key("memory");
                let detail = "memory limits cannot be decreased unless resizePolicy is RestartContainer";
                errors.push(FieldError::forbidden(&path, detail));
            }
        }
    }
    let qos_class = pod_status::qos_class(new);
    if qos_class != pod_status::qos_class(old) {
        let detail = "Pod QOS Class may not change as a result of resizing";
        errors.push(FieldError::invalid(&path, old.text("status.qosClass"), detail));
    }
    let running = old.items("status.containerStatuses").iter().find(|s| s.find("state.running").is_some());
    if running.is_some_and(|status| status.find("resources").is_none()) {
        errors.push(FieldError::forbidden(&path, "Pod running on node without support for resize"));
    }
    if without_resizable(new) != without_resizable(old) {
        errors.push(FieldError::forbidden(&path, "only cpu and memory resources are mutable"));
    }
    errors
}

/// Whether a resize lowers the memory limit of a container that does not restart.
fn lowers_memory_limit(new: &Value, old: &Value) -> bool {
    let policies = new.items("resizePolicy");
    let policy = policies.iter().find(|policy| policy.text("resourceName") == "memory");
    if policy.is_some_and(|policy| policy.text("restartPolicy") == "RestartContainer") {
        return false;
    }
    let limit = |container: &Value| {
        let limit = container.find("resources.limits.memory")?.as_str()?;
        Some(quantity::nanos(limit).ok()?.0)
    };
    limit(new).zip(limit(old)).is_some_and(|(new, old)| new < old)
}

/// The spec without the fields that a resize may change.
fn without_resizable(pod: &Object) -> Option<Value> {
    let mut spec = pod.get("spec").cloned()?;
    for list in FIXED_CONTAINER_LISTS {
        let containers = spec.get_mut(list).and_then(Value::as_array_mut);
        for container in containers.into_iter().flatten().filter_map(Value::as_object_mut) {
            let Some(Value::Object(resources)) = container.get_mut("resources") else { continue };
            for kind in ["limits", "requests"] {
                let Some(Value::Object(amounts)) = resources.get_mut(kind) else { continue };
                amounts.retain(|resource, _| resource != "cpu" && resource != "memory");
                if amounts.is_empty() {
                    resources.remove(kind);
                }
            }
        }
    }
    Some(spec)
}

/// Restores all fields except managedFields from the stored pod.
fn restore(new: &mut Object, old: &Object) {
    let owners = new.remove_meta("managedFields");
    new.clone_from(old);
    match owners {
        Some(owners) => new.set_meta("managedFields", owners),
        None => drop(new.remove_meta("managedFields")),
    }
}

fn spec(pod: &mut Object) -> Option<&mut Map<String, Value>> {
    pod.get_mut("spec").and_then(Value::as_object_mut)
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;
    use serde_json::json;

    use super::*;

    fn names() -> Names {
        Names::new(Preset::Kubernetes, "").unwrap()
    }

    fn pod(spec: Value) -> Object {
        Object::from_value(
            json!({"metadata": {"name": "p"}, "spec": spec, "status": {"qosClass": "Burstable"}}),
        )
        .unwrap()
    }

    fn fields(errors: &[FieldError]) -> Vec<&str> {
        errors.iter().map(|error| error.path.as_str()).collect()
    }

    #[test]
    fn ephemeral_containers_can_only_be_added() {
        let old = pod(
            json!({"containers": [{"name": "c", "image": "a"}], "ephemeralContainers": [{"name": "e", "image": "a", "terminationMessagePolicy": "File", "imagePullPolicy": "Always"}]}),
        );
        for (mut ephemeral, expected) in [
            (
                json!([{"name": "e", "image": "a"}, {"name": "f", "image": "a", "targetContainerName": "c"}]),
                vec![],
            ),
            (json!([]), vec!["spec.ephemeralContainers"]),
            (json!([{"name": "e", "image": "b"}]), vec!["spec.ephemeralContainers"]),
            (
                json!([{"name": "e", "image": "a"}, {"name": "c", "image": "a", "ports": [{"containerPort": 1, "protocol": "TCP"}], "resources": {}},
                    {"name": "g", "targetContainerName": "e", "livenessProbe": {"x": 1}}]),
                vec![
                    "spec.ephemeralContainers[1].name",
                    "spec.ephemeralContainers[1].ports",
                    "spec.ephemeralContainers[2].image",
                    "spec.ephemeralContainers[2].targetContainerName",
                    "spec.ephemeralContainers[2].livenessProbe",
                ],
            ),
        ] {
            for container in ephemeral.as_array_mut().unwrap() {
                container["terminationMessagePolicy"] = json!("File");
                container["imagePullPolicy"] = json!("Always");
            }
            let mut new = pod(json!({"containers": [], "ephemeralContainers": ephemeral}));
            new.set_meta("labels", json!({"not": "kept"}));
            keep_ephemeral(&mut new, &old);
            assert_eq!(new.items("spec.containers"), old.items("spec.containers"));
            assert!(new.label("not").is_none());
            assert_eq!(fields(&validate_ephemeral(&new, &old, &names())), expected, "{ephemeral}");
        }
    }

    #[test]
    fn resize_changes_cpu_and_memory_only() {
        let container =
            |image: &str, resources: Value| json!({"name": "c", "image": image, "resources": resources});
        let old = pod(
            json!({"containers": [container("a", json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}))]}),
        );
        for (resources, wrong) in [
            (json!({"requests": {"cpu": "1500m", "memory": "1Gi"}, "limits": {"cpu": "2"}}), 0),
            (json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2", "ephemeral-storage": "1Gi"}}), 1),
            (json!({"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2", "memory": "1Gi"}}), 1),
        ] {
            let mut new =
                pod(json!({"containers": [container("other", resources.clone())], "nodeName": "n"}));
            keep_resources(&mut new, &old);
            assert_eq!(new.text("spec.nodeName"), "");
            let container_after = new.items("spec.containers").first().unwrap();
            assert_eq!(
                (container_after.text("image"), container_after.get("resources")),
                ("a", Some(&resources))
            );
            assert_eq!(fields(&validate_resize(&new, &old, &names())), vec!["spec"; wrong], "{resources}");
        }
        let errors_of_lower_limit = |policy: &str| {
            let pod = |memory: &str| {
                let limits = json!({"limits": {"memory": memory}, "requests": {"memory": "1Mi"}});
                let mut container = container("a", limits);
                container["resizePolicy"] = json!([{"resourceName": "memory", "restartPolicy": policy}]);
                pod(json!({"containers": [container]}))
            };
            let (mut new, old) = (pod("1Gi"), pod("2Gi"));
            keep_resources(&mut new, &old);
            validate_resize(&new, &old, &names()).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(errors_of_lower_limit("RestartContainer"), [""; 0]);
        assert_eq!(
            errors_of_lower_limit("NotRequired"),
            [
                "spec.containers[0].resources.limits[memory]: Forbidden: memory limits cannot be decreased unless \
                 resizePolicy is RestartContainer"
            ]
        );
        let pod_with_policy = |policy: &str| {
            let policies = json!([{"resourceName": "cpu", "restartPolicy": policy}]);
            pod(json!({"containers": [{"name": "c", "image": "a", "resizePolicy": policies}]}))
        };
        let (mut new, old_policy) = (pod_with_policy("RestartContainer"), pod_with_policy("NotRequired"));
        keep_resources(&mut new, &old_policy);
        assert_eq!(
            validate_resize(&new, &old_policy, &names()).iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["spec: Forbidden: only cpu and memory resources are mutable"]
        );
        let mut renamed = pod(json!({"containers": [{"name": "d", "image": "a"}]}));
        keep_resources(&mut renamed, &old);
        assert!(!validate_resize(&renamed, &old, &names()).is_empty());
    }
}
