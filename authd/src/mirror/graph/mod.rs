//! The graph of the Node authorizer: the objects that the pods of a node refer to.
//!
//! # Contract
//!
//! [`Graph::look_up`] returns whether a path leads from an object to a node. The path from a Secret,
//! ConfigMap, claim, resource claim or service account leads through a pod of the node that names the object.
//! The path from a volume leads through its claim, and the path from a Secret of a volume through the volume.
//! A deleted pod ends its paths.
//! The cost of a look-up does not grow with the number of pods that name the object.
//!
//! # Invariants
//!
//! INVARIANT (counted references): each node stores, for each object, how many of its pods name the object.
//! The entry exists exactly as long as a pod of the node names the object.
//! Deleted pods and volumes leave no data behind.
//! INVARIANT (reports volume reads): a look-up that reads volumes reports this, because a change of a volume
//! may alter the result.
//!
//! # Reference
//!
//! Requirements A-NODE-4 to A-NODE-9, A-NODE-23. As in Kubernetes, a volume belongs to the claim in its
//! `claimRef`.

mod strings;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use authproto::auth::{self, MirrorObject, mirror_object};

use strings::{Name, StringPool};

/// The kinds that pods refer to by name, in their own namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ReferencedKind {
    /// A Secret.
    Secret,
    /// A ConfigMap.
    ConfigMap,
    /// A PersistentVolumeClaim.
    VolumeClaim,
    /// A ResourceClaim.
    ResourceClaim,
    /// A ServiceAccount.
    ServiceAccount,
}

/// The object at the start of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// A pod, by namespace and name.
    Pod(&'a str, &'a str),
    /// An object that pods refer to, by kind, namespace and name.
    ReferencedObject(ReferencedKind, &'a str, &'a str),
    /// A PersistentVolume.
    Volume(&'a str),
    /// A VolumeAttachment.
    VolumeAttachment(&'a str),
    /// A ResourceSlice.
    ResourceSlice(&'a str),
}

/// The result of a look-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookupResult {
    /// A path leads from the object to the node.
    pub related: bool,
    /// The look-up read volumes: a change of a volume may alter the result.
    pub depends_on_volumes: bool,
}

/// The graph of the Node authorizer. See the module.
#[derive(Debug, Default)]
pub struct Graph {
    strings: StringPool,
    /// The pods with a node, by `namespace/name`.
    pods: HashMap<Box<str>, Pod>,
    nodes: HashMap<Name, Node>,
    volumes: HashMap<Box<str>, Volume>,
    /// The names of the volumes of each claim, normally one.
    volumes_by_claim: HashMap<Object, Vec<Box<str>>>,
    /// The number of volumes that name each Secret.
    volume_secrets: HashMap<Object, u32>,
    /// The node of each VolumeAttachment.
    attachments: HashMap<Box<str>, Name>,
    /// The node of each ResourceSlice.
    slices: HashMap<Box<str>, Name>,
}

/// An object that pods refer to, with interned namespace and name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Object {
    kind: ReferencedKind,
    namespace: Name,
    name: Name,
}

/// A pod with its node and the objects that it names.
#[derive(Debug)]
struct Pod {
    node: Name,
    references: Box<[Object]>,
}

/// A node: the number of its pods, and how many of its pods name each object.
#[derive(Debug, Default)]
struct Node {
    pod_count: u32,
    reference_counts: HashMap<Object, u32>,
}

/// A PersistentVolume with its claim and the Secrets that its mount needs.
#[derive(Debug)]
struct Volume {
    claim: Object,
    secrets: Box<[Object]>,
}

/// One change of the graph; None if the pod or volume is deleted.
#[derive(Debug)]
pub(super) enum GraphChange {
    Pod(Box<str>, Option<auth::MirrorPod>),
    Volume(String, Option<auth::MirrorVolume>),
    /// Name and node; the node is `""` if the object has none or is deleted.
    VolumeAttachment(String, String),
    ResourceSlice(String, String),
}

