//! The policy vector: for each component the revision of the last write that changed its decisions.
//!
//! # Contract
//!
//! [`PolicyRevisions`] is an observer of the store: it processes every change before the store acknowledges
//! the commit. After the start, a component advances only when the [reduction](crate::reduce) of an
//! object changed. The mirror also gets unchanged reductions of objects that authd may delete. apid takes a
//! [`Baseline`] before a request to authd. The response stays valid while every component that it depends on is no
//! newer than the baseline ([`PolicyRevisions::unchanged`]). Subscribers ([`PolicyRevisions::subscribe`]), such as the
//! mirror, get the reduced changes in revision order.
//!
//! # Invariants
//!
//! INVARIANT (fresh policy): when a policy write is acknowledged, its component has advanced, and every
//! later baseline includes the write. Components advance before `observed`, and a baseline loads `observed`
//! first: a baseline as of `r` includes every policy write up to `r`.
//! INVARIANT (monotonic revisions): no value ever decreases, so an invalid cache entry stays invalid.
//!
//! # Concurrency
//!
//! Reads take no lock. Namespaces and nodes share a fixed number of slots by hash, so memory use does
//! not grow with their number. Two names in one slot invalidate each other's entries, which costs one
//! request to authd.

use std::collections::HashSet;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use apimachinery::user::UserInfo;
use authproto::auth::{
    Dependencies, MirrorDelete, MirrorPut, MirrorUpdate, ObjectRef, Revisions, mirror_update,
};
use parking_lot::Mutex;
use storage::{Change, Observer, Revision, unreadable_reason};
use tokio::sync::{Notify, broadcast, watch};

use crate::identity::dependencies::{IdentityDependencies, IdentityDependency};
use crate::reduce::{Component, Reductions, VOLUMES, graph_part, is_deleted_by_authd};

/// Number of slots for namespaces, and number of slots for nodes.
const SLOTS: usize = 4096;
/// Maximum number of changes that wait for a mirror. A mirror that lags further restarts with a snapshot.
const BACKLOG: usize = 4096;
/// The prefix of the user names of nodes, on which the Node authorizer decides.
const NODE_USER_PREFIX: &str = "system:node:";

/// The policy vector of this process: the revision of the last policy change of the cluster, of the identities,
/// and of each slot of namespaces and nodes.
pub struct PolicyRevisions {
    table: Reductions,
    /// The revision up to which the vector includes all changes.
    observed: AtomicU64,
    /// The revision of the last change of any policy object.
    newest: AtomicU64,
    cluster: AtomicU64,
    identity: AtomicU64,
    namespaces: Slots,
    nodes: Slots,
    identity_dependencies: IdentityDependencies,
    changes: broadcast::Sender<PolicyChange>,
    /// The number of batches of changes that advanced a component.
    advances: watch::Sender<u64>,
    /// Keys of policy objects that could not be decrypted, so that the mirror lacks them.
    unreadable: Mutex<HashSet<String>>,
    /// Wakes the mirror when unreadable objects may be readable.
    recovery: Notify,
}

/// A policy change, as the mirror sends it.
#[derive(Clone, Debug)]
pub(crate) struct PolicyChange {
    /// The revision of the change.
    pub(crate) revision: u64,
    /// The put or delete of the reduced object.
    pub(crate) update: MirrorUpdate,
}

/// The policy revisions and the time before a request to authd.
#[derive(Clone, Debug)]
pub(crate) struct Baseline {
    /// The response includes every policy write up to this revision.
    pub(crate) as_of: u64,
    /// The monotonic time just before the request.
    pub(crate) time: Duration,
    /// The revisions of the components that concern the request, which authd must have.
    pub(crate) at_least: Revisions,
}

/// The components and objects that a response depends on.
#[derive(Clone, Debug, Default)]
pub(crate) struct DependencySet {
    cluster: bool,
    identity: bool,
    namespaces: Box<[usize]>,
    nodes: Box<[usize]>,
    /// The objects that an identity depends on, such as its service account.
    objects: Box<[Arc<IdentityDependency>]>,
}

