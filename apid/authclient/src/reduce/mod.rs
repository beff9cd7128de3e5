//! Reductions: the policy-relevant parts of stored objects, in the form in which authd mirrors them.
//!
//! # Contract
//!
//! A [`Reductions`] table states for each storage key whether the object is policy-relevant and which
//! component of the policy vector its writes advance. The table also computes the reduction of the object.
//! Two versions of an object with equal reductions lead to the same decisions. A write that does not change
//! the reduction is not a policy write.
//!
//! # Invariants
//!
//! INVARIANT (unreadable grants nothing): stored bytes that are not an object of their kind have no
//! reduction, as if the object were deleted. Roles, bindings and pods only grant, so this can only
//! remove rights.

mod identities;
mod meta;
mod pods;
mod policy;
mod references;
#[cfg(test)]
mod tests;
mod volumes;

use apimachinery::names::Names;
use authproto::auth::{MirrorObject, mirror_object};
use kinds::Registry;

pub(super) use policy::Rule;

/// The part of the `graph` component for PersistentVolumes, on which every node depends.
///
/// No node can have this name.
pub(super) const VOLUMES: &str = "*";

/// Reduces the stored bytes of an object. None when the bytes are not an object of the kind.
type Reduce = fn(&[u8], &PolicyNames) -> Option<MirrorObject>;

/// The component of the policy vector that a write of the kind advances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Component {
    /// The cluster-wide part of `rbac`.
    RbacCluster,
    /// The part of `rbac` for the namespace of the object.
    RbacNamespace,
    /// `identity`. A Pod with a node also advances `graph`, see [`graph_part`].
    Identity,
    /// Only `graph`, see [`graph_part`].
    Graph,
}

/// The part of the `graph` component that contains the object: the name of its node, or [`VOLUMES`].
pub(super) fn graph_part(object: &MirrorObject) -> Option<&str> {
    use mirror_object::Kind;
    match object.kind.as_ref()? {
        Kind::Pod(pod) => Some(pod.node_name.as_str()).filter(|node| !node.is_empty()),
        Kind::VolumeAttachment(node_bound) | Kind::ResourceSlice(node_bound) => {
            Some(node_bound.node_name.as_str()).filter(|node| !node.is_empty())
        }
        Kind::Volume(_) => Some(VOLUMES),
        Kind::Role(_)
        | Kind::ClusterRole(_)
        | Kind::RoleBinding(_)
        | Kind::ClusterRoleBinding(_)
        | Kind::ServiceAccount(_)
        | Kind::Secret(_)
        | Kind::Node(_)
        | Kind::ConfigMap(_) => None,
    }
}

/// Whether authd may delete the object: a binding or a token Secret. Each write of the object is then mirrored, so that authd
/// has the resourceVersion for the precondition of the deletion.
pub(super) fn is_deleted_by_authd(object: &MirrorObject) -> bool {
    use mirror_object::Kind;
    match &object.kind {
        Some(Kind::RoleBinding(_) | Kind::ClusterRoleBinding(_)) => true,
        Some(Kind::Secret(secret)) => !secret.data.is_empty() || !object.annotations.is_empty(),
        _ => false,
    }
}

/// A mirrored kind: its storage keys, and the component that its writes advance.
#[derive(Debug)]
pub(super) struct Reduction {
    /// The prefix of the storage keys of the kind.
    pub(super) prefix: String,
    reduce: Reduce,
    /// The component that a write of the kind advances.
    pub(super) component: Component,
    /// The full group name. The dependencies of identities refer to objects by this name.
    pub(super) group: String,
    /// The resource name: the lower-case plural of the kind.
    pub(super) resource: &'static str,
    namespaced: bool,
    /// The only key that is mirrored; None means all keys with the prefix.
    pub(super) only_key: Option<String>,
}

/// The mirrored kinds: group name without the domain, resource name, component, reduction.
///
/// Of the ConfigMaps, only `cluster-info` is mirrored.
const TABLE: &[(&str, &str, Component, Reduce)] = &[
    ("rbac.authorization", "clusterroles", Component::RbacCluster, policy::cluster_role),
    ("rbac.authorization", "clusterrolebindings", Component::RbacCluster, policy::cluster_role_binding),
    ("rbac.authorization", "roles", Component::RbacNamespace, policy::role),
    ("rbac.authorization", "rolebindings", Component::RbacNamespace, policy::role_binding),
    ("", "serviceaccounts", Component::Identity, identities::service_account),
    ("", "secrets", Component::Identity, identities::secret),
    ("", "pods", Component::Identity, pods::pod),
    ("", "nodes", Component::Identity, identities::node),
    ("", "configmaps", Component::Identity, identities::config_map),
    ("", "persistentvolumes", Component::Graph, volumes::volume),
    ("storage", "volumeattachments", Component::Graph, volumes::volume_attachment),
    ("resource", "resourceslices", Component::Graph, volumes::resource_slice),
];

/// The table of mirrored kinds under a names preset.
#[derive(Debug)]
pub struct Reductions {
    entries: Vec<Reduction>,
    policy_names: PolicyNames,
}

