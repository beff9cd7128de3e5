//! Storage keys of kube-apiserver, which some of its messages show.

use crate::Resource;

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

impl Resource {
    /// Storage key of an object in kube-apiserver, without the prefix of the cluster: `/configmaps/team/settings`.
    pub fn reference_key(&self, namespace: &str, name: &str) -> String {
        let (group, resource) = (self.group_resource.group.as_str(), self.group_resource.resource.as_str());
        let is_below_group = self.is_custom() || GROUPS.contains(&group.split('.').next().unwrap_or(""));
        let prefix = PREFIXES.iter().find(|(known, _)| *known == resource && !is_below_group);
        let mut key = String::new();
        if is_below_group {
            key.extend(["/", group]);
        }
        key.extend(["/", prefix.map_or(resource, |(_, prefix)| prefix)]);
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
}