/// Converts a put or a deletion of an object in the graph, and moves the contents out of the object.
/// Returns None if the kind is not in the graph.
pub(super) fn change(object: &mut MirrorObject, is_deletion: bool) -> Option<GraphChange> {
    use mirror_object::Kind;
    let name = || object.name.clone();
    let node_of = |bound: &mut auth::MirrorPlaced| {
        if is_deletion { String::new() } else { std::mem::take(&mut bound.node_name) }
    };
    match object.kind.as_mut()? {
        Kind::Pod(pod) => {
            let pod = (!is_deletion).then(|| std::mem::take(pod));
            Some(GraphChange::Pod(key(&object.namespace, &object.name), pod))
        }
        Kind::Volume(volume) => {
            Some(GraphChange::Volume(name(), (!is_deletion).then(|| std::mem::take(volume))))
        }
        Kind::VolumeAttachment(attachment) => {
            Some(GraphChange::VolumeAttachment(name(), node_of(attachment)))
        }
        Kind::ResourceSlice(slice) => Some(GraphChange::ResourceSlice(name(), node_of(slice))),
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

/// Returns the map key `namespace/name`, which is unique: names and namespaces contain no slash.
fn key(namespace: &str, name: &str) -> Box<str> {
    format!("{namespace}/{name}").into()
}

impl Graph {
    /// Returns whether a path leads from an object to a node, and whether the result depends on volumes.
    pub fn look_up(&self, node: &str, target: Target<'_>) -> LookupResult {
        let without_volumes = |related| LookupResult { related, depends_on_volumes: false };
        // None if no mirrored object uses this name, so nothing is on the node.
        let node_name = self.strings.find(node);
        match target {
            Target::Pod(namespace, name) => without_volumes(
                self.pods.get(&key(namespace, name)).is_some_and(|pod| Some(pod.node) == node_name),
            ),
            Target::VolumeAttachment(name) => {
                without_volumes(node_name.is_some() && self.attachments.get(name).copied() == node_name)
            }
            Target::ResourceSlice(name) => {
                without_volumes(node_name.is_some() && self.slices.get(name).copied() == node_name)
            }
            Target::Volume(name) => {
                let node = node_name.and_then(|node_name| self.nodes.get(&node_name));
                let claim = self.volumes.get(name).map(|volume| volume.claim);
                let related =
                    node.zip(claim).is_some_and(|(node, claim)| node.reference_counts.contains_key(&claim));
                LookupResult { related, depends_on_volumes: true }
            }
            Target::ReferencedObject(kind, namespace, name) => {
                let object = self.find(kind, namespace, name);
                let node = node_name.and_then(|node_name| self.nodes.get(&node_name));
                let is_direct = node
                    .zip(object)
                    .is_some_and(|(node, object)| node.reference_counts.contains_key(&object));
                if is_direct || kind != ReferencedKind::Secret {
                    return without_volumes(is_direct);
                }
                let related =
                    node.zip(object).is_some_and(|(node, secret)| self.has_volume_with_secret(node, secret));
                LookupResult { related, depends_on_volumes: true }
            }
        }
    }

    /// Whether the pods of the node have a claim whose volume names the Secret.
    fn has_volume_with_secret(&self, node: &Node, secret: Object) -> bool {
        self.volume_secrets.contains_key(&secret)
            && node
                .reference_counts
                .keys()
                .filter_map(|claim| self.volumes_by_claim.get(claim))
                .flatten()
                .filter_map(|volume| self.volumes.get(volume))
                .any(|volume| volume.secrets.contains(&secret))
    }

    fn find(&self, kind: ReferencedKind, namespace: &str, name: &str) -> Option<Object> {
        let (namespace, name) = (self.strings.find(namespace)?, self.strings.find(name)?);
        Some(Object { kind, namespace, name })
    }

    pub(super) fn apply(&mut self, change: GraphChange) {
        match change {
            GraphChange::Pod(key, Some(pod)) => self.put_pod(key, &pod),
            GraphChange::Pod(key, None) => self.delete_pod(&key),
            GraphChange::Volume(name, Some(volume)) => self.put_volume(&name, &volume),
            GraphChange::Volume(name, None) => self.delete_volume(&name),
            GraphChange::VolumeAttachment(name, node) => {
                set_node(&mut self.strings, &mut self.attachments, &name, &node);
            }
            GraphChange::ResourceSlice(name, node) => {
                set_node(&mut self.strings, &mut self.slices, &name, &node)
            }
        }
    }

    fn put_pod(&mut self, key: Box<str>, pod: &auth::MirrorPod) {
        self.delete_pod(&key);
        let namespace = key.split('/').next().unwrap_or_default();
        if pod.node_name.is_empty() {
            return;
        }
        let node = self.strings.intern(&pod.node_name);
        let account = Some(&pod.service_account).filter(|account| !account.is_empty());
        let names_by_kind = [
            (ReferencedKind::Secret, &pod.secrets[..]),
            (ReferencedKind::ConfigMap, &pod.config_maps),
            (ReferencedKind::VolumeClaim, &pod.volume_claims),
            (ReferencedKind::ResourceClaim, &pod.resource_claims),
            (ReferencedKind::ServiceAccount, account.map(std::slice::from_ref).unwrap_or_default()),
        ];
        let named_objects =
            names_by_kind.into_iter().flat_map(|(kind, names)| names.iter().map(move |name| (kind, name)));
        let references: Box<[Object]> =
            named_objects.map(|(kind, name)| self.strings.object(kind, namespace, name)).collect();
        let entry = self.nodes.entry(node).or_default();
        entry.pod_count += 1;
        for object in &references {
            *entry.reference_counts.entry(*object).or_default() += 1;
        }
        self.pods.insert(key, Pod { node, references });
    }

    fn delete_pod(&mut self, key: &str) {
        let Some(pod) = self.pods.remove(key) else { return };
        if let Some(node) = self.nodes.get_mut(&pod.node) {
            node.pod_count -= 1;
            for object in &pod.references {
                count_down(&mut node.reference_counts, object);
            }
            if node.pod_count == 0 {
                self.nodes.remove(&pod.node);
            }
        }
        for object in pod.references {
            self.strings.release(object);
        }
        self.strings.release_reference(pod.node);
    }

    fn put_volume(&mut self, name: &str, volume: &auth::MirrorVolume) {
        self.delete_volume(name);
        let Some(claim) = &volume.claim else { return };
        let claim = self.strings.object(ReferencedKind::VolumeClaim, &claim.namespace, &claim.name);
        let secret = |secret: &auth::Named| {
            self.strings.object(ReferencedKind::Secret, &secret.namespace, &secret.name)
        };
        let secrets: Box<[Object]> = volume.secrets.iter().map(secret).collect();
        for secret in &secrets {
            *self.volume_secrets.entry(*secret).or_default() += 1;
        }
        self.volumes_by_claim.entry(claim).or_default().push(name.into());
        self.volumes.insert(name.into(), Volume { claim, secrets });
    }

    fn delete_volume(&mut self, name: &str) {
        let Some(volume) = self.volumes.remove(name) else { return };
        for secret in &volume.secrets {
            count_down(&mut self.volume_secrets, secret);
        }
        if let Some(volumes) = self.volumes_by_claim.get_mut(&volume.claim) {
            volumes.retain(|other| &**other != name);
            if volumes.is_empty() {
                self.volumes_by_claim.remove(&volume.claim);
            }
        }
        for object in volume.secrets.into_iter().chain([volume.claim]) {
            self.strings.release(object);
        }
    }

    /// Returns the number of pods with a node.
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// Whether no pod has a node.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }
}

/// Sets the node of an attachment or slice; `""` removes the entry.
fn set_node(strings: &mut StringPool, nodes_by_object: &mut HashMap<Box<str>, Name>, name: &str, node: &str) {
    let node = (!node.is_empty()).then(|| strings.intern(node));
    let previous = match node {
        Some(node) => nodes_by_object.insert(name.into(), node),
        None => nodes_by_object.remove(name),
    };
    if let Some(previous) = previous {
        strings.release_reference(previous);
    }
}

fn count_down(counts: &mut HashMap<Object, u32>, object: &Object) {
    if let Some(count) = counts.get_mut(object) {
        *count -= 1;
        if *count == 0 {
            counts.remove(object);
        }
    }
}

impl StringPool {
    fn object(&mut self, kind: ReferencedKind, namespace: &str, name: &str) -> Object {
        Object { kind, namespace: self.intern(namespace), name: self.intern(name) }
    }

    fn release(&mut self, object: Object) {
        self.release_reference(object.namespace);
        self.release_reference(object.name);
    }
}