/// The policy-relevant names of labels, annotations and types.
#[derive(Debug)]
struct PolicyNames {
    /// The annotation that can exempt default policy from updates at the start.
    autoupdate: String,
    /// The label that marks default policy.
    bootstrapping: String,
    /// The Secret types of service-account tokens and bootstrap tokens.
    token_types: [String; 2],
    /// The annotations of a token Secret that name its service account.
    account_annotations: [String; 2],
    /// The labels of a token Secret with the dates of its last use and of its invalidation.
    legacy_labels: [String; 2],
    /// The annotation that marks a mirror pod: the API object of a static pod, created by its node.
    mirror: String,
}

impl Reductions {
    /// Creates the table of the mirrored kinds that the registry stores.
    pub fn new(registry: &Registry, names: &Names) -> Self {
        let entry = |&(stem, resource, component, reduce): &(&str, &'static str, Component, Reduce)| {
            let group = names.group(stem);
            let resource_entry = registry
                .stored()
                .find(|r| r.group_resource.group == group && r.group_resource.resource == resource)?;
            Some(Reduction {
                prefix: resource_entry.key_prefix.clone(),
                reduce,
                component,
                group,
                resource,
                namespaced: resource_entry.namespaced,
                only_key: (resource == "configmaps")
                    .then(|| resource_entry.key(names.public_namespace, "cluster-info")),
            })
        };
        Reductions::with_entries(TABLE.iter().filter_map(entry).collect(), names)
    }

    fn with_entries(entries: Vec<Reduction>, names: &Names) -> Self {
        let policy_names = PolicyNames {
            autoupdate: names.autoupdate_annotation(),
            bootstrapping: names.bootstrapping_label(),
            token_types: [
                names.label_key("service-account-token"),
                names.label_sub_key("bootstrap", "token"),
            ],
            account_annotations: [
                names.label_key("service-account.name"),
                names.label_key("service-account.uid"),
            ],
            legacy_labels: [
                names.label_key("legacy-token-last-used"),
                names.label_key("legacy-token-invalid-since"),
            ],
            mirror: names.label_key("config.mirror"),
        };
        Reductions { entries, policy_names }
    }

    /// All mirrored kinds, in the order of a snapshot.
    pub(super) fn entries(&self) -> &[Reduction] {
        &self.entries
    }

    /// The mirrored kind of the object under a storage key. Returns None if the object is not policy-relevant.
    pub(super) fn find_by_key(&self, key: &str) -> Option<&Reduction> {
        self.entries
            .iter()
            .find(|entry| key.starts_with(&entry.prefix))
            .filter(|entry| entry.only_key.as_ref().is_none_or(|only_key| only_key == key))
    }

    /// Whether objects of this resource are mirrored, so that their changes are observed.
    pub(super) fn mirrors(&self, group: &str, resource: &str) -> bool {
        self.entries.iter().any(|entry| entry.group == group && entry.resource == resource)
    }

    /// Fast check: returns true only if the reductions of two versions of an object are equal. Otherwise the
    /// caller compares the reductions.
    pub(super) fn is_certainly_equal(&self, entry: &Reduction, old: &[u8], new: &[u8]) -> bool {
        entry.resource == "pods" && pods::is_certainly_equal(old, new, &self.policy_names)
    }

    /// Reduces an object of a mirrored kind. None when the bytes are not an object of the kind.
    pub(super) fn reduce(&self, entry: &Reduction, value: &[u8]) -> Option<MirrorObject> {
        (entry.reduce)(value, &self.policy_names)
    }
}

impl Reduction {
    /// Returns the namespace (`""` for cluster-scoped kinds) and the name of the object under a storage key.
    pub(super) fn locate<'k>(&self, key: &'k str) -> (&'k str, &'k str) {
        let rest = key.strip_prefix(self.prefix.as_str()).unwrap_or(key);
        if self.namespaced { rest.split_once('/').unwrap_or(("", rest)) } else { ("", rest) }
    }
}

#[cfg(any(test, debug_assertions))]
impl Reductions {
    /// The table with fixed prefixes, for tests without a registry.
    #[expect(clippy::unwrap_used, reason = "a test fails by panicking")]
    pub(super) fn for_tests() -> Self {
        let names =
            Names::new(apimachinery::names::Preset::Svc, apimachinery::names::DEFAULT_API_DOMAIN).unwrap();
        let cluster_scoped = ["nodes", "persistentvolumes", "volumeattachments", "resourceslices"];
        let entries = TABLE
            .iter()
            .map(|&(stem, resource, component, reduce)| Reduction {
                prefix: format!("{resource}/"),
                reduce,
                component,
                group: names.group(stem),
                resource,
                namespaced: !resource.starts_with("cluster") && !cluster_scoped.contains(&resource),
                only_key: (resource == "configmaps").then(|| "configmaps/svc-public/cluster-info".to_owned()),
            })
            .collect();
        Reductions::with_entries(entries, &names)
    }
}
