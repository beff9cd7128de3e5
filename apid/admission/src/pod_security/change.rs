//! Detection of pod updates that can affect Pod Security controls.

use std::collections::BTreeMap;

use apimachinery::object::{Object, Value};

use super::pod::{Keys, text};
use crate::tree::items_at;

/// Path of the ephemeral containers.
const EPHEMERAL: &[&str] = &["spec", "ephemeralContainers"];

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
        let path = ["spec", list];
        let (new, old) = (items_at(new, &path), items_at(old, &path));
        if new.len() != old.len() || new.iter().zip(old).any(|(new, old)| container_changed(new, old)) {
            return true;
        }
    }
    let mut old_ephemeral: BTreeMap<&str, &Value> = BTreeMap::new();
    for container in items_at(old, EPHEMERAL) {
        old_ephemeral.entry(text(container, &["name"])).or_insert(container);
    }
    items_at(new, EPHEMERAL).iter().any(|container| {
        let old = old_ephemeral.get(text(container, &["name"]));
        old.is_none_or(|old| container_changed(container, old))
    })
}
