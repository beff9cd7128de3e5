//! The roles and bindings of the policy mirror, indexed by subject.
//!
//! # Contract
//!
//! `put_*` and `delete_*` apply one change each. A change of a binding updates only the index
//! entries of its subjects. A change of a ClusterRole also recomputes the aggregated roles that include it;
//! recomputing one scans the labels of all ClusterRoles. The policy is consistent between two changes.
//!
//! # Invariants
//!
//! INVARIANT (grants are exact): `grants` has one entry for each binding and each of its subjects that can
//! match. The key is the namespace of the binding with the kind and name of the subject. Replacing or deleting
//! a binding removes its entries. INVARIANT (slots are shared): a role slot exists as long as the role exists
//! or a binding refers to the role. So a binding refers to a role by slot, not by name. `filters` has the
//! filter of each slot in `roles`.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use apimachinery::names::Names;

use super::filter::Filter;
use super::index::HashedIndex;
use super::rule::PolicyRule;
use super::selector::Selector;

/// The kind of a role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RoleKind {
    /// A Role, in one namespace.
    Role,
    /// A ClusterRole.
    ClusterRole,
}

impl RoleKind {
    /// The API name of the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            RoleKind::Role => "Role",
            RoleKind::ClusterRole => "ClusterRole",
        }
    }

    /// Parses the API name of a kind.
    pub fn parse(word: &str) -> Option<Self> {
        [RoleKind::Role, RoleKind::ClusterRole].into_iter().find(|kind| kind.as_str() == word)
    }

    /// The resource name, in lower-case plural.
    pub fn resource(self) -> &'static str {
        match self {
            RoleKind::Role => "roles",
            RoleKind::ClusterRole => "clusterroles",
        }
    }
}

/// The kind of a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SubjectKind {
    /// A user, by username.
    User,
    /// A group, by name.
    Group,
    /// A service account, by namespace and name.
    ServiceAccount,
}

impl SubjectKind {
    /// The API name of the kind.
    pub fn as_str(self) -> &'static str {
        match self {
            SubjectKind::User => "User",
            SubjectKind::Group => "Group",
            SubjectKind::ServiceAccount => "ServiceAccount",
        }
    }

    /// Parses the API name of a kind.
    pub fn parse(word: &str) -> Option<Self> {
        let mut kinds = [SubjectKind::User, SubjectKind::Group, SubjectKind::ServiceAccount].into_iter();
        kinds.find(|kind| kind.as_str() == word)
    }
}

/// A subject of a binding.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject {
    /// The kind of the subject.
    pub kind: SubjectKind,
    /// The case-sensitive name.
    pub name: Box<str>,
    /// The namespace of a service account as written; empty means that of the binding.
    pub namespace: Box<str>,
}

/// The metadata of a role or binding that authd uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Labels; only those of ClusterRoles are used, because aggregation selects by labels.
    pub labels: BTreeMap<String, String>,
    /// The annotation `autoupdate` is `false`: authd does not restore the object to default policy.
    pub protected: bool,
    /// The revision of the object, which is its resourceVersion.
    pub revision: u64,
}

/// The contents of a stored Role or ClusterRole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleSpec {
    /// The metadata that authd uses.
    pub meta: Meta,
    /// The written rules; those of an aggregated role grant nothing.
    pub rules: Vec<PolicyRule>,
    /// The selectors of the aggregation rule, which may be empty; None if the role has no aggregation rule.
    pub aggregation: Option<Vec<Selector>>,
}

/// The contents of a stored RoleBinding or ClusterRoleBinding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingSpec {
    /// The metadata that authd uses.
    pub meta: Meta,
    /// The kind of the role.
    pub role_kind: RoleKind,
    /// The name of the role.
    pub role_name: String,
    /// The subjects that get the role; only those of known kinds.
    pub subjects: Vec<Subject>,
}

/// The index of a role slot in `Policy::roles`.
pub(super) type RoleId = u32;

/// The slot of a role that exists or that a binding refers to.
#[derive(Debug)]
pub(super) struct RoleSlot {
    pub(super) kind: RoleKind,
    /// The namespace; empty for a ClusterRole.
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
    /// The contents of the role; None if the role does not exist.
    pub(super) body: Option<Box<RoleBody>>,
    /// The number of bindings that refer to the role.
    binding_count: u32,
}

/// The contents of an existing role.
#[derive(Debug)]
pub(super) struct RoleBody {
    pub(super) meta: Meta,
    pub(super) written_rules: Vec<Arc<PolicyRule>>,
    pub(super) aggregation: Option<Vec<Selector>>,
    /// The effective rules: the written rules, or for an aggregated role the rules of the roles that it
    /// includes.
    pub(super) effective_rules: Box<[EffectiveRule]>,
}

