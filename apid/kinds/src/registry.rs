//! Registry of all kinds under one names preset.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

use apimachinery::names::Names;
use arc_swap::ArcSwap;

use crate::built_in_kinds::{UNLISTED_KINDS, VIRTUAL_SUBRESOURCES, built_in_kinds};
use crate::{BuiltInKind, EnabledVersions, Kind, Storage, Subresource};

/// Resources by a name and by their group. The resources of one name and group are the versions of one kind. So
/// the cost of a lookup does not depend on the number of groups with that name.
#[derive(Default)]
struct NameIndex(HashMap<String, HashMap<String, Vec<Arc<Kind>>>>);

impl NameIndex {
    fn insert(&mut self, name: &str, resource: &Arc<Kind>) {
        let groups = self.0.entry(name.to_owned()).or_default();
        groups.entry(resource.group_resource.group.clone()).or_default().push(Arc::clone(resource));
    }

    /// The versions of a kind, in the order in which they were inserted.
    fn versions(&self, group: &str, name: &str) -> &[Arc<Kind>] {
        self.0.get(name).and_then(|groups| groups.get(group)).map_or(&[], Vec::as_slice)
    }
}

/// Resources in order, and by their names.
struct IndexedResources {
    all: Vec<Arc<Kind>>,
    by_plural: NameIndex,
    by_kind: NameIndex,
}

impl IndexedResources {
    fn new(all: Vec<Arc<Kind>>) -> Self {
        let (mut by_plural, mut by_kind) = (NameIndex::default(), NameIndex::default());
        for resource in &all {
            by_plural.insert(&resource.group_resource.resource, resource);
            by_kind.insert(&resource.group_kind.kind, resource);
        }
        IndexedResources { all, by_plural, by_kind }
    }
}

/// All served resources.
///
/// The cost of a lookup depends on the number of versions of the kind, and not on the number of kinds.
pub struct Registry {
    /// The built-in resources that discovery does not list, then all other built-in resources, and then the
    /// custom resources. Every request looks up its resource here.
    served: IndexedResources,
    /// Resources of storage versions that apid does not serve: of built-in kinds that `--runtime-config`
    /// disables or serves only in another version, and of custom kinds.
    unserved: IndexedResources,
    /// Resources of stored kinds by key prefix. No key prefix is the beginning of another key prefix.
    by_key: BTreeMap<String, Arc<Kind>>,
    /// The versions of each kind by key prefix, the served ones first.
    versions: HashMap<String, Vec<Arc<Kind>>>,
    virtual_subresources: Vec<Arc<Kind>>,
    /// Number of built-in resources that discovery does not list, which precede all others.
    unlisted: usize,
    /// Number of built-in resources, which precede the custom ones.
    built_in: usize,
}

impl Registry {
    /// The built-in kinds that are on by default.
    pub fn new(names: &Names) -> Self {
        Registry::with_versions(names, &EnabledVersions::default())
    }

    /// The built-in kinds in the enabled versions.
    pub fn with_versions(names: &Names, versions: &EnabledVersions) -> Self {
        Registry::build(names, versions, &[])
    }

