//! Discovery documents, the served groups, versions and resources, and OpenAPI documents ([`openapi`]).
//! The documents also contain what servers behind APIServices serve ([`AnnouncedVersions`]).
//!
//! # Contract
//!
//! [`DocumentCache`] returns the documents of the current registry.
//!
//! [`Discovery`] holds every document of `/api` and `/apis`, encoded once for the registry. The two roots
//! have a second, aggregated form with everything in one document, and an `ETag` for client caches.
//!
//! # Reference
//!
//! Requirement D-EP-46; the order of resources is that of the registry, the order of groups and versions that of their
//! APIServices.

use std::collections::{BTreeMap, HashMap};

use apimachinery::gvk::GroupVersion;
use apimachinery::names::Names;
use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kinds::{ApiPriority, Kind, Registry, Storage, Subresource, Verb};
use serde_json::{Map, Value, json};

mod announced;
mod document;
mod document_cache;
pub mod openapi;

pub use announced::{
    AnnouncedVersion, AnnouncedVersions, RemoteResources, resources_in_aggregated_list, resources_of_list,
    sort_versions,
};
pub use document::{Document, DocumentEncoding};
pub use document_cache::{DocumentCache, Documents, Served};

use document::SharedLists;

/// The Kubernetes release whose API is served (requirement D-SVC-29).
pub const RELEASE: &str = "v1.33.0";

/// All discovery documents.
pub struct Discovery {
    documents: BTreeMap<String, Document>,
    /// Aggregated documents by root (`/api`, `/apis`) and version of the aggregated form.
    aggregated: BTreeMap<(&'static str, &'static str), Document>,
    /// Groups with a version that this server itself serves.
    own_groups: Vec<String>,
}

/// Versions of the aggregated form, in the API group `apidiscovery`.
const AGGREGATED_VERSIONS: [&str; 2] = ["v2", "v2beta1"];

impl Discovery {
    /// Builds the documents of a registry. `server_address` is the `host:port` that `/api` returns to
    /// clients. With `has_hashes`, resources contain the hash of their storage version. `announced`: the versions of
    /// APIServices.
    pub fn new(
        registry: &Registry,
        names: &Names,
        server_address: &str,
        has_hashes: bool,
        announced: &AnnouncedVersions,
    ) -> Self {
        let groups = groups(registry, announced);
        let mut documents = BTreeMap::new();
        let mut lists = SharedLists::default();
        let mut put = |path: String, value: Value, lists: &SharedLists| {
            documents.insert(path, Document::new(&value, lists));
        };
        let mut group_entries = Vec::new();
        for Group { name: group, versions, .. } in &groups {
            for Version { name: version, content, .. } in versions {
                let VersionContent::Own(resources) = content else { continue };
                if resources.is_empty() {
                    continue;
                }
                let group_version =
                    GroupVersion { group: group.clone(), version: version.clone() }.to_string();
                let entries: Vec<Value> = resources
                    .iter()
                    .flat_map(|r| resource_entries(r, version, names, has_hashes, &mut lists))
                    .collect();
                let mut list =
                    json!({"kind": "APIResourceList", "groupVersion": group_version, "resources": entries});
                if group.is_empty() {
                    put(format!("/api/{version}"), list, &lists);
                } else {
                    // Only the list of the core group has no `apiVersion`, as in kube-apiserver.
                    set(&mut list, "apiVersion", "v1");
                    put(format!("/apis/{group_version}"), list, &lists);
                }
            }
            if !group.is_empty() {
                let mut group_document = group_entry(group, versions);
                group_entries.push(group_document.clone());
                set(&mut group_document, "kind", "APIGroup");
                set(&mut group_document, "apiVersion", "v1");
                put(format!("/apis/{group}"), group_document, &lists);
            }
        }
        let core: Vec<&str> = groups
            .iter()
            .filter(|group| group.name.is_empty())
            .flat_map(|group| group.versions.iter().map(|version| version.name.as_str()))
            .collect();
        put(
            "/api".to_owned(),
            json!({
                "kind": "APIVersions",
                "versions": core,
                "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
            }),
            &lists,
        );
        let groups_list = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": group_entries});
        put("/apis".to_owned(), groups_list, &lists);

        let mut aggregated = BTreeMap::new();
        for version in AGGREGATED_VERSIONS {
            for (root, is_core) in [("/api", true), ("/apis", false)] {
                let items: Vec<Value> = groups
                    .iter()
                    .filter(|group| group.name.is_empty() == is_core)
                    .map(|group| aggregated_group(group, names, &mut lists))
                    .collect();
                let list = json!({
                    "kind": "APIGroupDiscoveryList",
                    "apiVersion": format!("{}/{version}", names.group("apidiscovery")),
                    "metadata": {},
                    "items": items,
                });
                aggregated.insert((root, version), Document::new(&list, &lists));
            }
        }
        let own_groups = groups.into_iter().filter(Group::has_own_version).map(|group| group.name).collect();
        Discovery { documents, aggregated, own_groups }
    }