/// An effective rule of a role, with the filter of the rule.
#[derive(Clone, Debug)]
pub(super) struct EffectiveRule {
    pub(super) filter: Filter,
    pub(super) rule: Arc<PolicyRule>,
}

impl EffectiveRule {
    pub(super) fn new(rule: &Arc<PolicyRule>) -> Self {
        EffectiveRule { filter: Filter::for_rule(rule), rule: Arc::clone(rule) }
    }
}

/// A stored binding, with the slot of its role.
#[derive(Debug)]
pub struct Binding {
    /// The namespace; empty for a ClusterRoleBinding.
    pub namespace: Arc<str>,
    /// The name of the binding.
    pub name: Box<str>,
    /// The subjects that get the role.
    pub subjects: Box<[Subject]>,
    /// The annotation `autoupdate` is `false`, see [`Meta::protected`].
    pub protected: bool,
    /// The revision of the binding, see [`Meta::revision`].
    pub revision: u64,
    pub(super) role: RoleId,
}

/// The entry in `Policy::grants` for one subject of one binding.
/// The entry contains the slot of the role, so the filter of the role is found without the binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) binding: u32,
    pub(super) role: RoleId,
}

/// All roles and bindings, with the indexes for decisions. See the module.
#[derive(Debug, Default)]
pub struct Policy {
    /// The full name of the RBAC API group, `rbac.authorization.<d>`, for messages.
    pub(super) group: Box<str>,
    pub(super) roles: Vec<Option<RoleSlot>>,
    pub(super) filters: Vec<Filter>,
    pub(super) bindings: Vec<Option<Binding>>,
    pub(super) grants: HashedIndex<Grant>,
    /// Existing ClusterRoles by name; aggregation uses this order.
    pub(super) cluster_roles: BTreeMap<Arc<str>, RoleId>,
    /// The ClusterRoles with an aggregation rule.
    pub(super) aggregated: BTreeSet<RoleId>,
    /// Whether an aggregated role grants its written rules, because no controller aggregates.
    grants_written_rules: bool,
    /// Whether a snapshot is being loaded. Aggregated roles then have no effective rules until
    /// [`Policy::complete_snapshot`].
    loading: bool,
    free_roles: Vec<RoleId>,
    free_bindings: Vec<u32>,
    role_names: HashedIndex<RoleId>,
    binding_names: HashedIndex<u32>,
    namespaces: HashSet<Arc<str>>,
}

impl Policy {
    /// Creates an empty policy.
    pub fn new(names: &Names) -> Self {
        Policy { group: names.group("rbac.authorization").into(), ..Policy::default() }
    }

    /// Creates an empty policy into which a snapshot is loaded.
    /// Aggregated roles grant nothing until [`Policy::complete_snapshot`].
    pub fn for_snapshot(names: &Names) -> Self {
        Policy { loading: true, ..Policy::new(names) }
    }

    /// Returns the empty policy with aggregation turned on or off. Without aggregation, each role grants its
    /// written rules, and no role is stale.
    #[must_use]
    pub fn with_aggregation(self, is_enabled: bool) -> Self {
        Policy { grants_written_rules: !is_enabled, ..self }
    }

    /// Ends the loading of a snapshot, and computes the effective rules of all aggregated roles.
    pub fn complete_snapshot(&mut self) {
        self.loading = false;
        for id in self.aggregated.clone() {
            self.recompute_aggregate(id);
        }
    }

    /// Creates or replaces a role. `namespace` is empty for a ClusterRole.
    pub fn put_role(&mut self, kind: RoleKind, namespace: &str, name: &str, spec: RoleSpec) {
        let id = self.find_or_create_role_slot(kind, namespace, name);
        let written_rules: Vec<Arc<PolicyRule>> = spec.rules.into_iter().map(Arc::new).collect();
        let aggregates = spec.aggregation.is_some() && !self.grants_written_rules;
        let effective_rules = match aggregates {
            false => written_rules.iter().map(EffectiveRule::new).collect(),
            true => Box::default(),
        };
        let labels = spec.meta.labels.clone();
        let body =
            RoleBody { meta: spec.meta, written_rules, aggregation: spec.aggregation, effective_rules };
        let previous = self.replace_body(id, Some(Box::new(body)));
        if kind == RoleKind::ClusterRole {
            if let Some(slot) = self.slot(id) {
                self.cluster_roles.insert(Arc::clone(&slot.name), id);
            }
            if aggregates {
                self.aggregated.insert(id);
            } else {
                self.aggregated.remove(&id);
            }
            if !self.loading {
                self.recompute_aggregate(id);
                self.recompute_dependents(previous.iter().map(|body| &body.meta.labels).chain([&labels]));
            }
        }
    }