    /// The built-in kinds that are on by default and additional kinds, which follow them in discovery.
    pub fn with(names: &Names, others: &[&'static [BuiltInKind]]) -> Self {
        Registry::build(names, &EnabledVersions::default(), others)
    }

    fn build(names: &Names, versions: &EnabledVersions, others: &[&'static [BuiltInKind]]) -> Self {
        let rows = || built_in_kinds().chain(others.iter().flat_map(|rows| rows.iter()));
        let stored = rows().filter(|row| row.storage == Storage::Stored);
        let stored: Vec<_> = stored.map(|row| Arc::new(Kind::built_in(row, names, versions))).collect();
        let kind = |row: &'static BuiltInKind| {
            let new = Kind::built_in(row, names, versions);
            let storage_version = stored.iter().find(|kind| kind.key_prefix == new.key_prefix);
            match (row.storage, storage_version) {
                (Storage::Stored, Some(kind)) => Arc::clone(kind),
                (Storage::Shared(_), storage_version) => {
                    Arc::new(Kind { storage_version: storage_version.cloned(), ..new })
                }
                _ => Arc::new(new),
            }
        };
        let enabled = rows().chain(UNLISTED_KINDS).filter(|row| versions.contains(row));
        let is_unlisted = |row: &&BuiltInKind| {
            !versions.contains(row) && versions.key_value(row.group, row.version, row.resource) != Some(false)
        };
        let unlisted_rows = UNLISTED_KINDS.iter().filter(is_unlisted);
        let unlisted = unlisted_rows.clone().count();
        let served: Vec<_> = unlisted_rows.chain(enabled).map(kind).collect();
        let is_needed = |kind: &Kind| {
            served.iter().any(|served| served.key_prefix == kind.key_prefix)
                || kind.row().is_some_and(BuiltInKind::is_on_by_default)
        };
        let is_served = |stored: &Arc<Kind>| served.iter().any(|served| Arc::ptr_eq(served, stored));
        let unserved =
            stored.iter().filter(|stored| !is_served(stored) && is_needed(stored)).cloned().collect();
        let virtual_subresources =
            VIRTUAL_SUBRESOURCES.iter().map(|row| Arc::new(Kind::built_in(row, names, versions))).collect();
        Registry::index(unlisted, served, unserved, virtual_subresources)
    }

    fn index(
        unlisted: usize,
        resources: Vec<Arc<Kind>>,
        unserved: Vec<Arc<Kind>>,
        virtual_subresources: Vec<Arc<Kind>>,
    ) -> Self {
        let mut by_key = BTreeMap::new();
        let mut versions = HashMap::<String, Vec<Arc<Kind>>>::with_capacity(resources.len());
        for resource in resources.iter().chain(&unserved) {
            versions.entry(resource.key_prefix.clone()).or_default().push(Arc::clone(resource));
        }
        let stored = resources.iter().filter(|resource| resource.storage == Storage::Stored);
        for resource in stored.chain(&unserved) {
            by_key.insert(resource.key_prefix.clone(), Arc::clone(resource));
        }
        let built_in = resources.iter().take_while(|resource| !resource.is_custom()).count();
        let (served, unserved) = (IndexedResources::new(resources), IndexedResources::new(unserved));
        Registry { served, unserved, by_key, versions, virtual_subresources, unlisted, built_in }
    }

    /// The built-in kinds of this registry, followed by the given custom kinds. A storage version that is not
    /// served has no path; callers find it only by storage key or as a version of its kind.
    #[must_use]
    pub fn with_custom(&self, custom: impl IntoIterator<Item = Arc<Kind>>) -> Self {
        let is_served = |kind: &Arc<Kind>| kind.definition().is_none_or(|definition| definition.is_served);
        let (served, mut unserved): (Vec<_>, Vec<_>) = custom.into_iter().partition(is_served);
        unserved.extend(self.unserved.all.iter().filter(|resource| !resource.is_custom()).cloned());
        let built_in = self.served.all.iter().take(self.built_in).cloned();
        let resources = built_in.chain(served).collect();
        Registry::index(self.unlisted, resources, unserved, self.virtual_subresources.clone())
    }

    /// The resource of the body kind of a subresource, for example Scale. None if the body kind is not
    /// served.
    pub fn body(&self, resource: &Kind, subresource: &Subresource, names: &Names) -> Option<&Arc<Kind>> {
        let group = match subresource.group_version {
            Some((stem, _)) => names.group(stem),
            None => resource.group_resource.group.clone(),
        };
        let body = resource.body_kind(subresource);
        let is_body = |r: &&Arc<Kind>| r.group_kind.group == group && r.name() == body;
        let virtual_subresource = self.virtual_subresources.iter().find(is_body);
        virtual_subresource.or_else(|| self.served.by_kind.versions(&group, body).first())
    }

    /// The resource that a binding-like kind changes, and its subresource whose bodies have the binding-like
    /// kind.
    pub fn binding_target<'a>(&'a self, binding_kind: &Kind) -> Option<(&'a Arc<Kind>, &'a Subresource)> {
        self.stored().filter(|r| r.group_kind.group == binding_kind.group_kind.group).find_map(|resource| {
            let has_body = |s: &&Subresource| s.kind == binding_kind.name() && s.group_version.is_none();
            Some((resource, resource.subresources.iter().find(has_body)?))
        })
    }