    /// Returns the document of a path without a trailing slash.
    pub fn document(&self, path: &str) -> Option<&Document> {
        self.documents.get(path)
    }

    /// Returns the aggregated form of a root (`/api`, `/apis`) in a version (`v2`, `v2beta1`).
    pub fn aggregated(&self, root: &str, version: &str) -> Option<&Document> {
        self.aggregated.iter().find(|((r, v), _)| *r == root && *v == version).map(|(_, document)| document)
    }

    /// Whether this server itself serves any version of a group.
    pub fn has_group(&self, group: &str) -> bool {
        self.own_groups.iter().any(|known| known == group)
    }

    /// Returns all paths that have a document.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.documents.keys().map(String::as_str)
    }
}

/// A group in the documents.
struct Group<'a> {
    name: String,
    /// The highest group priority of the versions.
    priority: i64,
    /// The versions by priority.
    versions: Vec<Version<'a>>,
}

/// A version of a group.
struct Version<'a> {
    name: String,
    priority: ApiPriority,
    content: VersionContent<'a>,
}

/// Server of a version, with the resources.
enum VersionContent<'a> {
    /// This server; in the order of the registry. Empty for a version that an APIService announces and nobody serves.
    Own(Vec<&'a Kind>),
    /// The server behind an APIService.
    Remote(&'a RemoteResources),
}

impl Group<'_> {
    fn has_own_version(&self) -> bool {
        let is_own = |content: &VersionContent<'_>| match content {
            VersionContent::Own(resources) => !resources.is_empty(),
            VersionContent::Remote(_) => false,
        };
        self.versions.iter().any(|version| is_own(&version.content))
    }
}

/// The priority of the group without an APIService, which comes first.
const FIRST: ApiPriority = ApiPriority { group: i64::MAX, version: 0 };

/// Returns the groups and versions of the registry and of APIServices, by priority.
fn groups<'a>(registry: &'a Registry, announced: &'a AnnouncedVersions) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = Vec::new();
    let mut group_indexes: HashMap<String, usize> = HashMap::new();
    let mut version_indexes: HashMap<(&str, &str), usize> = HashMap::new();
    let mut group_index = |groups: &mut Vec<Group<'a>>, name: &str| {
        *group_indexes.entry(name.to_owned()).or_insert_with(|| {
            groups.push(Group { name: name.to_owned(), priority: i64::MIN, versions: Vec::new() });
            groups.len() - 1
        })
    };
    for resource in registry.resources() {
        let name = resource.group_resource.group.as_str();
        let index = group_index(&mut groups, name);
        let Some(Group { versions, .. }) = groups.get_mut(index) else { continue };
        for version in resource.versions() {
            let known = announced.get(name, version);
            if known.is_some_and(|known| known.remote.is_some()) {
                continue;
            }
            let index = *version_indexes.entry((name, version)).or_insert_with(|| {
                let priority =
                    known.map_or_else(|| default_priority(resource, version), |known| known.priority);
                let content = VersionContent::Own(Vec::new());
                versions.push(Version { name: version.to_owned(), priority, content });
                versions.len() - 1
            });
            if let Some(Version { content: VersionContent::Own(resources), .. }) = versions.get_mut(index) {
                resources.push(&**resource);
            }
        }
    }
    for (name, version, entry) in announced.iter() {
        let content = match &entry.remote {
            Some(resources) => VersionContent::Remote(resources),
            None if entry.is_always_listed && !version_indexes.contains_key(&(name, version)) => {
                VersionContent::Own(Vec::new())
            }
            None => continue,
        };
        let index = group_index(&mut groups, name);
        if let Some(group) = groups.get_mut(index) {
            group.versions.push(Version { name: version.to_owned(), priority: entry.priority, content });
        }
    }
    groups.retain(|group| !group.versions.is_empty());
    for group in &mut groups {
        let priorities = group.versions.iter().map(|version| version.priority.group);
        group.priority = priorities.max().unwrap_or_default();
        announced::sort_versions(&mut group.versions, |version| (version.priority.version, &version.name));
    }
    announced::sort_groups(&mut groups, |group| (group.priority, &group.name));
    groups
}

