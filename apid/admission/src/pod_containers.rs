//! The containers of a pod, whatever list they stand in.

use apimachinery::object::{Object, Value};

/// The lists of containers, in the order of the reference's checks.
pub(crate) const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// All containers with the list they stand in and their place in it.
pub(crate) fn each(pod: &Object) -> impl Iterator<Item = (&'static str, usize, &Value)> {
    LISTS.into_iter().flat_map(move |list| {
        let items = pod.at(&["spec", list]).and_then(Value::as_array);
        items.into_iter().flatten().enumerate().map(move |(i, container)| (list, i, container))
    })
}

/// A list of objects of the specification, to change its items.
pub(crate) fn items_mut<'a>(
    pod: &'a mut Object,
    list: &str,
) -> impl Iterator<Item = &'a mut Value> + use<'a> {
    let items = pod.get_mut("spec").and_then(|spec| spec.get_mut(list)).and_then(Value::as_array_mut);
    items.into_iter().flatten()
}