    /// The resource with `api_version` that has the same storage keys as the given resource.
    pub fn version_of(&self, resource: &Kind, api_version: &str) -> Option<&Arc<Kind>> {
        self.versions_of(resource).find(|version| version.api_version() == api_version)
    }

    /// All versions of a kind: the resources that share its storage.
    pub fn versions_of<'a>(&'a self, resource: &Kind) -> impl Iterator<Item = &'a Arc<Kind>> + use<'a> {
        self.versions.get(&resource.key_prefix).into_iter().flatten()
    }

    /// All resources that discovery lists, in discovery order: the built-in resources group by group, and
    /// then the custom resources.
    pub fn resources(&self) -> &[Arc<Kind>] {
        self.served.all.get(self.unlisted..).unwrap_or_default()
    }

    /// The built-in resources, also those that discovery does not list.
    pub fn built_in(&self) -> &[Arc<Kind>] {
        self.served.all.get(..self.built_in).unwrap_or_default()
    }

    /// The custom resources, including storage versions that are not served.
    pub fn all_custom(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.custom().iter().chain(self.unserved.all.iter().filter(|resource| resource.is_custom()))
    }

    /// The served custom resources.
    pub fn custom(&self) -> &[Arc<Kind>] {
        self.served.all.get(self.built_in..).unwrap_or_default()
    }

    /// The resources with stored objects.
    pub fn stored(&self) -> impl Iterator<Item = &Arc<Kind>> {
        let served = self.served.all.iter().filter(|r| r.storage == Storage::Stored);
        served.chain(&self.unserved.all)
    }

    /// The resource of a URL path.
    pub fn find(&self, group: &str, version: &str, resource: &str) -> Option<&Arc<Kind>> {
        self.served.by_plural.versions(group, resource).iter().find(|r| r.has_version(version))
    }

    /// The resource of a group version and plural name. A stored resource that is not served is found too.
    pub fn find_stored(&self, group: &str, version: &str, resource: &str) -> Option<&Arc<Kind>> {
        let mut unserved = self.unserved.by_plural.versions(group, resource).iter();
        self.find(group, version, resource).or_else(|| unserved.find(|r| r.has_version(version)))
    }

    /// The resource of a kind, in its storage version if this group contains the storage version. Also finds
    /// stored built-in kinds that are not served: the server itself reads and writes their objects.
    pub fn find_kind(&self, group: &str, kind: &str) -> Option<&Arc<Kind>> {
        let served = self.served.by_kind.versions(group, kind);
        let disabled = self.unserved.by_kind.versions(group, kind).iter().filter(|r| !r.is_custom());
        let candidates = || served.iter().chain(disabled.clone());
        candidates().find(|resource| !resource.is_other_version()).or_else(|| candidates().next())
    }

    /// The resource of a kind in a version.
    pub fn find_kind_version(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Kind>> {
        self.served.by_kind.versions(group, kind).iter().find(|r| r.has_version(version))
    }

    /// The resource of a storage key.
    pub fn of_key(&self, key: &str) -> Option<&Arc<Kind>> {
        let range = (Bound::Unbounded, Bound::Included(key));
        let (prefix, resource) = self.by_key.range::<str, _>(range).next_back()?;
        key.starts_with(prefix.as_str()).then_some(resource)
    }
}

/// The registry of the served kinds, replaced when definitions change.
pub struct CurrentRegistry(ArcSwap<Registry>);

impl CurrentRegistry {
    /// Creates a `CurrentRegistry` with its first registry.
    pub fn new(registry: Registry) -> Self {
        CurrentRegistry(ArcSwap::from_pointee(registry))
    }

    /// The current registry.
    pub fn get(&self) -> Arc<Registry> {
        self.0.load_full()
    }

