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
use crate::table::cell::PathReader;
use crate::{metadata, pods, status};

/// Subresource that adds ephemeral containers.
pub(super) const EPHEMERAL: &str = "ephemeralcontainers";
/// Subresource that changes the resources of containers.
pub(super) const RESIZE: &str = "resize";

const EPHEMERAL_FIELD: &str = "ephemeralContainers";
/// Container lists that are fixed at creation.
const FIXED_CONTAINER_LISTS: [&str; 2] = ["containers", "initContainers"];

/// Container fields of the body that a resize validates. Validation rejects a changed `resizePolicy`.
const RESIZE_FIELDS: [&str; 2] = ["resources", "resizePolicy"];

/// Keeps the ephemeral containers of the body and restores all other fields of the spec.
pub(super) fn keep_ephemeral(new: &mut Object, old: &Object) {
    let containers = spec(new).and_then(|spec| spec.remove(EPHEMERAL_FIELD));
    restore(new, old);
    let Some(spec) = spec(new) else { return };
    match containers {
        Some(containers) => drop(spec.insert(EPHEMERAL_FIELD.to_owned(), containers)),
        None => drop(spec.remove(EPHEMERAL_FIELD)),
    }
}

/// Keeps the container resources of the body and restores all other fields of the spec.
/// Keeps a list with other container names as it is; validation rejects such a list.
pub(super) fn keep_resources(new: &mut Object, old: &Object) {
    let body_lists =
        FIXED_CONTAINER_LISTS.map(|list| spec(new).and_then(|spec| spec.remove(list)).unwrap_or_default());
    restore(new, old);
    let Some(spec) = spec(new) else { return };
    for (list, body_list) in FIXED_CONTAINER_LISTS.iter().zip(body_lists) {
        let Value::Array(body_containers) = body_list else {
            spec.remove(*list);
            continue;
        };
        match spec.get_mut(*list) {
            Some(Value::Array(containers)) if has_same_names(containers, &body_containers) => {
                for (container, body_container) in containers.iter_mut().zip(body_containers) {
                    copy_resources(container, body_container);
                }
            }
            _ => drop(spec.insert((*list).to_owned(), body_containers.into())),
        }
    }
}

fn has_same_names(containers: &[Value], others: &[Value]) -> bool {
    containers.len() == others.len()
        && containers
            .iter()
            .zip(others)
            .all(|(container, other)| container.text("name") == other.text("name"))
}

/// Copies the fields of a resize from the container of the body.
fn copy_resources(container: &mut Value, mut body_container: Value) {
    let (Some(container), Some(body_container)) = (container.as_object_mut(), body_container.as_object_mut())
    else {
        return;
    };
    for field in RESIZE_FIELDS {
        match body_container.remove(field) {
            Some(value) => drop(container.insert(field.to_owned(), value)),
            None => drop(container.remove(field)),
        }
    }
}

/// Validates a pod with changed ephemeral containers.
pub(super) fn validate_ephemeral(new: &Object, old: &Object, names: &Names) -> FieldErrors {
    let mut errors = pods::validation::pod(new, names);
    let path = FieldPath::new("spec").child(EPHEMERAL_FIELD);
    let containers = new.items("spec.ephemeralContainers");
    let by_name: BTreeMap<&str, &Value> =
        containers.iter().map(|container| (container.text("name"), container)).collect();
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
    let mut errors = FieldErrors::new();
    let is_static = old.annotation(&names.label_key("config.mirror")).is_some();
    if is_static || old.text("spec.os.name") == "windows" {
        let pods = if is_static { "static" } else { "windows" };
        errors.push(FieldError::forbidden(&FieldPath::new(""), &format!("{pods} pods cannot be resized")));
        return errors;
    }
    errors.extend(pods::validation::pod(new, names));
    let path = FieldPath::new("spec");
    if pod_status::qos_class(new) != pod_status::quality_of_service(old) {
        let detail = "Pod QOS Class may not change as a result of resizing";
        errors.push(FieldError::invalid(&path, new.text("status.qosClass"), detail));
    }
    let running = old.items("status.containerStatuses").iter().find(|s| s.find("state.running").is_some());
    if running.is_some_and(|status| status.find("resources").is_none()) {
        errors.push(FieldError::forbidden(&path, "Pod running on node without support for resize"));
    }
    let differences = order_differences(new, old, &path);
    if !differences.is_empty() {
        errors.extend(differences);
        return errors;
    }
    for list in FIXED_CONTAINER_LISTS {
        let full = format!("spec.{list}");
        for (i, (container, old_container)) in new.items(&full).iter().zip(old.items(&full)).enumerate() {
            let can_resize = list == "containers" || container.text("restartPolicy") == "Always";
            if can_resize {
                let path = path.child(list).index(i).child("resources");
                validate_container_resize(container, old_container, &path, &mut errors);
            }
            if can_resize && has_other_changes(container, old_container) {
                errors.push(FieldError::forbidden(&path, "only cpu and memory resources are mutable"));
            }
            if !can_resize && container != old_container {
                let detail = "resources for non-sidecar init containers are immutable";
                errors.push(FieldError::forbidden(&path, detail));
            }
        }
    }
    errors
}

/// Reports containers that a resize adds, removes, renames or reorders.
fn order_differences(new: &Object, old: &Object, path: &FieldPath) -> FieldErrors {
    let mut errors = FieldErrors::new();
    for list in FIXED_CONTAINER_LISTS {
        let full = format!("spec.{list}");
        let (containers, old_containers) = (new.items(&full), old.items(&full));
        let path = path.child(list);
        if containers.len() != old_containers.len() {
            let detail = format!("{list} may not be added or removed on resize");
            errors.push(FieldError::forbidden(&path, &detail));
            continue;
        }
        for (i, (container, old_container)) in containers.iter().zip(old_containers).enumerate() {
            if container.text("name") != old_container.text("name") {
                let detail = format!("{list} may not be renamed or reordered on resize");
                errors.push(FieldError::forbidden(&path.index(i).child("name"), &detail));
            }
        }
    }
    errors
}

