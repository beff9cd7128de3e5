//! The API versions that APIServices announce: their priorities, and the resources of the servers behind them.
//!
//! # Contract
//!
//! [`AnnouncedVersions`] holds one entry for each APIService. An entry with a server replaces the version of the
//! registry with the same name, if there is one. [`sort_groups`] and
//! [`sort_versions`] order the documents by priority.
//!
//! # Reference
//!
//! A group has the highest `groupPriorityMinimum` of its versions. Equal groups are ordered by name, equal versions as
//! in `kubectl`: v2, v1, v1beta1. A version whose server has no discovery document is `Stale` and has no resources.

use std::collections::BTreeMap;

use kinds::ApiPriority;
use kinds::custom::compare_versions;
use serde_json::{Map, Value, json};

/// The API versions of all APIServices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AnnouncedVersions {
    /// The entries by group and version.
    versions: BTreeMap<(String, String), AnnouncedVersion>,
}

/// An API version that an APIService announces.
#[derive(Clone, Debug, PartialEq)]
pub struct AnnouncedVersion {
    /// The priorities of the APIService.
    pub priority: ApiPriority,
    /// The resources of the server behind the APIService; None if apid itself serves the version.
    pub remote: Option<RemoteResources>,
    /// Whether the version is listed although nobody serves the version, as in kube-apiserver.
    pub is_always_listed: bool,
}

/// The resources of an API version that another server serves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemoteResources {
    /// The resources in the form of aggregated discovery; empty without a document.
    pub resources: Vec<Value>,
    /// Whether the server has answered lately.
    pub is_current: bool,
}

impl AnnouncedVersions {
    /// Adds or replaces the entry of a version.
    pub fn insert(&mut self, group: String, version: String, announced: AnnouncedVersion) {
        self.versions.insert((group, version), announced);
    }

    /// Returns the entry of a version.
    pub fn get(&self, group: &str, version: &str) -> Option<&AnnouncedVersion> {
        self.versions.get(&(group.to_owned(), version.to_owned()))
    }

    /// Returns group, version and entry of each version.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str, &AnnouncedVersion)> {
        self.versions
            .iter()
            .map(|((group, version), announced)| (group.as_str(), version.as_str(), announced))
    }
}

/// Orders the versions of a group; the first is the preferred one.
pub fn sort_versions<T>(versions: &mut [T], key: impl Fn(&T) -> (i64, &str)) {
    versions.sort_by(|a, b| {
        let ((a, a_name), (b, b_name)) = (key(a), key(b));
        b.cmp(&a).then_with(|| compare_versions(b_name, a_name))
    });
}

/// Orders groups by priority, and equal ones by name.
pub(crate) fn sort_groups<T>(groups: &mut [T], key: impl Fn(&T) -> (i64, &str)) {
    groups.sort_by(|a, b| {
        let ((a, a_name), (b, b_name)) = (key(a), key(b));
        b.cmp(&a).then_with(|| a_name.cmp(b_name))
    });
}

/// Converts an `APIResourceList` to the resources of aggregated discovery.
///
/// A subresource without its resource gets a resource without verbs, as in kube-apiserver. None if the value is no
/// such list.
pub fn resources_of_list(list: &Value) -> Option<Vec<Value>> {
    if list.get("kind").and_then(Value::as_str) != Some("APIResourceList") {
        return None;
    }
    let mut resources: Vec<Map<String, Value>> = Vec::new();
    for entry in list.get("resources").and_then(Value::as_array).into_iter().flatten() {
        let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default();
        let (resource, subresource) = match text("name").split_once('/') {
            Some((resource, subresource)) => (resource, Some(subresource)),
            None => (text("name"), None),
        };
        let scope =
            if entry.get("namespaced") == Some(&Value::Bool(true)) { "Namespaced" } else { "Cluster" };
        let kind = json!({"group": text("group"), "version": text("version"), "kind": text("kind")});
        let verbs = entry.get("verbs").cloned().unwrap_or_else(|| json!([]));
        let index = match resources.iter().position(|known| known.get("resource") == Some(&resource.into())) {
            Some(index) => index,
            None => {
                resources.push(Map::from_iter([
                    ("resource".to_owned(), resource.into()),
                    ("scope".to_owned(), scope.into()),
                ]));
                resources.len() - 1
            }
        };
        let Some(known) = resources.get_mut(index) else { continue };
        match subresource {
            Some(subresource) => {
                let entry = json!({"subresource": subresource, "responseKind": kind, "verbs": verbs});
                let list = known.entry("subresources").or_insert_with(|| json!([]));
                if let Value::Array(list) = list {
                    list.push(entry);
                }
            }
            None => {
                known.insert("responseKind".to_owned(), kind);
                known.insert("singularResource".to_owned(), text("singularName").into());
                known.insert("verbs".to_owned(), verbs);
                for field in ["shortNames", "categories"] {
                    let names = entry.get(field).and_then(Value::as_array).filter(|names| !names.is_empty());
                    if let Some(names) = names {
                        known.insert(field.to_owned(), names.clone().into());
                    }
                }
            }
        }
    }
    Some(resources.into_iter().map(Value::Object).collect())
}