/// Returns the priorities of a version whose APIService does not exist.
fn default_priority(resource: &Kind, version: &str) -> ApiPriority {
    match resource.stem() {
        Some(stem) => ApiPriority::of_built_in(stem, version).unwrap_or(FIRST),
        None => ApiPriority::CUSTOM,
    }
}

fn set(object: &mut Value, field: &str, value: &str) {
    if let Value::Object(map) = object {
        map.insert(field.to_owned(), value.into());
    }
}

fn group_entry(group: &str, versions: &[Version<'_>]) -> Value {
    let entry = |version: &str| json!({"groupVersion": format!("{group}/{version}"), "version": version});
    let preferred = versions.first().map_or("", |version| &version.name);
    json!({
        "name": group,
        "versions": versions.iter().map(|version| entry(&version.name)).collect::<Vec<_>>(),
        "preferredVersion": entry(preferred),
    })
}

fn verbs(verbs: &[Verb]) -> Value {
    verbs.iter().map(|verb| Value::from(verb.as_str())).collect()
}

/// Returns the entries of a resource and its subresources for the list of a group version.
fn resource_entries(
    resource: &Kind,
    version: &str,
    names: &Names,
    has_hashes: bool,
    lists: &mut SharedLists,
) -> Vec<Value> {
    let kind = resource;
    let mut main = Map::new();
    main.insert("name".into(), kind.plural().into());
    main.insert("singularName".into(), kind.names.singular.as_str().into());
    main.insert("namespaced".into(), kind.namespaced.into());
    main.insert("kind".into(), kind.name().into());
    main.insert("verbs".into(), verbs(kind.discovery_verbs()));
    if !kind.names.short_names.is_empty() {
        main.insert("shortNames".into(), lists.value(&kind.names.short_names));
    }
    if !kind.names.categories.is_empty() {
        main.insert("categories".into(), lists.value(&kind.names.categories));
    }
    let is_stored = matches!(kind.storage, Storage::Stored | Storage::Shared(_)) && !kind.is_computed();
    if has_hashes && is_stored {
        main.insert("storageVersionHash".into(), storage_version_hash(resource).into());
    }
    let mut entries = vec![Value::Object(main)];
    for subresource in &kind.subresources {
        let mut entry = json!({
            "name": format!("{}/{}", kind.plural(), subresource.name),
            "singularName": "",
            "namespaced": kind.namespaced,
            "kind": kind.body_kind(subresource),
            "verbs": verbs(subresource.verbs),
        });
        if let Some((group, other_version)) = foreign_group_version(subresource, resource, version, names) {
            set(&mut entry, "group", &group);
            set(&mut entry, "version", other_version);
        }
        entries.push(entry);
    }
    entries
}

/// Returns group and version of the kind of a subresource, if they differ from the group of the resource and
/// from its version `served`.
fn foreign_group_version<'a>(
    subresource: &Subresource,
    resource: &Kind,
    served: &str,
    names: &Names,
) -> Option<(String, &'a str)> {
    let (stem, version) = subresource.group_version?;
    let group = names.group(stem);
    (group != resource.group_resource.group || version != served).then_some((group, version))
}

