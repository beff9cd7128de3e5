//! Resource requests and limits of containers and pods.

use apimachinery::object::Object;
use serde_json::Value;

use crate::pod_containers::{CONTAINERS, INIT_CONTAINERS, containers};
use crate::quantity::{Amounts, add, amounts, raise};

/// One of the two resource lists of a container.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResourceList {
    /// Guaranteed amounts.
    Requests,
    /// Maximum amounts.
    Limits,
}

impl ResourceList {
    /// Field name of the list in `resources`.
    pub(crate) fn field(self) -> &'static str {
        match self {
            ResourceList::Requests => "requests",
            ResourceList::Limits => "limits",
        }
    }
}

/// Requests or limits of a container.
pub(crate) fn container_amounts(container: &Value, resource_list: ResourceList) -> Amounts {
    amounts(container.get("resources").and_then(|resources| resources.get(resource_list.field())))
}

/// Effective requests or limits of a pod.
///
/// They are the sum over all regular containers and sidecars. They are at least the amounts of each init container
/// plus those of the sidecars that start earlier. The pod overhead is added; to limits only if the resource has a
/// limit other than zero.
pub(crate) fn pod_amounts(pod: &Object, resource_list: ResourceList) -> Amounts {
    let mut total = Amounts::new();
    for container in containers(pod, CONTAINERS) {
        add(&mut total, &container_amounts(container, resource_list));
    }
    let (mut sidecars, mut max_during_init) = (Amounts::new(), Amounts::new());
    for container in containers(pod, INIT_CONTAINERS) {
        let requested = container_amounts(container, resource_list);
        if container.get("restartPolicy").and_then(Value::as_str) == Some("Always") {
            add(&mut total, &requested);
            add(&mut sidecars, &requested);
            raise(&mut max_during_init, &sidecars);
        } else {
            let mut with_sidecars = requested;
            add(&mut with_sidecars, &sidecars);
            raise(&mut max_during_init, &with_sidecars);
        }
    }
    raise(&mut total, &max_during_init);
    let mut overhead = amounts(pod.at(&["spec", "overhead"]));
    if resource_list == ResourceList::Limits {
        overhead.retain(|name, _| total.get(name).is_some_and(|limit| !limit.is_zero()));
    }
    add(&mut total, &overhead);
    total
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::quantity::text;

    #[test]
    fn pod_resources_include_init_containers_sidecars_and_overhead() {
        let container = |requests: Value| json!({"name": "c", "resources": {"requests": requests}});
        let sidecar = json!({"restartPolicy": "Always", "resources": {"requests": {"cpu": "50m"}}});
        for (spec, sum) in [
            (
                json!({"containers": [container(json!({"cpu": "100m"})), container(json!({"cpu": "1", "memory": "1Gi"}))]}),
                "cpu=1100m,memory=1Gi",
            ),
            (
                json!({"containers": [container(json!({"cpu": "1"}))], "initContainers": [container(json!({"cpu": "2"}))]}),
                "cpu=2",
            ),
            (
                json!({"containers": [container(json!({"cpu": "1"}))], "initContainers": [sidecar, container(json!({"cpu": "2"}))]}),
                "cpu=2050m",
            ),
            (
                json!({"containers": [container(json!({"cpu": "1"}))], "initContainers": [sidecar]}),
                "cpu=1050m",
            ),
            (
                json!({"containers": [container(json!({"cpu": "1"}))], "overhead": {"cpu": "10m", "memory": "1Mi"}}),
                "cpu=1010m,memory=1Mi",
            ),
        ] {
            let pod = Object::from_value(json!({"spec": spec.clone()})).unwrap();
            assert_eq!(text(&pod_amounts(&pod, ResourceList::Requests)), sum, "{spec}");
        }
    }
}
