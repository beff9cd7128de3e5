//! Pod or pod template as input of the controls.

use apimachinery::names::Names;
use apimachinery::object::Value;

use crate::tree::items;

static NULL: Value = Value::Null;

/// Keys of the AppArmor and seccomp annotations, with the names of the preset.
#[derive(Clone, Debug)]
pub(super) struct Keys {
    /// Prefix of AppArmor annotation keys; the container name follows.
    pub(super) app_armor_prefix: String,
    /// Key of the pod's seccomp annotation.
    pub(super) seccomp_pod: String,
    /// Prefix of seccomp annotation keys; the container name follows.
    pub(super) seccomp_prefix: String,
}

impl Keys {
    pub(super) fn new(names: &Names) -> Self {
        Keys {
            app_armor_prefix: names.label_sub_key("container.apparmor.security.beta", ""),
            seccomp_pod: names.label_sub_key("seccomp.security.alpha", "pod"),
            seccomp_prefix: names.label_sub_key("container.seccomp.security.alpha", ""),
        }
    }
}

/// A pod or a pod template.
#[derive(Clone, Copy)]
pub(super) struct Pod<'a> {
    pub(super) keys: &'a Keys,
    metadata: &'a Value,
    spec: &'a Value,
}

/// A container from any container list.
#[derive(Clone, Copy)]
pub(super) struct Container<'a> {
    pub(super) name: &'a str,
    value: &'a Value,
}

impl<'a> Pod<'a> {
    /// Builds the view from metadata and spec; a missing part counts as empty.
    pub(super) fn new(keys: &'a Keys, metadata: Option<&'a Value>, spec: Option<&'a Value>) -> Self {
        Pod { keys, metadata: metadata.unwrap_or(&NULL), spec: spec.unwrap_or(&NULL) }
    }

    /// Annotations of the pod.
    pub(super) fn annotations(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let annotations = self.metadata.get("annotations").and_then(Value::as_object);
        annotations.into_iter().flatten().filter_map(|(key, value)| Some((key.as_str(), value.as_str()?)))
    }

    /// Value of an annotation.
    pub(super) fn annotation(&self, key: &str) -> Option<&'a str> {
        self.metadata.get("annotations")?.get(key)?.as_str()
    }

    /// String field of the spec; `""` if absent.
    pub(super) fn text(&self, field: &str) -> &'a str {
        text(self.spec, &[field])
    }

    /// Boolean field of the spec.
    pub(super) fn flag(&self, field: &str) -> bool {
        self.spec.get(field).and_then(Value::as_bool).unwrap_or(false)
    }

    /// Whether the pod declares Windows as its operating system.
    pub(super) fn is_windows(&self) -> bool {
        text(self.spec, &["os", "name"]) == "windows"
    }

    /// Field of the pod security context.
    pub(super) fn security(&self, path: &[&str]) -> Option<&'a Value> {
        at(self.spec.get("securityContext")?, path)
    }

    /// Volumes of the pod.
    pub(super) fn volumes(&self) -> impl Iterator<Item = &'a Value> {
        items(self.spec, "volumes").iter().filter(|volume| volume.is_object())
    }

    /// All containers: init, regular and ephemeral containers.
    pub(super) fn containers(&self) -> impl Iterator<Item = Container<'a>> + use<'a> {
        let spec = self.spec;
        let lists = ["initContainers", "containers", "ephemeralContainers"];
        let values = lists.into_iter().flat_map(move |list| items(spec, list));
        values.map(|value| Container { name: text(value, &["name"]), value })
    }

    /// Names of the containers that violate a rule.
    pub(super) fn containers_that(&self, is_faulty: impl FnMut(&Container<'a>) -> bool) -> Vec<&'a str> {
        self.containers().filter(is_faulty).map(|container| container.name).collect()
    }
}

impl<'a> Container<'a> {
    /// Field of the container security context.
    pub(super) fn security(&self, path: &[&str]) -> Option<&'a Value> {
        at(self.value.get("securityContext")?, path)
    }

    /// String list in the container security context.
    pub(super) fn security_list(&self, path: &[&str]) -> impl Iterator<Item = &'a str> {
        let list = self.security(path).and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str)
    }

    /// Ports of the container.
    pub(super) fn ports(&self) -> impl Iterator<Item = &'a Value> {
        items(self.value, "ports").iter()
    }
}

/// Nested value at a path; None if absent or null.
pub(super) fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, field| value.get(field)).filter(|value| !value.is_null())
}

/// Nested string at a path; `""` if absent.
pub(super) fn text<'a>(value: &'a Value, path: &[&str]) -> &'a str {
    at(value, path).and_then(Value::as_str).unwrap_or("")
}