impl DependencySet {
    /// The dependencies of an anonymous access or a rejection: any write that concerns identities ends these.
    pub(crate) fn all_identities() -> Self {
        DependencySet { identity: true, ..DependencySet::default() }
    }

    /// Whether the objects are unchanged, whatever the components.
    pub(crate) fn objects_are_unchanged(&self) -> bool {
        self.objects.iter().all(|object| object.is_unchanged())
    }
}

impl PolicyRevisions {
    /// Creates the vector for the policy kinds of `table`, with each component at revision 0.
    pub fn new(table: Reductions) -> Self {
        PolicyRevisions {
            table,
            observed: AtomicU64::new(0),
            newest: AtomicU64::new(0),
            cluster: AtomicU64::new(0),
            identity: AtomicU64::new(0),
            namespaces: Slots::new(),
            nodes: Slots::new(),
            identity_dependencies: IdentityDependencies::default(),
            changes: broadcast::Sender::new(BACKLOG),
            advances: watch::Sender::new(0),
            unreadable: Mutex::default(),
            recovery: Notify::new(),
        }
    }

    /// Makes the mirror reread the objects that could not be decrypted, after a change of keys.
    pub fn reread_unreadable(&self) {
        self.recovery.notify_one();
    }

    /// Waits for [`PolicyRevisions::reread_unreadable`].
    pub(crate) async fn wait_for_recovery(&self) {
        self.recovery.notified().await;
    }

    /// The keys of the policy objects that could not be decrypted.
    pub(crate) fn unreadable_keys(&self) -> Vec<String> {
        self.unreadable.lock().iter().cloned().collect()
    }

    /// Records whether the value of a policy object can be decrypted; None for a deleted object.
    pub(crate) fn record_value(&self, key: &str, value: Option<&[u8]>) {
        let is_unreadable = value.is_some_and(|value| unreadable_reason(value).is_some());
        let mut unreadable = self.unreadable.lock();
        if is_unreadable {
            unreadable.insert(key.to_owned());
        } else if !unreadable.is_empty() {
            unreadable.remove(key);
        }
    }

    /// Advances all components to the revision of the opened store. An authd that outlives an apid therefore
    /// never decides on the mirror of the previous apid.
    pub fn start_at(&self, revision: Revision) {
        for value in self.values() {
            value.fetch_max(revision.0, Ordering::SeqCst);
        }
        self.observed.fetch_max(revision.0, Ordering::SeqCst);
    }

    fn values(&self) -> impl Iterator<Item = &AtomicU64> {
        [&self.newest, &self.cluster, &self.identity]
            .into_iter()
            .chain(self.namespaces.values.iter())
            .chain(self.nodes.values.iter())
    }

    /// The revision up to which the vector includes all changes, and up to which subscribers got them.
    pub(crate) fn observed(&self) -> u64 {
        self.observed.load(Ordering::SeqCst)
    }

    /// The table of policy kinds.
    pub(crate) fn table(&self) -> &Reductions {
        &self.table
    }

    /// Subscribes to the policy changes, in revision order.
    ///
    /// The receiver gets every change after the returned revision. The store already serves reads at this
    /// revision, although the revision can be above [`Store::revision`](storage::Store::revision): the store
    /// publishes a revision after its observers return.
    pub(crate) fn subscribe(&self) -> (broadcast::Receiver<PolicyChange>, Revision) {
        let changes = self.changes.subscribe();
        // `newest` advances before a change is sent, so no change that the receiver missed is above `newest`.
        let newest = self.newest.load(Ordering::SeqCst);
        (changes, Revision(newest))
    }

    /// Returns a receiver that is notified when any component has advanced.
    pub(crate) fn subscribe_to_advances(&self) -> watch::Receiver<u64> {
        self.advances.subscribe()
    }