    /// Replaces the registry.
    pub fn set(&self, registry: Arc<Registry>) {
        self.0.store(registry);
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;
    use crate::{REVIEW_VERBS, Verb};

    #[test]
    fn facts_of_all_kinds_are_consistent() {
        let names = Names::new(Preset::Svc, "example.test").unwrap();
        let (versions, _) = EnabledVersions::parse(["api/all=true"], &names).unwrap();
        let registry = Registry::with_versions(&names, &versions);
        let resources = registry.resources();
        for (i, resource) in resources.iter().enumerate() {
            let kind = resource;
            assert!(kind.schema.table_type().is_some(), "{} has no schema", kind.name());
            let is_object = matches!(kind.storage, Storage::Stored | Storage::Shared(_));
            assert_eq!(kind.verbs == REVIEW_VERBS, !is_object, "{}", kind.name());
            assert_eq!(
                resource.is_converted(),
                matches!(kind.storage, Storage::Shared(_)),
                "{}",
                kind.name()
            );
            assert_eq!(resource.is_converted(), kind.conversion().is_some(), "{}", kind.name());
            assert!(
                kind.subresources.iter().all(|sub| sub.verbs.is_sorted_by_key(|verb| verb.as_str())),
                "{}",
                kind.name()
            );
            assert!(kind.verbs.is_sorted_by_key(|verb| verb.as_str()), "{}", kind.name());
            assert!(kind.subresources.is_sorted_by_key(|sub| sub.name), "{}", kind.name());
            let found = registry.find(&resource.group_resource.group, kind.version(), kind.plural()).unwrap();
            assert!(Arc::ptr_eq(found, resource));
            for other in resources.iter().skip(i + 1) {
                if resource.key_prefix == other.key_prefix {
                    // Two versions of one kind: a lookup by kind returns the stored version.
                    let shares_objects = std::ptr::eq(other.stored(), resource.stored());
                    assert_eq!(shares_objects, is_object, "{}", kind.name());
                    continue;
                }
                assert_ne!(resource.group_kind, other.group_kind);
                if other.stem() == kind.stem() {
                    assert!(kind.plural() < other.plural(), "{} before {}", kind.plural(), other.plural());
                }
            }
        }
        assert!(registry.find("", "v1", "roles").is_none());
        assert!(registry.find("", "v2", "configmaps").is_none());
    }

    #[test]
    fn storage_keys_are_independent_of_preset() {
        for (preset, group) in [
            (Preset::Svc, "rbac.authorization.example.test"),
            (Preset::Kubernetes, "rbac.authorization.k8s.io"),
        ] {
            let registry = Registry::new(&Names::new(preset, "example.test").unwrap());
            let roles = registry.find_kind(group, "Role").unwrap();
            assert_eq!(roles.key("team", "a:b"), "rbac.authorization/roles/team/a:b");
            assert_eq!(roles.parse_key("rbac.authorization/roles/team/a:b"), Some(("team", "a:b")));
            assert_eq!(roles.parse_key("core/configmaps/team/x"), None);
            assert_eq!(roles.api_version(), format!("{group}/v1"));
            let namespaces = registry.find("", "v1", "namespaces").unwrap();
            assert_eq!(namespaces.key("ignored", "x"), "core/namespaces/x");
            assert_eq!(namespaces.parse_key("core/namespaces/x"), Some(("", "x")));
            assert!(Arc::ptr_eq(registry.of_key("core/namespaces/x").unwrap(), namespaces));
            assert!(!namespaces.verbs.contains(&Verb::DeleteCollection));
            assert_eq!(namespaces.names.list, "NamespaceList");
        }
    }

    #[test]
    fn explanations_are_listed_only_when_enabled() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let (group, resource) = ("explain.k8s.io", "accessexplanations");
        for (config, is_served, is_listed) in [
            ("", true, false),
            ("api/beta", true, false),
            ("explain.k8s.io/v1alpha1", true, true),
            ("explain.k8s.io/v1alpha1/accessexplanations", true, true),
            ("explain.k8s.io/v1alpha1/tokenexplanations", true, false),
            ("api/alpha", true, true),
            ("api/alpha,explain.k8s.io/v1alpha1=false", false, false),
        ] {
            let (enabled, warnings) = EnabledVersions::parse(config.split(','), &names).unwrap();
            assert_eq!(warnings, [""; 0], "{config}");
            let registry = Registry::with_versions(&names, &enabled).with_custom([]);
            assert_eq!(registry.find(group, "v1alpha1", resource).is_some(), is_served, "{config}");
            let is_explanation =
                |r: &&Arc<Kind>| r.group_resource.group == group && r.group_resource.resource == resource;
            assert_eq!(registry.resources().iter().any(|r| is_explanation(&r)), is_listed, "{config}");
            assert!(registry.custom().is_empty());
        }
    }
}
