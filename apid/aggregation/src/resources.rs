//! The resources of other servers, for controllers that work on the objects of all resources.
//!
//! # Reference
//!
//! `ServerPreferredResources` of client-go: a resource of several versions of one group counts once, in the preferred
//! version that has the resource.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use forwarding::url_path::encode_segment;
use serde_json::Value;

use crate::{Aggregation, RemoteApi};

/// A resource of another server.
#[derive(Clone)]
pub struct RemoteResource {
    /// The API version.
    pub api: Arc<RemoteApi>,
    /// The name in paths: plural, in lower case.
    pub name: String,
    /// The kind of its objects.
    pub kind: String,
    /// Whether its objects are in namespaces.
    pub is_namespaced: bool,
    verbs: Vec<String>,
}

/// The resources of all available servers.
#[derive(Default)]
pub struct DiscoveredResources {
    /// The resources.
    pub resources: Vec<RemoteResource>,
    /// The API versions whose resources are not known, because their servers do not answer or have not answered yet.
    pub unknown: Vec<Arc<RemoteApi>>,
}

/// A kind of a version that another server serves.
pub enum RemoteKind {
    /// The kind is a resource of another server.
    Known(RemoteResource),
    /// The resources of the server are not known now.
    Unknown,
    /// The server does not have the kind.
    Absent,
}

impl RemoteResource {
    /// Reads an entry of aggregated discovery. Returns None for an entry without verbs.
    fn read(api: &Arc<RemoteApi>, entry: &Value) -> Option<Self> {
        let verbs = entry.get("verbs").and_then(Value::as_array).into_iter().flatten();
        let verbs: Vec<String> = verbs.filter_map(Value::as_str).map(str::to_owned).collect();
        let resource = RemoteResource {
            api: Arc::clone(api),
            name: entry.get("resource")?.as_str()?.to_owned(),
            kind: entry.pointer("/responseKind/kind")?.as_str()?.to_owned(),
            is_namespaced: entry.get("scope").and_then(Value::as_str) == Some("Namespaced"),
            verbs,
        };
        (!resource.verbs.is_empty()).then_some(resource)
    }

    /// Whether the resource has a verb.
    pub fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }

    /// Returns the path of an object, or of a collection if `name` is `""`. `namespace`: `""` for cluster-scoped
    /// resources and for all namespaces.
    pub fn path(&self, namespace: &str, name: &str) -> String {
        let mut path = format!("/{}", self.api.root());
        if self.is_namespaced && !namespace.is_empty() {
            path.push_str("/namespaces/");
            path.push_str(&encode_segment(namespace));
        }
        for segment in [self.name.as_str(), name] {
            if !segment.is_empty() {
                path.push('/');
                path.push_str(&encode_segment(segment));
            }
        }
        path
    }

    /// `RESOURCE.GROUP`.
    pub fn group_resource(&self) -> String {
        format!("{}.{}", self.name, self.api.group)
    }
}

impl Aggregation {
    /// Returns the resources of all other servers, each in its preferred version.
    pub fn discover(&self) -> DiscoveredResources {
        let mut groups: BTreeMap<&str, Vec<(i64, &Arc<RemoteApi>)>> = BTreeMap::new();
        let (routes, announced) = (self.routes.load_full(), self.announced());
        for api in &routes.remote {
            let entry = announced.get(&api.group, &api.version);
            let priority = entry.map_or(0, |entry| entry.priority.version);
            groups.entry(&api.group).or_default().push((priority, api));
        }
        let mut discovered = DiscoveredResources::default();
        for versions in groups.values_mut() {
            discovery::sort_versions(versions, |(priority, api)| (*priority, &api.version));
            let mut seen = BTreeSet::new();
            for (_, api) in versions.iter() {
                let Some(resources) = self.resources_of(api) else {
                    discovered.unknown.push(Arc::clone(api));
                    continue;
                };
                let is_first = |resource: &RemoteResource| seen.insert(resource.name.clone());
                discovered.resources.extend(resources.into_iter().filter(is_first));
            }
        }
        discovered
    }

