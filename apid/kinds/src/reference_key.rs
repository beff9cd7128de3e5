//! Storage keys of kube-apiserver, which some of its messages show.

use std::borrow::Cow;
use std::collections::HashMap;

use apimachinery::gvk::GroupResource;
use apimachinery::names::Names;

use crate::kind::CUSTOM_KEYS;
use crate::{EnabledVersions, Kind, Registry};

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

/// Prefixes of the keys whose values are not objects: those of apid, and the addresses of the servers.
const OWN_KEYS: [&str; 2] = ["/apid/", MASTER_LEASES];
/// Prefix of the keys of the servers of an API, which expire.
const MASTER_LEASES: &str = "/masterleases/";

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

/// Whether a key belongs to running servers and expires without them, so that backups and copies leave the key out.
pub(crate) fn is_temporary(key: &str) -> bool {
    [storage::CLAIMS, MASTER_LEASES].iter().any(|prefix| key.starts_with(prefix))
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

/// The prefixes of all built-in resources in kube-apiserver, with those of the store.
pub struct ReferencePrefixes {
    /// Without the prefix of the cluster: `/configmaps/`, `core/configmaps/`.
    stored: HashMap<String, String>,
    names: Names,
}

impl ReferencePrefixes {
    /// The prefixes under a names preset, also those of versions that are not served.
    pub fn new(names: &Names) -> Self {
        let (all, _) = EnabledVersions::parse(["api/all=true"], names).unwrap_or_default();
        let registry = Registry::with_versions(names, &all);
        let stored = registry.stored().map(|kind| (kind.reference_prefix(), kind.key_prefix.clone()));
        ReferencePrefixes { stored: stored.collect(), names: names.clone() }
    }

    /// The key in the store for a storage key of kube-apiserver, without the prefix of the cluster. None for data that
    /// are no objects of a known resource, such as ranges of addresses.
    pub fn stored_key<'k>(&self, reference: &'k str) -> Option<Cow<'k, str>> {
        if OWN_KEYS.iter().any(|own| reference.starts_with(own)) {
            return Some(Cow::Borrowed(reference));
        }
        let path = reference.strip_prefix('/')?;
        let (first, rest) = path.split_once('/')?;
        if first.contains('.') {
            let is_built_in = self.names.stem(first).is_some_and(|stem| GROUPS.contains(&stem));
            if !is_built_in {
                return rest.contains('/').then(|| Cow::Owned([CUSTOM_KEYS, path].concat()));
            }
        }
        // The prefix has one segment, or two: `/configmaps/`, `/services/specs/`.
        let ends = reference.match_indices('/').skip(1).take(2).map(|(slash, _)| slash + 1);
        let found = ends.filter_map(|end| Some((self.stored.get(reference.get(..end)?)?, end))).last();
        let (prefix, end) = found?;
        Some(Cow::Owned([prefix.as_str(), reference.get(end..)?].concat()))
    }
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

impl Kind {
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
        if self.namespaced {
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
    fn stored_key_of_a_reference_key_is_the_key_of_the_store() {
        for preset in [Preset::Kubernetes, Preset::Svc] {
            let names = Names::new(preset, "example.test").unwrap();
            let prefixes = ReferencePrefixes::new(&names);
            for kind in Registry::new(&names).stored() {
                let key = kind.key("team", "x:y");
                let reference = reference_key_of(&key, &names);
                assert_eq!(prefixes.stored_key(&reference).as_deref(), Some(key.as_str()), "{reference}");
            }
            for (reference, expected) in [
                ("/example.com/widgets/team/x", Some("custom/example.com/widgets/team/x")),
                ("/apid/continue-key", Some("/apid/continue-key")),
                ("/services/specs/a/b", Some("core/services/a/b")),
                ("/services/endpoints/a/b", Some("core/endpoints/a/b")),
                ("/masterleases/192.0.2.10", Some("/masterleases/192.0.2.10")),
                ("/ranges/serviceips", None),
                ("/health", None),
                ("configmaps/a/b", None),
                ("", None),
            ] {
                assert_eq!(prefixes.stored_key(reference).as_deref(), expected, "{reference}");
            }
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