/// Returns the field `storageVersionHash`: a hash of group, storage version and kind.
///
/// Clients detect changes of the storage version with it.
fn storage_version_hash(resource: &Kind) -> String {
    let resource = resource.stored();
    let version = resource.version();
    let text = format!("{}/{version}/{}", resource.group_resource.group, resource.name());
    let hash = digest::digest(&digest::SHA256, text.as_bytes());
    STANDARD.encode(hash.as_ref().get(..8).unwrap_or_default())
}

fn aggregated_group(group: &Group<'_>, names: &Names, lists: &mut SharedLists) -> Value {
    let versions: Vec<Value> = group
        .versions
        .iter()
        .map(|Version { name, content, .. }| {
            let (resources, is_current) = match content {
                VersionContent::Own(resources) => {
                    let resources = resources.iter().map(|r| aggregated_resource(r, name, names, lists));
                    (resources.collect(), true)
                }
                VersionContent::Remote(remote) => (remote.resources.clone(), remote.is_current),
            };
            let freshness = if is_current { "Current" } else { "Stale" };
            match resources.is_empty() {
                true => json!({"version": name, "freshness": freshness}),
                false => json!({"version": name, "resources": resources, "freshness": freshness}),
            }
        })
        .collect();
    let metadata = if group.name.is_empty() { json!({}) } else { json!({"name": group.name}) };
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(resource: &Kind, version: &str, names: &Names, lists: &mut SharedLists) -> Value {
    let kind = resource;
    // As in kube-apiserver, group and version are empty for a built-in kind in the group version of the resource.
    let (group, in_version) = match resource.is_custom() {
        true => (resource.group_resource.group.as_str(), version),
        false => ("", ""),
    };
    let response_kind = |kind: &str| json!({"group": group, "version": in_version, "kind": kind});
    let mut out = Map::new();
    out.insert("resource".into(), kind.plural().into());
    out.insert("responseKind".into(), response_kind(kind.name()));
    out.insert("scope".into(), if kind.namespaced { "Namespaced" } else { "Cluster" }.into());
    out.insert("singularResource".into(), kind.names.singular.as_str().into());
    out.insert("verbs".into(), verbs(kind.discovery_verbs()));
    if !kind.names.short_names.is_empty() {
        out.insert("shortNames".into(), lists.value(&kind.names.short_names));
    }
    if !kind.names.categories.is_empty() {
        out.insert("categories".into(), lists.value(&kind.names.categories));
    }
    if !kind.subresources.is_empty() {
        let subresources: Vec<Value> = kind
            .subresources
            .iter()
            .map(|subresource| {
                let response = match foreign_group_version(subresource, resource, version, names) {
                    Some((group, version)) => json!({"group": group, "version": version, "kind": kind.body_kind(subresource)}),
                    None => response_kind(kind.body_kind(subresource)),
                };
                json!({"subresource": subresource.name, "responseKind": response, "verbs": verbs(subresource.verbs)})
            })
            .collect();
        out.insert("subresources".into(), subresources.into());
    }
    Value::Object(out)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::*;
    use apimachinery::names::Preset;
    use apimachinery::object::Object;
    use kinds::custom;
    use schema::key_order::Ordered;

    fn read(document: Option<&Document>) -> Value {
        serde_json::from_slice(&document.unwrap().text()).unwrap()
    }

    #[test]
    fn release_is_a_patch_of_the_current_minor_release() {
        assert!(RELEASE.starts_with(&format!("v1.{}.", serving::compatibility::CURRENT)), "{RELEASE}");
    }

    #[test]
    fn versions_of_group_are_in_order_of_priority() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let (versions, _) = kinds::EnabledVersions::parse(["api/all=true"], &names).unwrap();
        let registry = Registry::with_versions(&names, &versions);
        let discovery =
            Discovery::new(&registry, &names, "127.0.0.1:1", false, &AnnouncedVersions::default());
        for (group, expected) in [
            ("admissionregistration", vec!["v1", "v1beta1", "v1alpha1"]),
            ("autoscaling", vec!["v2", "v1"]),
            ("coordination", vec!["v1", "v1beta1", "v1alpha2"]),
        ] {
            let document = read(discovery.document(&format!("/apis/{}", names.group(group))));
            let versions: Vec<&str> = document["versions"]
                .as_array()
                .unwrap()
                .iter()
                .map(|entry| entry["version"].as_str().unwrap())
                .collect();
            assert_eq!(versions, expected, "{group}");
        }
        let list = read(discovery.document("/api/v1"));
        assert!(!list.to_string().contains("storageVersionHash"), "{list}");
    }

    #[test]
    fn explanations_are_in_discovery_when_enabled() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        for (key, expected) in
            [("", &[][..]), ("explain.k8s.io/v1alpha1", &["accessexplanations", "tokenexplanations"])]
        {
            let (versions, _) = kinds::EnabledVersions::parse([key], &names).unwrap();
            let registry = Registry::with_versions(&names, &versions);
            let discovery =
                Discovery::new(&registry, &names, "127.0.0.1:1", false, &AnnouncedVersions::default());
            let list = discovery.document("/apis/explain.k8s.io/v1alpha1").map(|list| read(Some(list)));
            let resources = list.iter().flat_map(|list| list["resources"].as_array().unwrap());
            let listed: Vec<&str> = resources.map(|entry| entry["name"].as_str().unwrap()).collect();
            assert_eq!(listed, expected, "{key}");
        }
    }

    #[test]
    fn long_lists_of_names_are_shared_by_documents_of_all_versions() {
        const VERSIONS: usize = 1_000;
        let list = |prefix: &str| (0..10_000).map(|i| format!("{prefix}{i}")).collect::<Vec<_>>();
        let (short_names, categories) = (list("s"), list("c"));
        let versions: Vec<Value> = (1..=VERSIONS)
            .map(|i| json!({"name": format!("v{i}"), "served": true, "storage": i == 1}))
            .collect();
        let names_of_kind = json!({"plural": "widgets", "singular": "widget", "kind": "Widget",
            "listKind": "WidgetList", "shortNames": short_names, "categories": categories});
        let definition = json!({"metadata": {"name": "widgets.example.com"},
            "spec": {"group": "example.com", "scope": "Cluster", "versions": versions},
            "status": {"acceptedNames": names_of_kind}});
        let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
        let definition = Object::from_value(definition).unwrap();
        let registry = Registry::new(&names).with_custom(custom::resources(&definition, &names).unwrap());
        let discovery = Discovery::new(&registry, &names, "127.0.0.1:1", true, &AnnouncedVersions::default());

        let documents = || discovery.documents.values().chain(discovery.aggregated.values());
        let segments = || documents().flat_map(|document| document.segments().iter());
        let held: HashMap<*const u8, usize> =
            segments().map(|segment| (segment.as_ptr(), segment.len())).collect();
        let (held, sent) =
            (held.values().sum::<usize>(), segments().map(|segment| segment.len()).sum::<usize>());
        assert!(sent > 400_000_000 && held < 4_000_000, "{sent} {held}");

        let document = discovery.document("/apis/example.com/v7").unwrap();
        let value = read(Some(document));
        assert_eq!(document.text(), serde_json::to_vec(&Ordered::new(&value)).unwrap());
        let entry = &value["resources"][0];
        assert_eq!((&entry["shortNames"], &entry["categories"]), (&json!(short_names), &json!(categories)));
        assert_eq!(entry["storageVersionHash"].as_str().map(str::len), Some(12));
        let tags: BTreeSet<&str> = documents().map(|document| document.etag.as_str()).collect();
        assert_eq!(tags.len(), documents().count());
    }

    fn remote(priority: ApiPriority, resources: Vec<Value>) -> AnnouncedVersion {
        let is_current = !resources.is_empty();
        AnnouncedVersion {
            priority,
            remote: Some(RemoteResources { resources, is_current }),
            is_always_listed: false,
        }
    }

    #[test]
    fn remote_versions_are_in_discovery_by_priority() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let registry = Registry::new(&names);
        let mut announced = AnnouncedVersions::default();
        let flavors = json!({"resource": "flavors", "verbs": ["get"]});
        for (group, version, group_priority, version_priority, resources) in [
            ("flavors.example.com", "v1", 17_850, 5, vec![flavors.clone()]),
            ("flavors.example.com", "v2", 100, 1, vec![]),
            ("apps", "v2", 17_800, 99, vec![]),
        ] {
            let priority = ApiPriority { group: group_priority, version: version_priority };
            announced.insert(group.to_owned(), version.to_owned(), remote(priority, resources));
        }
        let discovery = Discovery::new(&registry, &names, "127.0.0.1:1", false, &announced);
        let list = read(discovery.document("/apis"));
        let order: Vec<&str> =
            list["groups"].as_array().unwrap().iter().map(|group| group["name"].as_str().unwrap()).collect();
        assert_eq!(order[..3], ["apiregistration.k8s.io", "flavors.example.com", "apps"]);
        let apps = read(discovery.document("/apis/apps"));
        assert_eq!(apps["preferredVersion"]["version"], "v2");
        assert_eq!(apps["versions"].as_array().unwrap().len(), 2);
        let aggregated = read(discovery.aggregated("/apis", "v2"));
        let expected = json!([
            {"version": "v1", "resources": [flavors], "freshness": "Current"},
            {"version": "v2", "freshness": "Stale"},
        ]);
        assert_eq!(aggregated["items"][1]["versions"], expected);
        assert!(discovery.document("/apis/flavors.example.com/v1").is_none(), "the server has this document");
        assert!(!discovery.has_group("flavors.example.com") && discovery.has_group("apps"));
    }

    #[test]
    fn local_version_without_resources_is_listed_unless_api_service_is_automatic() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let registry = Registry::new(&names);
        let mut announced = AnnouncedVersions::default();
        for (group, is_always_listed) in [("hand.example.com", true), ("automatic.example.com", false)] {
            let entry = AnnouncedVersion { priority: ApiPriority::CUSTOM, remote: None, is_always_listed };
            announced.insert(group.to_owned(), "v1".to_owned(), entry);
        }
        let discovery = Discovery::new(&registry, &names, "127.0.0.1:1", false, &announced);
        assert!(discovery.document("/apis/hand.example.com").is_some());
        assert!(discovery.document("/apis/hand.example.com/v1").is_none());
        assert!(discovery.document("/apis/automatic.example.com").is_none());
        assert!(!discovery.has_group("hand.example.com"));
    }

    #[test]
    fn remote_version_replaces_the_own_version_of_its_name() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let registry = Registry::new(&names);
        let mut announced = AnnouncedVersions::default();
        let priority = ApiPriority { group: 17_800, version: 15 };
        announced.insert("apps".to_owned(), "v1".to_owned(), remote(priority, vec![]));
        let discovery = Discovery::new(&registry, &names, "127.0.0.1:1", false, &announced);
        assert!(discovery.document("/apis/apps/v1").is_none() && !discovery.has_group("apps"));
        assert_eq!(read(discovery.document("/apis/apps"))["versions"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn every_resource_is_in_plain_and_aggregated_discovery() {
        let names = Names::new(Preset::Svc, "example.test").unwrap();
        let registry = Registry::new(&names);
        let discovery = Discovery::new(&registry, &names, "127.0.0.1:1", true, &AnnouncedVersions::default());
        for resource in registry.resources() {
            let group = &resource.group_resource.group;
            for version in resource.versions() {
                let path = if group.is_empty() {
                    format!("/api/{version}")
                } else {
                    format!("/apis/{group}/{version}")
                };
                let list = read(discovery.document(&path));
                let resources = list["resources"].as_array().unwrap();
                let entry = resources.iter().find(|r| r["name"] == resource.plural()).expect("listed");
                assert_eq!(entry["namespaced"], resource.namespaced);
                let root = if group.is_empty() { "/api" } else { "/apis" };
                let all = read(discovery.aggregated(root, "v2"));
                let text = all.to_string();
                assert!(text.contains(&format!("\"resource\":\"{}\"", resource.plural())), "{path}");
            }
        }
        assert!(discovery.has_group("") && !discovery.has_group("none.example.com"));
        assert_eq!(read(discovery.document("/api"))["versions"], json!(["v1"]));
    }
}