    /// Returns a kind at another server. Returns None if no other server serves the version.
    pub fn remote_kind(&self, group: &str, version: &str, kind: &str) -> Option<RemoteKind> {
        let api = self.remote(group, version)?;
        let Some(resources) = self.resources_of(&api) else { return Some(RemoteKind::Unknown) };
        let found = resources.into_iter().find(|resource| resource.kind == kind);
        Some(found.map_or(RemoteKind::Absent, RemoteKind::Known))
    }

    /// Returns the resources of a version. Returns None if they are not known.
    fn resources_of(&self, api: &Arc<RemoteApi>) -> Option<Vec<RemoteResource>> {
        let announced = self.announced();
        let known = announced.get(&api.group, &api.version)?.remote.as_ref()?;
        let is_known = api.is_available && known.is_current;
        let read = |entry| RemoteResource::read(api, entry);
        is_known.then(|| known.resources.iter().filter_map(read).collect())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::tests::{aggregation, api_service};

    use super::*;

    fn entry(resource: &str, kind: &str, verbs: &[&str]) -> Value {
        json!({"resource": resource, "scope": "Namespaced", "verbs": verbs, "responseKind": {"kind": kind}})
    }

    #[tokio::test]
    async fn each_resource_is_found_once_in_its_preferred_available_version() {
        let aggregation = aggregation();
        let services = [("v1", 5, true), ("v1beta1", 9, true), ("v2", 20, false)];
        aggregation.set_services(
            services.map(|(version, priority, available)| api_service(version, priority, available)).to_vec(),
        );
        assert_eq!(aggregation.discover().unknown.len(), 3, "no server has answered yet");
        for (version, resources) in [
            ("v1", vec![entry("flavors", "Flavor", &["get", "delete"]), entry("tastes", "Taste", &["list"])]),
            ("v1beta1", vec![entry("flavors", "Flavor", &["get"]), json!({"resource": "lone"})]),
            ("v2", vec![entry("flavors", "Flavor", &["get"])]),
        ] {
            aggregation.set_resources(&format!("{version}.e.com"), resources);
        }
        let discovered = aggregation.discover();
        let found: Vec<_> =
            discovered.resources.iter().map(|r| (r.api.version.as_str(), r.name.as_str())).collect();
        assert_eq!(found, [("v1beta1", "flavors"), ("v1", "tastes")]);
        let unknown: Vec<_> = discovered.unknown.iter().map(|api| api.version.as_str()).collect();
        assert_eq!(unknown, ["v2"], "an unavailable server has no known resources");

        let kind = |version, kind| aggregation.remote_kind("e.com", version, kind);
        assert!(matches!(kind("v1", "Flavor"), Some(RemoteKind::Known(found)) if found.has_verb("delete")));
        assert!(matches!(kind("v1", "Other"), Some(RemoteKind::Absent)));
        assert!(matches!(kind("v2", "Flavor"), Some(RemoteKind::Unknown)));
        assert!(kind("v3", "Flavor").is_none());
    }

    #[tokio::test]
    async fn path_of_a_resource_is_encoded() {
        let aggregation = aggregation();
        aggregation.set_services(vec![api_service("v1", 1, true)]);
        aggregation.set_resources("v1.e.com", vec![entry("flavors", "Flavor", &["get"])]);
        let Some(RemoteKind::Known(flavors)) = aggregation.remote_kind("e.com", "v1", "Flavor") else {
            panic!("the kind is known");
        };
        assert_eq!(flavors.path("", ""), "/apis/e.com/v1/flavors");
        assert_eq!(flavors.path("n", ""), "/apis/e.com/v1/namespaces/n/flavors");
        assert_eq!(flavors.path("n", "a/../b?c"), "/apis/e.com/v1/namespaces/n/flavors/a%2F..%2Fb%3Fc");
        assert_eq!(flavors.group_resource(), "flavors.e.com");
    }
}