    /// Takes the baseline of an authorization in a namespace (`""`: cluster-wide), at a monotonic time.
    pub(crate) fn baseline(&self, user: &UserInfo, namespace: &str, time: Duration) -> Baseline {
        let as_of = self.observed();
        let node = user.name.strip_prefix(NODE_USER_PREFIX);
        // The decision on a node depends on the part of the node, and on the part `VOLUMES` of all volumes.
        let graph_parts =
            |node: &str| [node, VOLUMES].map(|part| (part.to_owned(), self.nodes.revision_of(part))).into();
        let at_least = Revisions {
            rbac_cluster: self.cluster.load(Ordering::SeqCst),
            rbac_namespace: if namespace.is_empty() {
                Default::default()
            } else {
                [(namespace.to_owned(), self.namespaces.revision_of(namespace))].into()
            },
            identity: self.identity(),
            graph_node: node.map(graph_parts).unwrap_or_default(),
        };
        Baseline { as_of, time, at_least }
    }

    /// Takes the baseline of an authentication, which depends only on the component `identity`.
    pub(crate) fn identity_baseline(&self, time: Duration) -> Baseline {
        let as_of = self.observed();
        let at_least = Revisions { identity: self.identity(), ..Revisions::default() };
        Baseline { as_of, time, at_least }
    }

    /// The newest revision of every component, for a request that may concern any: reviews name their own users
    /// and namespaces.
    pub(crate) fn newest(&self) -> Revisions {
        let newest = self.newest.load(Ordering::SeqCst);
        Revisions { rbac_cluster: newest, identity: newest, ..Revisions::default() }
    }

    /// Whether no policy write after the revision `as_of` changed one of the dependencies.
    pub(crate) fn unchanged(&self, dependencies: &DependencySet, as_of: u64) -> bool {
        let is_unchanged = |value: &AtomicU64| value.load(Ordering::SeqCst) <= as_of;
        (!dependencies.cluster || is_unchanged(&self.cluster))
            && (!dependencies.identity || is_unchanged(&self.identity))
            && dependencies.namespaces.iter().all(|&slot| self.namespaces.revision_at(slot) <= as_of)
            && dependencies.nodes.iter().all(|&slot| self.nodes.revision_at(slot) <= as_of)
            && dependencies.objects_are_unchanged()
    }

    /// The revision of the component `identity`.
    pub(crate) fn identity(&self) -> u64 {
        self.identity.load(Ordering::SeqCst)
    }

    /// Converts the dependencies of a response from the wire.
    pub(crate) fn dependencies(&self, wire: Option<&Dependencies>) -> DependencySet {
        let Some(wire) = wire else { return DependencySet::default() };
        DependencySet {
            cluster: wire.rbac_cluster,
            identity: wire.identity,
            namespaces: wire.rbac_namespace.iter().map(|name| self.namespaces.slot(name)).collect(),
            nodes: wire.graph_node.iter().map(|name| self.nodes.slot(name)).collect(),
            objects: Box::default(),
        }
    }

    /// Tracks the objects that an identity depends on.
    ///
    /// The second value is false when a change of an object since the revision `as_of` may be missed: the
    /// identity must not be cached.
    pub(crate) fn track_objects(&self, objects: &[ObjectRef], as_of: u64) -> (DependencySet, bool) {
        let track =
            |o: &ObjectRef| self.identity_dependencies.track(&o.group, &o.resource, &o.namespace, &o.name);
        let dependencies =
            DependencySet { objects: objects.iter().map(track).collect(), ..DependencySet::default() };
        let is_complete = objects.is_empty()
            || (self.identity() <= as_of
                && objects.iter().all(|o| self.table.mirrors(&o.group, &o.resource)));
        (dependencies, is_complete)
    }

    fn advance(&self, component: Component, namespace: &str, revision: u64) {
        self.newest.fetch_max(revision, Ordering::SeqCst);
        let value = match component {
            Component::RbacCluster => &self.cluster,
            Component::Identity => &self.identity,
            Component::RbacNamespace => return self.namespaces.advance(namespace, revision),
            Component::Graph => return,
        };
        value.fetch_max(revision, Ordering::SeqCst);
    }

