//! Storage keys of kube-apiserver, which some of its messages show.

use apimachinery::gvk::GroupResource;
use apimachinery::names::Names;

use crate::Resource;
use crate::registry::CUSTOM_KEYS;

/// The prefix of all keys in kube-apiserver.
pub const REFERENCE_ROOT: &str = "/registry";

/// Resources whose etcd key segment differs from the plural name: (plural name, segment). The table applies to
/// groups whose keys do not begin with the group.
const PREFIXES: [(&str, &str); 5] = [
    ("endpoints", "services/endpoints"),
    ("ingresses", "ingress"),
    ("nodes", "minions"),
    ("replicationcontrollers", "controllers"),
    ("services", "services/specs"),
];

/// Groups of built-in kinds whose keys begin with the name of the group.
const GROUPS: [&str; 2] = ["apiextensions", "apiregistration"];

/// The beginning of the storage keys of a resource in kube-apiserver, without the prefix of the cluster.
fn reference_prefix(group: &str, resource: &str, is_custom: bool) -> String {
    let is_below_group = is_custom || GROUPS.contains(&group.split('.').next().unwrap_or(""));
    let prefix = PREFIXES.iter().find(|(known, _)| *known == resource && !is_below_group);
    let mut key = String::new();
    if is_below_group {
        key.extend(["/", group]);
    }
    key.extend(["/", prefix.map_or(resource, |(_, prefix)| prefix)]);
    key
}

/// The part of a storage key that its resource determines, with the last slash; None for other data of the store.
pub fn resource_prefix(key: &str) -> Option<&str> {
    if key.starts_with('/') {
        return None;
    }
    let segments = if key.starts_with(CUSTOM_KEYS) { 3 } else { 2 };
    let (last, _) = key.match_indices('/').nth(segments - 1)?;
    key.get(..=last)
}

/// The resource of a [`resource_prefix`], and the beginning of the keys of its objects in kube-apiserver, without the
/// prefix of the cluster: `/configmaps/`.
pub fn resource_of_prefix(prefix: &str, names: &Names) -> Option<(GroupResource, String)> {
    let path = prefix.strip_suffix('/')?;
    let (is_custom, path) = match path.strip_prefix(CUSTOM_KEYS) {
        Some(custom) => (true, custom),
        None => (false, path),
    };
    let (stem, resource) = path.split_once('/')?;
    let group = match (is_custom, stem) {
        (true, group) => group.to_owned(),
        (false, "core") => String::new(),
        (false, stem) => names.group(stem),
    };
    let reference = reference_prefix(&group, resource, is_custom);
    Some((GroupResource { group, resource: resource.to_owned() }, format!("{reference}/")))
}

/// The storage key of an object in kube-apiserver for its key in the store, without the prefix of the cluster. Other
/// keys stay as they are.
pub fn reference_key_of(key: &str, names: &Names) -> String {
    let resource = resource_prefix(key).and_then(|prefix| Some((prefix, resource_of_prefix(prefix, names)?)));
    match resource {
        Some((prefix, (_, reference))) => reference + key.get(prefix.len()..).unwrap_or_default(),
        None => key.to_owned(),
    }
}

impl Resource {
    /// The beginning of the storage keys of the objects in kube-apiserver, without the prefix of the cluster:
    /// `/configmaps/`.
    pub(crate) fn reference_prefix(&self) -> String {
        let GroupResource { group, resource } = &self.group_resource;
        reference_prefix(group, resource, self.is_custom()) + "/"
    }

    /// Storage key of an object in kube-apiserver, without the prefix of the cluster: `/configmaps/team/settings`.
    pub fn reference_key(&self, namespace: &str, name: &str) -> String {
        let GroupResource { group, resource } = &self.group_resource;
        let mut key = reference_prefix(group, resource, self.is_custom());
        if self.kind.namespaced() {
            key.extend(["/", namespace]);
        }
        key.extend(["/", name]);
        key
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::{Names, Preset};

    use super::*;
    use crate::Registry;

    #[test]
    fn reference_key_has_prefix_of_resource() {
        let registry = Registry::new(&Names::new(Preset::Kubernetes, "").unwrap());
        for (group, resource, expected) in [
            ("", "configmaps", "/configmaps/team/x"),
            ("", "services", "/services/specs/team/x"),
            ("", "endpoints", "/services/endpoints/team/x"),
            ("", "replicationcontrollers", "/controllers/team/x"),
            ("", "nodes", "/minions/x"),
            ("apps", "replicasets", "/replicasets/team/x"),
            ("networking.k8s.io", "ingresses", "/ingress/team/x"),
            (
                "apiextensions.k8s.io",
                "customresourcedefinitions",
                "/apiextensions.k8s.io/customresourcedefinitions/x",
            ),
            ("apiregistration.k8s.io", "apiservices", "/apiregistration.k8s.io/apiservices/x"),
        ] {
            let found = registry.find(group, "v1", resource).unwrap();
            assert_eq!(found.reference_key("team", "x"), expected);
        }
    }

    #[test]
    fn reference_key_of_a_stored_key_is_that_of_its_resource() {
        for preset in [Preset::Kubernetes, Preset::Svc] {
            let names = Names::new(preset, "example.test").unwrap();
            let registry = Registry::new(&names);
            for resource in registry.resources() {
                let key = resource.key("team", "x:y");
                let (found, _) = resource_of_prefix(resource_prefix(&key).unwrap(), &names).unwrap();
                let group = &resource.group_resource.group;
                // Events of both groups are stored under the core group.
                let is_shared = resource.group_resource.resource == "events" && !group.is_empty();
                if !is_shared {
                    assert_eq!(found, resource.group_resource, "{key}");
                    assert_eq!(
                        reference_key_of(&key, &names),
                        resource.reference_key("team", "x:y"),
                        "{key}"
                    );
                }
            }
            assert_eq!(
                reference_key_of("custom/example.com/widgets/team/x", &names),
                "/example.com/widgets/team/x"
            );
            assert_eq!(resource_prefix("/apid/continue-key"), None);
        }
    }
}