/// Validates that a resize removes no request or limit, and lowers a memory limit only with a restart.
fn validate_container_resize(new: &Value, old: &Value, path: &FieldPath, errors: &mut FieldErrors) {
    for kind in ["requests", "limits"] {
        let amounts = new.entries(&format!("resources.{kind}"));
        let remaining: BTreeSet<&str> = amounts.iter().map(|(name, _)| *name).collect();
        let old_amounts = old.entries(&format!("resources.{kind}"));
        if old_amounts.iter().any(|(name, _)| !remaining.contains(name)) {
            let detail = format!("resource {kind} cannot be removed");
            errors.push(FieldError::forbidden(&path.child(kind), &detail));
        }
    }
    if lowers_memory_limit(new, old) {
        let detail = "memory limits cannot be decreased unless resizePolicy is RestartContainer";
        errors.push(FieldError::forbidden(&path.child("limits").key("memory"), detail));
    }
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

/// Whether containers differ in more than cpu and memory. As in kube-apiserver, a list of amounts that the old
/// container lacks is no difference.
fn has_other_changes(new: &Value, old: &Value) -> bool {
    let without_resizable = |container: &Value| {
        let mut container = container.clone();
        if let Some(Value::Object(resources)) = container.get_mut("resources") {
            for kind in ["limits", "requests"] {
                let has_old = !old.entries(&format!("resources.{kind}")).is_empty();
                let Some(Value::Object(amounts)) = resources.get_mut(kind) else { continue };
                amounts.retain(|resource, _| has_old && resource != "cpu" && resource != "memory");
                if amounts.is_empty() {
                    resources.remove(kind);
                }
            }
        }
        container
    };
    without_resizable(new) != without_resizable(old)
}

/// Restores the spec, the status, and the metadata that the author of a pod sets.
fn restore(new: &mut Object, old: &Object) {
    for field in ["spec", "status"] {
        status::restore_field(new, old, field);
    }
    for field in status::REQUEST_METADATA {
        metadata::restore_field(new, old, field);
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
        let pod = json!({"metadata": {"name": "p"}, "spec": spec, "status": {"qosClass": "Burstable"}});
        let mut pod = Object::from_value(pod).unwrap();
        pods::defaults::pod(&mut pod, &names());
        pod
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
            let sent = new.items("spec.containers")[0]["resources"].clone();
            keep_resources(&mut new, &old);
            assert_eq!(new.text("spec.nodeName"), "");
            let container_after = new.items("spec.containers").first().unwrap();
            assert_eq!((container_after.text("image"), container_after.get("resources")), ("a", Some(&sent)));
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
            let mut container = container("a", json!({"requests": {"cpu": "1"}}));
            container["resizePolicy"] = policies;
            pod(json!({"containers": [container]}))
        };
        let (mut new, old_policy) = (pod_with_policy("RestartContainer"), pod_with_policy("NotRequired"));
        keep_resources(&mut new, &old_policy);
        assert_eq!(
            validate_resize(&new, &old_policy, &names()).iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["spec: Forbidden: only cpu and memory resources are mutable"]
        );
        let resized = |containers: Value| {
            let mut new = pod(json!({"containers": containers, "nodeName": "n"}));
            new.set_meta("generateName", "g-");
            keep_resources(&mut new, &old);
            assert_eq!((new.text("spec.nodeName"), new.meta_str("generateName")), ("", "g-"));
            validate_resize(&new, &old, &names()).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let resources = json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}});
        assert_eq!(
            resized(json!([{"name": "d", "image": "a", "resources": resources}])),
            ["spec.containers[0].name: Forbidden: containers may not be renamed or reordered on resize"]
        );
        assert_eq!(
            resized(json!([container("a", resources), {"name": "d", "image": "a"}])),
            ["spec.containers: Forbidden: containers may not be added or removed on resize"]
        );
    }

    #[test]
    fn resize_of_static_windows_and_init_containers_is_rejected() {
        let errors = |old: &Object, new: &Object| {
            validate_resize(new, old, &names()).iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let mut mirror = pod(json!({"containers": [{"name": "c", "image": "a"}]}));
        mirror.set_meta("annotations", json!({"kubernetes.io/config.mirror": "x"}));
        assert_eq!(errors(&mirror, &mirror), [": Forbidden: static pods cannot be resized"]);
        let windows = pod(json!({"containers": [{"name": "c", "image": "a"}], "os": {"name": "windows"}}));
        assert_eq!(errors(&windows, &windows), [": Forbidden: windows pods cannot be resized"]);
        let with_init = |policy: Value, cpu: &str| {
            let resources = json!({"requests": {"cpu": cpu}});
            let init = json!({"name": "i", "image": "a", "restartPolicy": policy, "resources": resources});
            pod(json!({"containers": [{"name": "c", "image": "a"}], "initContainers": [init]}))
        };
        let (always, none) = (json!("Always"), Value::Null);
        assert_eq!(errors(&with_init(always.clone(), "1"), &with_init(always, "2")), [""; 0]);
        assert_eq!(
            errors(&with_init(none.clone(), "1"), &with_init(none, "2")),
            ["spec: Forbidden: resources for non-sidecar init containers are immutable"]
        );
    }
}
