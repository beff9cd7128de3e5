//! Detection of pod updates that can affect Pod Security controls.

use std::collections::BTreeMap;

use apimachinery::object::{Object, Value};

use super::pod::{Keys, text};

/// Whether the plugin must evaluate a pod update.
pub(super) fn affects_controls(new: &Object, old: &Object, keys: &Keys) -> bool {
    let annotation_changed = |key: &str| new.annotation(key) != old.annotation(key);
    if annotation_changed(&keys.seccomp_pod) {
        return true;
    }
    let container_changed = |new: &Value, old: &Value| {
        text(new, &["image"]) != text(old, &["image"])
            || annotation_changed(&format!("{}{}", keys.seccomp_prefix, text(new, &["name"])))
    };
    for list in ["containers", "initContainers"] {
        let (new, old) = (containers(new, list), containers(old, list));
        if new.len() != old.len() || new.iter().zip(old).any(|(new, old)| container_changed(new, old)) {
            return true;
        }
    }
    let mut old_ephemeral: BTreeMap<&str, &Value> = BTreeMap::new();
    for container in containers(old, "ephemeralContainers") {
        old_ephemeral.entry(text(container, &["name"])).or_insert(container);
    }
    containers(new, "ephemeralContainers").iter().any(|container| {
        let old = old_ephemeral.get(text(container, &["name"]));
        old.is_none_or(|old| container_changed(container, old))
    })
}

fn containers<'a>(pod: &'a Object, list: &str) -> &'a [Value] {
    pod.at(&["spec", list]).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
