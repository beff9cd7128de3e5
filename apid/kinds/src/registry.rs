//! All kinds under one names preset.

use std::sync::Arc;

use apimachinery::gvk::{GroupKind, GroupResource};
use apimachinery::names::Names;

use crate::Kind;

/// A kind as it is served: full group name, storage key.
pub struct Resource {
    /// The facts and rules.
    pub kind: &'static Kind,
    /// Full group name and plural.
    pub group_resource: GroupResource,
    /// Full group name and kind.
    pub group_kind: GroupKind,
    /// Prefix of its storage keys, with the trailing slash. Made of the group's stem, so that it does not depend on the preset.
    pub key_prefix: String,
}

impl Resource {
    /// The storage key of an object: `<prefix><namespace>/<name>` or `<prefix><name>`.
    pub fn key(&self, namespace: &str, name: &str) -> String {
        if self.kind.namespaced { format!("{}{namespace}/{name}", self.key_prefix) } else { format!("{}{name}", self.key_prefix) }
    }
}

/// All resources served.
pub struct Registry {
    resources: Vec<Arc<Resource>>,
}

impl Registry {
    /// All built-in kinds under a preset.
    pub fn new(_names: &Names) -> Self {
        Registry { resources: Vec::new() }
    }

    /// All resources, in discovery's order.
    pub fn resources(&self) -> &[Arc<Resource>] {
        &self.resources
    }

    /// The resource of a path.
    pub fn find(&self, group: &str, version: &str, resource: &str) -> Option<&Arc<Resource>> {
        self.resources.iter().find(|r| {
            r.group_resource.group == group && r.group_resource.resource == resource && r.kind.versions.contains(&version)
        })
    }
}