    /// Applies one change of the store. Returns whether the change was a policy write.
    fn apply(&self, change: &Change) -> bool {
        let Some(entry) = self.table.find_by_key(&change.key) else { return false };
        let reduce = |value: &[u8]| {
            let reduced = self.table.reduce(entry, value);
            if reduced.is_none() {
                tracing::error!(key = %change.key, "stored policy object cannot be decoded; the object grants nothing");
            }
            reduced
        };
        if let (Some(old), Some(new)) = (&change.old, &change.new)
            && self.table.is_certainly_equal(entry, &old.value, new)
        {
            return false;
        }
        self.record_value(&change.key, change.new.as_deref());
        let old = change.old.as_ref().and_then(|row| reduce(&row.value));
        let new = change.new.as_ref().and_then(|value| reduce(value));
        let revision = change.revision.0;
        if old == new {
            if let Some(object) = new.filter(is_deleted_by_authd) {
                self.newest.fetch_max(revision, Ordering::SeqCst);
                self.send(revision, mirror_update::Update::Put(MirrorPut { revision, object: Some(object) }));
            }
            return false;
        }
        let (namespace, name) = entry.locate(&change.key);
        self.advance(entry.component, namespace, revision);
        for part in [&old, &new].into_iter().flatten().filter_map(graph_part) {
            self.nodes.advance(part, revision);
        }
        self.identity_dependencies.invalidate(&entry.group, entry.resource, namespace, name);
        let update = match new {
            Some(object) => mirror_update::Update::Put(MirrorPut { revision, object: Some(object) }),
            None => mirror_update::Update::Delete(MirrorDelete { revision, object: old }),
        };
        self.send(revision, update);
        true
    }

    fn send(&self, revision: u64, update: mirror_update::Update) {
        // An error means that no mirror is subscribed. The next mirror stream begins with a snapshot.
        let _ = self.changes.send(PolicyChange { revision, update: MirrorUpdate { update: Some(update) } });
    }
}

impl Observer for PolicyRevisions {
    fn observe(&self, changes: &[Change]) {
        let mut has_advanced = false;
        for change in changes {
            has_advanced |= self.apply(change);
        }
        if let Some(last) = changes.last() {
            self.observed.fetch_max(last.revision.0, Ordering::SeqCst);
        }
        if has_advanced {
            self.advances.send_modify(|count| *count = count.wrapping_add(1));
        }
    }

    fn progress(&self, through: Revision) {
        self.observed.fetch_max(through.0, Ordering::SeqCst);
    }
}

/// The hash of names. It is random, so that nobody can choose names that share a slot with others. It is fixed in tests, where
/// two names could share a slot by accident.
#[cfg(not(test))]
type NameHash = std::hash::RandomState;
#[cfg(test)]
type NameHash = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// Fixed-size table of the revisions of namespaces or nodes, indexed by the hash of the name.
struct Slots {
    values: Box<[AtomicU64]>,
    hash: NameHash,
}

impl Slots {
    fn new() -> Self {
        Slots {
            values: std::iter::repeat_with(|| AtomicU64::new(0)).take(SLOTS).collect(),
            hash: NameHash::default(),
        }
    }

    fn slot(&self, name: &str) -> usize {
        usize::try_from(self.hash.hash_one(name) % SLOTS as u64).unwrap_or(0)
    }

    fn revision_at(&self, slot: usize) -> u64 {
        self.values.get(slot).map_or(u64::MAX, |value| value.load(Ordering::SeqCst))
    }

    fn revision_of(&self, name: &str) -> u64 {
        self.revision_at(self.slot(name))
    }

