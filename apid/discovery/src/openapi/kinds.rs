//! Mapping of schema types to kinds, with the names of the preset.
//!
//! # Invariants
//!
//! INVARIANT (unique kinds): at most one type has a given group, version and kind. Clients reject a document in
//! which two types have the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apimachinery::names::Names;
use kinds::{Kind, Registry, Subresource, Verb};
use schema::Schema;
use serde_json::{Value, json};

use super::type_names::WATCH_EVENT;

/// A kind, as in OpenAPI extensions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupVersionKind {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) kind: String,
}

impl GroupVersionKind {
    fn new(group: &str, version: &str, kind: &str) -> Self {
        GroupVersionKind { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() }
    }

    pub(super) fn to_value(&self) -> Value {
        json!({"group": self.group, "version": self.version, "kind": self.kind})
    }
}

/// The kinds of schema types.
#[derive(Default)]
pub(super) struct Kinds {
    by_type: BTreeMap<String, BTreeSet<GroupVersionKind>>,
    /// The custom kinds by type.
    custom: BTreeMap<String, Arc<Kind>>,
}

impl Kinds {
    /// Collects the kinds of a registry, and the kinds that each group has, such as `DeleteOptions`.
    pub(super) fn new(registry: &Registry, names: &Names) -> Self {
        let mut kinds = Kinds::default();
        kinds.add("meta/v1.Status", GroupVersionKind::new("", "v1", "Status"));
        kinds.add_shared("", "v1");
        for resource in registry.resources() {
            let group = &resource.group_resource.group;
            for version in resource.versions() {
                // The types that all groups share, such as `DeleteOptions`, list only kinds of built-in
                // groups. So the documents of built-in groups do not change when custom kinds are added or
                // removed.
                if resource.is_custom() {
                    let type_name = type_of(resource, group, version);
                    kinds.custom.insert(type_name, Arc::clone(resource));
                } else {
                    kinds.add_shared(group, version);
                }
                let kind = GroupVersionKind::new(group, version, resource.name());
                let type_name = type_of(resource, &resource.group_resource.group, version);
                if resource.verbs.contains(&Verb::List) {
                    let list = GroupVersionKind { kind: resource.names.list.clone(), ..kind.clone() };
                    kinds.add(&format!("{type_name}List"), list);
                }
                kinds.add(&type_name, kind);
                for subresource in &resource.subresources {
                    let (type_name, kind) = of_subresource(resource, version, subresource, names);
                    if !resource.is_custom() || type_name.starts_with(CUSTOM) {
                        kinds.add(&type_name, kind);
                    }
                }
            }
        }
        kinds
    }

    /// Returns the custom kind of a type.
    pub(super) fn custom(&self, type_name: &str) -> Option<&Arc<Kind>> {
        self.custom.get(type_name)
    }

    fn add_shared(&mut self, group: &str, version: &str) {
        self.add("meta/v1.DeleteOptions", GroupVersionKind::new(group, version, "DeleteOptions"));
        self.add(WATCH_EVENT, GroupVersionKind::new(group, version, "WatchEvent"));
    }

    fn add(&mut self, type_name: &str, kind: GroupVersionKind) {
        self.by_type.entry(type_name.to_owned()).or_default().insert(kind);
    }

    /// Returns the kinds of a type, sorted; None for a type that is no kind.
    pub(super) fn of_type(&self, type_name: &str) -> Option<&BTreeSet<GroupVersionKind>> {
        self.by_type.get(type_name)
    }

    /// Returns the description of a type that is a kind; None for another type.
    pub(super) fn describe(&self, type_name: &str) -> Option<String> {
        let kind = self.of_type(type_name)?.first()?;
        let group_version = if kind.group.is_empty() {
            format!("the core group, {}", kind.version)
        } else {
            format!("{}/{}", kind.group, kind.version)
        };
        Some(match kind.kind.as_str() {
            "DeleteOptions" => "Options of a delete.".to_owned(),
            "WatchEvent" => "An event of a watch.".to_owned(),
            "Status" => "Result of a request that does not return an object.".to_owned(),
            name => match name.strip_suffix("List") {
                Some(item) => format!("A list of {item} objects of {group_version}."),
                None => format!("{name} of {group_version}."),
            },
        })
    }
}

/// Prefix of the type names of custom kinds: `custom:example.com/v1/Widget`.
pub(super) const CUSTOM: &str = "custom:";

/// Returns the name of the schema type of a kind in a version.
///
/// This is the type in the package of that version, or the type of the storage version if there is none. The
/// package of a custom kind is its group.
pub(super) fn type_of(kind: &Kind, group: &str, version: &str) -> String {
    let Some(type_name) = kind.schema.type_name() else {
        return format!("{CUSTOM}{group}/{version}/{}", kind.name());
    };
    let versioned_type = type_name.split_once('/').and_then(|(package, rest)| {
        let (_, name) = rest.split_once('.')?;
        Some(format!("{package}/{version}.{name}"))
    });
    versioned_type.filter(|name| Schema::of(name).is_some()).unwrap_or_else(|| type_name.to_owned())
}

/// Returns schema type and kind of the body of a subresource.
pub(super) fn of_subresource(
    resource: &Kind,
    version: &str,
    subresource: &Subresource,
    names: &Names,
) -> (String, GroupVersionKind) {
    if let Some((stem, version)) = subresource.group_version {
        let package = stem.split('.').next().unwrap_or_default();
        let kind = GroupVersionKind::new(&names.group(stem), version, subresource.kind);
        return (format!("{package}/{version}.{}", subresource.kind), kind);
    }
    let body = resource.body_kind(subresource);
    let kind = GroupVersionKind::new(&resource.group_resource.group, version, body);
    let main = type_of(resource, &resource.group_resource.group, version);
    if resource.is_custom() {
        return (main, kind);
    }
    let type_name = match main.rsplit_once('.') {
        Some((package, _)) if resource.name() != body => {
            format!("{package}.{body}")
        }
        _ => main,
    };
    (type_name, kind)
}