/// Returns the resources of a version in an `APIGroupDiscoveryList`; None if the value is no such list.
///
/// A list without the version yields no resources.
pub fn resources_in_aggregated_list(list: &Value, group: &str, version: &str) -> Option<Vec<Value>> {
    if list.get("kind").and_then(Value::as_str) != Some("APIGroupDiscoveryList") {
        return None;
    }
    let items = list.get("items").and_then(Value::as_array).into_iter().flatten();
    let named = |item: &&Value| item.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("") == group;
    let versions = items.filter(named).filter_map(|item| item.get("versions")?.as_array()).flatten();
    let mut matching = versions.filter(|entry| entry.get("version").and_then(Value::as_str) == Some(version));
    let resources = matching.next().and_then(|entry| entry.get("resources")?.as_array().cloned());
    Some(resources.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_becomes_aggregated_resources_with_their_subresources() {
        let list = json!({"kind": "APIResourceList", "groupVersion": "e.com/v1", "resources": [
            {"name": "flavors", "singularName": "flavor", "namespaced": true, "kind": "Flavor", "verbs": ["get"],
                "shortNames": ["fl"], "categories": []},
            {"name": "flavors/scale", "singularName": "", "namespaced": true, "group": "autoscaling", "version": "v1",
                "kind": "Scale", "verbs": ["update"]},
            {"name": "lone/status", "namespaced": false, "kind": "Lone", "verbs": ["get"]},
        ]});
        let expected = json!([
            {"resource": "flavors", "scope": "Namespaced", "singularResource": "flavor", "verbs": ["get"],
                "responseKind": {"group": "", "version": "", "kind": "Flavor"}, "shortNames": ["fl"],
                "subresources": [{"subresource": "scale", "verbs": ["update"],
                    "responseKind": {"group": "autoscaling", "version": "v1", "kind": "Scale"}}]},
            {"resource": "lone", "scope": "Cluster", "subresources": [{"subresource": "status", "verbs": ["get"],
                "responseKind": {"group": "", "version": "", "kind": "Lone"}}]},
        ]);
        assert_eq!(resources_of_list(&list).map(Value::from), Some(expected));
        assert_eq!(resources_of_list(&json!({"kind": "Status"})), None);
        assert_eq!(resources_of_list(&json!({"kind": "APIResourceList"})), Some(Vec::new()));
    }

    #[test]
    fn resources_of_one_version_are_read_from_an_aggregated_list() {
        let list = json!({"kind": "APIGroupDiscoveryList", "items": [
            {"metadata": {"name": "a.com"}, "versions": [{"version": "v1", "resources": [{"resource": "xs"}]}]},
            {"metadata": {"name": "b.com"}, "versions": [
                {"version": "v1", "resources": [{"resource": "ys"}]}, {"version": "v2"}]},
        ]});
        let read = |group, version| resources_in_aggregated_list(&list, group, version);
        assert_eq!(read("b.com", "v1"), Some(vec![json!({"resource": "ys"})]));
        assert_eq!(read("b.com", "v2"), Some(Vec::new()));
        assert_eq!(read("c.com", "v1"), Some(Vec::new()));
        assert_eq!(resources_in_aggregated_list(&json!({"kind": "APIGroupList"}), "a.com", "v1"), None);
    }

    #[test]
    fn groups_and_versions_are_ordered_by_priority_then_name() {
        let mut groups = vec![("b", 5), ("c", 9), ("a", 5)];
        sort_groups(&mut groups, |(name, priority)| (*priority, *name));
        assert_eq!(groups, [("c", 9), ("a", 5), ("b", 5)]);
        let mut versions = vec![("v1alpha1", 1), ("v2", 1), ("v1beta1", 7), ("v1", 1)];
        sort_versions(&mut versions, |(name, priority)| (*priority, *name));
        let names: Vec<&str> = versions.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["v1beta1", "v2", "v1", "v1alpha1"]);
    }
}