    /// Deletes a role, if it exists.
    pub fn delete_role(&mut self, kind: RoleKind, namespace: &str, name: &str) {
        let Some(id) = self.find_role(kind, namespace, name) else { return };
        let previous = self.replace_body(id, None);
        if kind == RoleKind::ClusterRole {
            self.cluster_roles.remove(name);
            self.aggregated.remove(&id);
            if !self.loading {
                self.recompute_dependents(previous.iter().map(|body| &body.meta.labels));
            }
        }
        self.release_role(id);
    }

    /// Creates or replaces a binding. `namespace` is empty for a ClusterRoleBinding.
    pub fn put_binding(&mut self, namespace: &str, name: &str, spec: BindingSpec) {
        self.delete_binding(namespace, name);
        let role_namespace = if spec.role_kind == RoleKind::ClusterRole { "" } else { namespace };
        let role = self.find_or_create_role_slot(spec.role_kind, role_namespace, &spec.role_name);
        if let Some(slot) = self.slot_mut(role) {
            slot.binding_count += 1;
        }
        let binding = Binding {
            namespace: self.intern(namespace),
            name: name.into(),
            subjects: spec.subjects.into(),
            protected: spec.meta.protected,
            revision: spec.meta.revision,
            role,
        };
        let id = self.free_bindings.pop().unwrap_or_else(|| {
            self.bindings.push(None);
            u32::try_from(self.bindings.len() - 1).unwrap_or(u32::MAX)
        });
        for subject in &binding.subjects {
            subject.with_index_key(namespace, |key| self.grants.add(&key, Grant { binding: id, role }));
        }
        self.binding_names.add(&(namespace, name), id);
        if let Some(slot) = self.bindings.get_mut(id as usize) {
            *slot = Some(binding);
        }
    }

    /// Deletes a binding, if it exists.
    pub fn delete_binding(&mut self, namespace: &str, name: &str) {
        let Some(id) = self.find_binding(namespace, name) else { return };
        let Some(binding) = self.bindings.get_mut(id as usize).and_then(Option::take) else { return };
        for subject in &binding.subjects {
            subject.with_index_key(namespace, |key| {
                self.grants.remove(&key, Grant { binding: id, role: binding.role })
            });
        }
        self.binding_names.remove(&(namespace, name), id);
        self.free_bindings.push(id);
        if let Some(slot) = self.slot_mut(binding.role) {
            slot.binding_count -= 1;
        }
        self.release_role(binding.role);
        drop(binding);
        self.release_namespace(namespace);
    }

    /// Returns a stored binding; None if it does not exist.
    pub fn binding(&self, namespace: &str, name: &str) -> Option<&Binding> {
        self.bindings.get(self.find_binding(namespace, name)? as usize)?.as_ref()
    }

    /// Returns kind and name of the role that a binding refers to, whether the role exists or not.
    pub fn role_of(&self, binding: &Binding) -> Option<(RoleKind, &str)> {
        let slot = self.slot(binding.role)?;
        Some((slot.kind, &slot.name))
    }

    /// Returns the effective rules of a role; None if it does not exist.
    pub fn effective_rules(&self, kind: RoleKind, namespace: &str, name: &str) -> Option<Vec<PolicyRule>> {
        let body = self.role_body(kind, namespace, name)?;
        Some(body.effective_rules.iter().map(|entry| (*entry.rule).clone()).collect())
    }

    /// Returns the message about a missing role, in the wording of Kubernetes.
    pub fn role_not_found_message(&self, kind: RoleKind, name: &str) -> String {
        let kind = kind.as_str().to_ascii_lowercase();
        format!("{kind}.{} {} not found", self.group, apimachinery::field::quote(name))
    }

    /// Returns the number of existing roles and the number of bindings.
    pub fn role_and_binding_counts(&self) -> (usize, usize) {
        let roles = self.roles.iter().flatten().filter(|slot| slot.body.is_some()).count();
        (roles, self.bindings.len() - self.free_bindings.len())
    }

    pub(super) fn role_body(&self, kind: RoleKind, namespace: &str, name: &str) -> Option<&RoleBody> {
        self.slot(self.find_role(kind, namespace, name)?)?.body.as_deref()
    }

    pub(super) fn slot(&self, id: RoleId) -> Option<&RoleSlot> {
        self.roles.get(id as usize)?.as_ref()
    }

    fn slot_mut(&mut self, id: RoleId) -> Option<&mut RoleSlot> {
        self.roles.get_mut(id as usize)?.as_mut()
    }

    /// Sets the effective rules of an aggregated role.
    pub(super) fn set_effective_rules(&mut self, id: RoleId, effective_rules: Box<[EffectiveRule]>) {
        if let Some(body) = self.slot_mut(id).and_then(|slot| slot.body.as_mut()) {
            body.effective_rules = effective_rules;
        }
        self.update_filter(id);
    }

