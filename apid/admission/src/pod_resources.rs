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

/// Resource amounts of a container.
pub(crate) fn of_container(container: &Value, sort: ResourceList) -> Amounts {
    amounts(container.get("resources").and_then(|resources| resources.get(sort.field())))
}

/// Effective resource amounts of a pod.
/// They are the sum of all containers, but at least each init container plus the sidecars started before it.
/// The overhead of the runtime is added; for limits only where a limit exists.
pub(crate) fn of_pod(pod: &Object, sort: ResourceList) -> Amounts {
    let mut together = Amounts::new();
    for container in containers(pod, CONTAINERS) {
        add(&mut together, &of_container(container, sort));
    }
    let (mut sidecars, mut highest) = (Amounts::new(), Amounts::new());
    for container in containers(pod, INIT_CONTAINERS) {
        let own = of_container(container, sort);
        if container.get("restartPolicy").and_then(Value::as_str) == Some("Always") {
            add(&mut together, &own);
            add(&mut sidecars, &own);
            raise(&mut highest, &sidecars);
        } else {
            let mut beside = own;
            add(&mut beside, &sidecars);
            raise(&mut highest, &beside);
        }
    }
    raise(&mut together, &highest);
    let mut overhead = amounts(pod.at(&["spec", "overhead"]));
    if sort == ResourceList::Limits {
        overhead.retain(|name, _| together.get(name).is_some_and(|limit| !limit.is_zero()));
    }
    add(&mut together, &overhead);
    together
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
            assert_eq!(text(&of_pod(&pod, ResourceList::Requests)), sum, "{spec}");
        }
    }
}