    fn advance(&self, name: &str, revision: u64) {
        if let Some(value) = self.values.get(self.slot(name)) {
            value.fetch_max(revision, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use serde_json::{Value, json};
    use storage::Row;

    fn change(key: &str, old: Option<Value>, new: Option<Value>, revision: u64) -> Change {
        let bytes = |v: Value| Bytes::from(v.to_string());
        Change {
            key: key.into(),
            old: old.map(|v| Row { key: key.into(), value: bytes(v), revision: Revision(revision - 1) }),
            new: new.map(bytes),
            revision: Revision(revision),
        }
    }

    fn role(verb: &str, note: &str) -> Value {
        json!({"metadata": {"name": "r", "annotations": {"note": note}}, "rules": [{"verbs": [verb]}]})
    }

    #[test]
    fn policy_write_advances_only_its_component() {
        let user = UserInfo { name: "u".into(), ..UserInfo::default() };
        for (key, cluster, namespace, identity) in [
            ("clusterroles/r", 10, 5, 5),
            ("clusterrolebindings/r", 10, 5, 5),
            ("roles/a/r", 5, 10, 5),
            ("rolebindings/a/r", 5, 10, 5),
            ("serviceaccounts/a/r", 5, 5, 10),
            ("configmaps/a/r", 5, 5, 5),
        ] {
            let vector = PolicyRevisions::new(Reductions::for_tests());
            vector.start_at(Revision(5));
            vector.observe(&[change(key, None, Some(role("get", "")), 10)]);
            let baseline = vector.baseline(&user, "a", Duration::ZERO);
            assert_eq!(baseline.as_of, 10, "{key}");
            assert_eq!(baseline.at_least.rbac_cluster, cluster, "{key}");
            assert_eq!(baseline.at_least.rbac_namespace["a"], namespace, "{key}");
            assert_eq!(baseline.at_least.identity, identity, "{key}");
        }
    }

    #[test]
    fn write_with_equal_reduction_keeps_decisions_valid() {
        let vector = PolicyRevisions::new(Reductions::for_tests());
        let (mut mirror, _) = vector.subscribe();
        vector.observe(&[change("roles/a/r", None, Some(role("get", "x")), 1)]);
        let baseline = vector.baseline(&UserInfo::anonymous(), "a", Duration::ZERO);
        let dependencies = vector.dependencies(Some(&Dependencies {
            rbac_namespace: vec!["a".into()],
            ..Dependencies::default()
        }));

        vector.observe(&[change("roles/a/r", Some(role("get", "x")), Some(role("get", "y")), 2)]);
        assert!(
            vector.unchanged(&dependencies, baseline.as_of),
            "an annotation must not change the reduction"
        );
        vector.observe(&[change("roles/a/r", Some(role("get", "y")), Some(role("list", "y")), 3)]);
        assert!(!vector.unchanged(&dependencies, baseline.as_of), "a verb must change the reduction");
        vector.observe(&[change("roles/a/r", Some(role("list", "y")), None, 4)]);

        let sent: Vec<u64> = std::iter::from_fn(|| mirror.try_recv().ok()).map(|c| c.revision).collect();
        assert_eq!(sent, [1, 3, 4], "the mirror must get each changed reduction, in order");
    }

    #[test]
    fn each_write_of_object_that_authd_deletes_is_mirrored() {
        let binding = |note: &str| json!({"metadata": {"name": "r", "annotations": {"note": note}}, "roleRef": {"kind": "Role", "name": "x"}});
        let secret = |kind: &str, note: &str| json!({"metadata": {"name": "r", "annotations": {"note": note}}, "type": kind});
        let token = |note| {
            let mut token = secret("bootstrap.svc.internal/token", note);
            token["data"] = json!({"token-id": "YWJjZGVm"});
            token
        };
        let opaque = |note| secret("Opaque", note);
        for (key, old, new, is_mirrored) in [
            ("clusterrolebindings/r", binding("x"), binding("y"), true),
            ("rolebindings/a/r", binding("x"), binding("y"), true),
            ("secrets/a/r", token("x"), token("y"), true),
            ("secrets/a/r", opaque("x"), opaque("y"), false),
            ("roles/a/r", role("get", "x"), role("get", "y"), false),
        ] {
            let vector = PolicyRevisions::new(Reductions::for_tests());
            vector.start_at(Revision(5));
            let advances = vector.subscribe_to_advances();
            let (mut mirror, _) = vector.subscribe();
            vector.observe(&[change(key, Some(old), Some(new), 10)]);
            let sent = mirror.try_recv().ok().map(|change| change.revision);
            assert_eq!(sent, is_mirrored.then_some(10), "{key}");
            assert_eq!(vector.subscribe().1, Revision(if is_mirrored { 10 } else { 5 }), "{key}");
            let baseline = vector.baseline(&UserInfo::anonymous(), "a", Duration::ZERO).at_least;
            let revisions = (baseline.rbac_cluster, baseline.rbac_namespace["a"], baseline.identity);
            assert_eq!(revisions, (5, 5, 5), "{key}: decisions stay valid");
            assert!(!advances.has_changed().unwrap(), "{key}");
        }
    }

    #[test]
    fn subscription_begins_after_newest_policy_change() {
        let vector = PolicyRevisions::new(Reductions::for_tests());
        vector.observe(&[
            change("roles/a/r", None, Some(role("get", "")), 3),
            change("configmaps/a/c", None, Some(json!({})), 4),
        ]);
        let (mut mirror, newest) = vector.subscribe();
        vector.observe(&[change("roles/a/s", None, Some(role("get", "")), 5)]);
        assert_eq!(newest, Revision(3));
        assert_eq!(mirror.try_recv().map(|change| change.revision), Ok(5));
    }

    #[test]
    fn response_without_dependencies_stays_valid_after_writes() {
        let vector = PolicyRevisions::new(Reductions::for_tests());
        let dependencies = vector.dependencies(None);
        vector.observe(&[change("clusterroles/r", None, Some(role("get", "")), 7)]);
        assert!(vector.unchanged(&dependencies, 0));
    }

    #[test]
    fn node_baseline_contains_its_graph_part() {
        let vector = PolicyRevisions::new(Reductions::for_tests());
        vector.start_at(Revision(3));
        let node = UserInfo { name: "system:node:n1".into(), ..UserInfo::default() };
        assert_eq!(vector.baseline(&node, "", Duration::ZERO).at_least.graph_node["n1"], 3);
        assert!(vector.baseline(&UserInfo::anonymous(), "", Duration::ZERO).at_least.graph_node.is_empty());
    }

    #[test]
    fn pod_move_advances_graph_of_old_and_new_node() {
        let pod = |node: &str, secret: &str, phase: &str| {
            json!({
                "metadata": {"name": "p", "namespace": "a"}, "status": {"phase": phase},
                "spec": {"nodeName": node, "imagePullSecrets": [{"name": secret}]},
            })
        };
        let volume = |claim: &str| json!({"metadata": {"name": "v"}, "spec": {"claimRef": {"namespace": "a", "name": claim}}});
        let base = pod("n1", "s", "Pending");
        for (key, old, new, advanced) in [
            ("pods/a/p", Some(base.clone()), Some(pod("n1", "s", "Running")), &[][..]),
            ("pods/a/p", Some(base.clone()), Some(pod("n1", "t", "Pending")), &["n1"]),
            ("pods/a/p", None, Some(base.clone()), &["n1"]),
            ("pods/a/p", Some(base.clone()), None, &["n1"]),
            ("pods/a/p", Some(pod("", "s", "Pending")), Some(base.clone()), &["n1"]),
            ("pods/a/p", Some(base.clone()), Some(pod("n2", "s", "Pending")), &["n1", "n2"]),
            ("persistentvolumes/v", Some(volume("x")), Some(volume("y")), &[VOLUMES]),
            ("persistentvolumes/v", Some(volume("x")), Some(volume("x")), &[]),
        ] {
            let vector = PolicyRevisions::new(Reductions::for_tests());
            vector.observe(&[change(key, old, new, 10)]);
            for part in ["n1", "n2", "n3", VOLUMES] {
                let dependencies = vector.dependencies(Some(&Dependencies {
                    graph_node: vec![part.into()],
                    ..Dependencies::default()
                }));
                let shares_a_slot =
                    advanced.iter().any(|other| vector.nodes.slot(other) == vector.nodes.slot(part));
                assert_eq!(
                    vector.unchanged(&dependencies, 9),
                    !shares_a_slot,
                    "{key}: {part} of {advanced:?}"
                );
            }
        }
    }
}