    fn replace_body(&mut self, id: RoleId, body: Option<Box<RoleBody>>) -> Option<Box<RoleBody>> {
        let slot = self.slot_mut(id)?;
        let previous = std::mem::replace(&mut slot.body, body);
        self.update_filter(id);
        previous
    }

    /// Recomputes the filter of a role slot.
    /// The filter of a missing role admits all requests, so that the walk reports the missing role.
    fn update_filter(&mut self, id: RoleId) {
        let filter = match self.slot(id).and_then(|slot| slot.body.as_deref()) {
            None => Filter::ADMITS_ALL,
            Some(body) => {
                body.effective_rules.iter().fold(Filter::default(), |all, entry| all.union(entry.filter))
            }
        };
        if let Some(slot) = self.filters.get_mut(id as usize) {
            *slot = filter;
        }
    }

    fn find_role(&self, kind: RoleKind, namespace: &str, name: &str) -> Option<RoleId> {
        let found = self.role_names.candidates(&(kind, namespace, name)).iter().find(|id| {
            self.slot(**id).is_some_and(|s| s.kind == kind && &*s.namespace == namespace && &*s.name == name)
        });
        found.copied()
    }

    fn find_binding(&self, namespace: &str, name: &str) -> Option<u32> {
        let found = self.binding_names.candidates(&(namespace, name)).iter().find(|id| {
            let binding = self.bindings.get(**id as usize).and_then(Option::as_ref);
            binding.is_some_and(|b| &*b.namespace == namespace && &*b.name == name)
        });
        found.copied()
    }

    /// Returns the slot of a role; creates the slot if there is none.
    fn find_or_create_role_slot(&mut self, kind: RoleKind, namespace: &str, name: &str) -> RoleId {
        if let Some(id) = self.find_role(kind, namespace, name) {
            return id;
        }
        let slot = RoleSlot {
            kind,
            namespace: self.intern(namespace),
            name: name.into(),
            body: None,
            binding_count: 0,
        };
        let id = self.free_roles.pop().unwrap_or_else(|| {
            self.roles.push(None);
            self.filters.push(Filter::ADMITS_ALL);
            u32::try_from(self.roles.len() - 1).unwrap_or(u32::MAX)
        });
        if let Some(entry) = self.roles.get_mut(id as usize) {
            *entry = Some(slot);
        }
        self.role_names.add(&(kind, namespace, name), id);
        self.update_filter(id);
        id
    }

    /// Frees a slot if its role does not exist and no binding refers to it.
    fn release_role(&mut self, id: RoleId) {
        let Some(entry) = self.roles.get_mut(id as usize) else { return };
        if !entry.as_ref().is_some_and(|slot| slot.body.is_none() && slot.binding_count == 0) {
            return;
        }
        if let Some(slot) = entry.take() {
            self.role_names.remove(&(slot.kind, &*slot.namespace, &*slot.name), id);
            self.free_roles.push(id);
            let namespace = String::from(&*slot.namespace);
            drop(slot);
            self.release_namespace(&namespace);
        }
    }

    fn intern(&mut self, namespace: &str) -> Arc<str> {
        if let Some(existing) = self.namespaces.get(namespace) {
            return Arc::clone(existing);
        }
        let interned: Arc<str> = namespace.into();
        self.namespaces.insert(Arc::clone(&interned));
        interned
    }

    fn release_namespace(&mut self, namespace: &str) {
        if self.namespaces.get(namespace).is_some_and(|existing| Arc::strong_count(existing) == 1) {
            self.namespaces.remove(namespace);
        }
    }
}

impl Subject {
    /// Calls `call` with the key of this subject in `grants`, for a binding in `namespace`.
    /// Service accounts are indexed as users.
    /// A subject that can never match has no key, so `call` does not run.
    fn with_index_key(&self, namespace: &str, call: impl FnOnce((&str, SubjectKind, &str))) {
        match self.kind {
            SubjectKind::User | SubjectKind::Group => call((namespace, self.kind, &self.name)),
            SubjectKind::ServiceAccount => {
                if let Some(account_namespace) = self.account_namespace(namespace) {
                    call((
                        namespace,
                        SubjectKind::User,
                        &format!("system:serviceaccount:{account_namespace}:{}", self.name),
                    ));
                }
            }
        }
    }

    /// Returns the namespace of a service account: that of the subject, else that of the binding.
    /// Returns None if both are empty.
    pub fn account_namespace<'a>(&'a self, binding: &'a str) -> Option<&'a str> {
        [&*self.namespace, binding].into_iter().find(|namespace| !namespace.is_empty())
    }
}
