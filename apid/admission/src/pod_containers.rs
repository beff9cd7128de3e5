//! Access to the containers of a pod in all its container lists.

use apimachinery::object::{Object, Value};

use crate::tree::{items_at, text};

/// `spec.containers`.
pub(crate) const CONTAINERS: &str = "containers";
/// `spec.initContainers`.
pub(crate) const INIT_CONTAINERS: &str = "initContainers";
/// `spec.ephemeralContainers`.
pub(crate) const EPHEMERAL_CONTAINERS: &str = "ephemeralContainers";
/// Container lists, in the check order of kube-apiserver.
pub(crate) const LISTS: [&str; 3] = [INIT_CONTAINERS, CONTAINERS, EPHEMERAL_CONTAINERS];

/// Containers in one container list of a pod.
pub(crate) fn containers<'a>(pod: &'a Object, list: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    items_at(pod, &["spec", list]).iter()
}

/// All containers with their list and index.
pub(crate) fn all_containers(pod: &Object) -> impl Iterator<Item = (&'static str, usize, &Value)> {
    LISTS.into_iter().flat_map(move |list| {
        containers(pod, list).enumerate().map(move |(i, container)| (list, i, container))
    })
}

/// Mutable items of a list in the pod spec.
pub(crate) fn items_mut<'a>(
    pod: &'a mut Object,
    list: &str,
) -> impl Iterator<Item = &'a mut Value> + use<'a> {
    let items = pod.get_mut("spec").and_then(|spec| spec.get_mut(list)).and_then(Value::as_array_mut);
    items.into_iter().flatten()
}

/// Name of a container.
pub(crate) fn name(container: &Value) -> &str {
    text(container, "name")
}
