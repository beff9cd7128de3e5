//! The roles and bindings of the mirror, indexed by subject.
//!
//! # Contract
//!
//! `put_*` and `delete_*` take one change each and cost what that change touches: a binding's own subjects, a role and
//! the aggregated roles that follow it. Everything is readable between two changes.
//!
//! # Invariants
//!
//! INVARIANT (grants are exact): `grants` holds one entry for each (binding, subject that can ever match), under the
//! binding's namespace and the subject's name; a binding that is replaced or deleted takes its entries along.
//! INVARIANT (slots are shared): a role slot lives as long as the role exists or a binding refers to it, so that a
//! binding needs no look-up by name; `filters` runs parallel to `roles`.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use apimachinery::names::Names;

use super::aggregation::Selector;
use super::filter::Filter;
use super::index::HashedIndex;
use super::rule::PolicyRule;

/// Which of the two role kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RoleKind {
    /// Of one namespace.
    Role,
    /// Of the cluster.
    ClusterRole,
}

impl RoleKind {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            RoleKind::Role => "Role",
            RoleKind::ClusterRole => "ClusterRole",
        }
    }

    /// From the API's word.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "Role" => Some(RoleKind::Role),
            "ClusterRole" => Some(RoleKind::ClusterRole),
            _ => None,
        }
    }

    /// Lower-case plural.
    pub fn resource(self) -> &'static str {
        match self {
            RoleKind::Role => "roles",
            RoleKind::ClusterRole => "clusterroles",
        }
    }
}

/// Which of the three subject kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SubjectKind {
    /// By username.
    User,
    /// By group.
    Group,
    /// By namespace and name of a service account.
    ServiceAccount,
}

impl SubjectKind {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            SubjectKind::User => "User",
            SubjectKind::Group => "Group",
            SubjectKind::ServiceAccount => "ServiceAccount",
        }
    }

    /// From the API's word.
    pub fn parse(word: &str) -> Option<Self> {
        match word {
            "User" => Some(SubjectKind::User),
            "Group" => Some(SubjectKind::Group),
            "ServiceAccount" => Some(SubjectKind::ServiceAccount),
            _ => None,
        }
    }
}

/// Whom a binding grants to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject {
    /// Which kind.
    pub kind: SubjectKind,
    /// Case-sensitive.
    pub name: Box<str>,
    /// Of a service account, as written; empty means the binding's own.
    pub namespace: Box<str>,
}

/// What of the metadata decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Labels, of ClusterRoles only: aggregation selects by them.
    pub labels: BTreeMap<String, String>,
    /// The autoupdate annotation says `false`: default policy leaves the object alone.
    pub protected: bool,
}

/// A role as it is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RoleSpec {
    /// What of the metadata decides.
    pub meta: Meta,
    /// The written rules; of an aggregated role a projection that decides nothing.
    pub rules: Vec<PolicyRule>,
    /// Present when the role has an aggregation rule, perhaps without a selector.
    pub aggregation: Option<Vec<Selector>>,
}

/// A binding as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingSpec {
    /// What of the metadata decides.
    pub meta: Meta,
    /// Kind of the role referred to.
    pub role_kind: RoleKind,
    /// Its name.
    pub role_name: String,
    /// Whom it grants to.
    pub subjects: Vec<Subject>,
}

/// A role's place in the policy.
pub(super) type RoleId = u32;

/// A role that exists or that a binding refers to.
#[derive(Debug)]
pub(super) struct RoleSlot {
    pub(super) kind: RoleKind,
    /// Empty for a ClusterRole.
    pub(super) namespace: Arc<str>,
    pub(super) name: Arc<str>,
    /// None: no such role.
    pub(super) body: Option<Box<RoleBody>>,
    /// Bindings that refer to it.
    bindings: u32,
}

/// A role that exists.
#[derive(Debug)]
pub(super) struct RoleBody {
    pub(super) meta: Meta,
    pub(super) written: Vec<Arc<PolicyRule>>,
    pub(super) aggregation: Option<Vec<Selector>>,
    /// What the role grants: the written rules, or the union of the roles it aggregates.
    pub(super) effective: Box<[Effective]>,
}

/// A rule with its filter beside it.
#[derive(Clone, Debug)]
pub(super) struct Effective {
    pub(super) filter: Filter,
    pub(super) rule: Arc<PolicyRule>,
}

impl Effective {
    pub(super) fn of(rule: &Arc<PolicyRule>) -> Self {
        Effective { filter: Filter::of(rule), rule: Arc::clone(rule) }
    }
}

/// A binding that exists.
#[derive(Debug)]
pub struct Binding {
    /// Empty for a ClusterRoleBinding.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Box<str>,
    /// Whom it grants to.
    pub subjects: Box<[Subject]>,
    /// The autoupdate annotation says `false`.
    pub protected: bool,
    pub(super) role: RoleId,
}

/// One subject's hold on one binding, with the role beside it so that a filter needs no further look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) binding: u32,
    pub(super) role: RoleId,
}

/// All roles and bindings.
#[derive(Debug)]
pub struct Policy {
    /// `rbac.authorization.<d>`, for messages.
    pub(super) group: Box<str>,
    pub(super) roles: Vec<Option<RoleSlot>>,
    pub(super) filters: Vec<Filter>,
    pub(super) bindings: Vec<Option<Binding>>,
    pub(super) grants: HashedIndex<Grant>,
    /// ClusterRoles that exist, by name: aggregation takes them in this order.
    pub(super) cluster_roles: BTreeMap<Arc<str>, RoleId>,
    /// Those of them that have an aggregation rule.
    pub(super) aggregated: BTreeSet<RoleId>,
    /// While a snapshot loads, aggregates are left for [`Policy::loaded`].
    loading: bool,
    free_roles: Vec<RoleId>,
    free_bindings: Vec<u32>,
    role_names: HashedIndex<RoleId>,
    binding_names: HashedIndex<u32>,
    namespaces: HashSet<Arc<str>>,
}

impl Policy {
    /// Without a role.
    pub fn new(names: &Names) -> Self {
        Policy {
            group: names.group("rbac.authorization").into(),
            roles: Vec::new(),
            filters: Vec::new(),
            bindings: Vec::new(),
            grants: HashedIndex::default(),
            cluster_roles: BTreeMap::new(),
            aggregated: BTreeSet::new(),
            loading: false,
            free_roles: Vec::new(),
            free_bindings: Vec::new(),
            role_names: HashedIndex::default(),
            binding_names: HashedIndex::default(),
            namespaces: HashSet::new(),
        }
    }

    /// As [`Policy::new`], for a snapshot: aggregated roles grant nothing until [`Policy::loaded`].
    pub fn loading(names: &Names) -> Self {
        Policy { loading: true, ..Policy::new(names) }
    }

    /// The snapshot is complete.
    pub fn loaded(&mut self) {
        self.loading = false;
        for id in self.aggregated.clone() {
            self.gather(id);
        }
    }

    /// Creates or replaces a role. `namespace` is empty for a ClusterRole.
    pub fn put_role(&mut self, kind: RoleKind, namespace: &str, name: &str, spec: RoleSpec) {
        let id = self.role_slot(kind, namespace, name);
        let written: Vec<Arc<PolicyRule>> = spec.rules.into_iter().map(Arc::new).collect();
        let effective = match spec.aggregation {
            None => written.iter().map(Effective::of).collect(),
            Some(_) => Box::default(),
        };
        let aggregates = spec.aggregation.is_some();
        let labels = spec.meta.labels.clone();
        let body = RoleBody { meta: spec.meta, written, aggregation: spec.aggregation, effective };
        let before = self.replace_body(id, Some(Box::new(body)));
        if kind == RoleKind::ClusterRole {
            if let Some(slot) = self.roles.get(id as usize).and_then(Option::as_ref) {
                self.cluster_roles.insert(Arc::clone(&slot.name), id);
            }
            if aggregates {
                self.aggregated.insert(id);
            } else {
                self.aggregated.remove(&id);
            }
            if !self.loading {
                self.gather(id);
                self.follow(before.iter().map(|body| &body.meta.labels).chain([&labels]));
            }
        }
    }

    /// Deletes a role; nothing when there is none.
    pub fn delete_role(&mut self, kind: RoleKind, namespace: &str, name: &str) {
        let Some(id) = self.find_role(kind, namespace, name) else { return };
        let before = self.replace_body(id, None);
        if kind == RoleKind::ClusterRole {
            self.cluster_roles.remove(name);
            self.aggregated.remove(&id);
            if !self.loading {
                self.follow(before.iter().map(|body| &body.meta.labels));
            }
        }
        self.release_role(id);
    }

    /// Creates or replaces a binding. `namespace` is empty for a ClusterRoleBinding.
    pub fn put_binding(&mut self, namespace: &str, name: &str, spec: BindingSpec) {
        self.delete_binding(namespace, name);
        let of = if spec.role_kind == RoleKind::ClusterRole { "" } else { namespace };
        let role = self.role_slot(spec.role_kind, of, &spec.role_name);
        if let Some(slot) = self.roles.get_mut(role as usize).and_then(Option::as_mut) {
            slot.bindings += 1;
        }
        let binding = Binding {
            namespace: self.intern(namespace),
            name: name.into(),
            subjects: spec.subjects.into(),
            protected: spec.meta.protected,
            role,
        };
        let at = self.free_bindings.pop().unwrap_or_else(|| {
            self.bindings.push(None);
            u32::try_from(self.bindings.len() - 1).unwrap_or(u32::MAX)
        });
        for subject in &binding.subjects {
            subject.with_key(namespace, |key| self.grants.add(&key, Grant { binding: at, role }));
        }
        self.binding_names.add(&(namespace, name), at);
        if let Some(slot) = self.bindings.get_mut(at as usize) {
            *slot = Some(binding);
        }
    }

    /// Deletes a binding; nothing when there is none.
    pub fn delete_binding(&mut self, namespace: &str, name: &str) {
        let Some(at) = self.find_binding(namespace, name) else { return };
        let Some(binding) = self.bindings.get_mut(at as usize).and_then(Option::take) else { return };
        for subject in &binding.subjects {
            subject.with_key(namespace, |key| {
                self.grants.remove(&key, Grant { binding: at, role: binding.role })
            });
        }
        self.binding_names.remove(&(namespace, name), at);
        self.free_bindings.push(at);
        if let Some(slot) = self.roles.get_mut(binding.role as usize).and_then(Option::as_mut) {
            slot.bindings -= 1;
        }
        self.release_role(binding.role);
        drop(binding);
        self.forget_namespace(namespace);
    }

    /// A binding that exists.
    pub fn binding(&self, namespace: &str, name: &str) -> Option<&Binding> {
        self.bindings.get(self.find_binding(namespace, name)? as usize)?.as_ref()
    }

    /// The role that a binding refers to: kind and name.
    pub fn role_of(&self, binding: &Binding) -> Option<(RoleKind, &str)> {
        let slot = self.slot(binding.role)?;
        Some((slot.kind, &slot.name))
    }

    /// Whether a role exists.
    pub fn has_role(&self, kind: RoleKind, namespace: &str, name: &str) -> bool {
        self.role_body(kind, namespace, name).is_some()
    }

    /// What a role grants; None when there is no such role.
    pub fn effective_rules(&self, kind: RoleKind, namespace: &str, name: &str) -> Option<Vec<PolicyRule>> {
        Some(
            self.role_body(kind, namespace, name)?
                .effective
                .iter()
                .map(|entry| (*entry.rule).clone())
                .collect(),
        )
    }

    /// A sentence for a role that does not exist, worded as Kubernetes words it.
    pub fn not_found(&self, kind: RoleKind, name: &str) -> String {
        let kind = kind.as_str().to_ascii_lowercase();
        format!("{kind}.{} {} not found", self.group, apimachinery::field::quote(name))
    }

    /// How many roles exist, and how many bindings.
    pub fn len(&self) -> (usize, usize) {
        let roles = self.roles.iter().flatten().filter(|slot| slot.body.is_some()).count();
        (roles, self.bindings.len() - self.free_bindings.len())
    }

    pub(super) fn role_body(&self, kind: RoleKind, namespace: &str, name: &str) -> Option<&RoleBody> {
        self.slot(self.find_role(kind, namespace, name)?)?.body.as_deref()
    }

    pub(super) fn slot(&self, id: RoleId) -> Option<&RoleSlot> {
        self.roles.get(id as usize)?.as_ref()
    }

    /// Sets what an aggregated role grants.
    pub(super) fn set_effective(&mut self, id: RoleId, effective: Box<[Effective]>) {
        if let Some(body) =
            self.roles.get_mut(id as usize).and_then(Option::as_mut).and_then(|s| s.body.as_mut())
        {
            body.effective = effective;
        }
        self.refilter(id);
    }

    fn replace_body(&mut self, id: RoleId, body: Option<Box<RoleBody>>) -> Option<Box<RoleBody>> {
        let slot = self.roles.get_mut(id as usize).and_then(Option::as_mut)?;
        let before = std::mem::replace(&mut slot.body, body);
        self.refilter(id);
        before
    }

    /// The filter of a role that does not exist is open: the visitor must meet it, to say that it is missing.
    fn refilter(&mut self, id: RoleId) {
        let filter = match self.slot(id).and_then(|slot| slot.body.as_deref()) {
            None => Filter::OPEN,
            Some(body) => body.effective.iter().fold(Filter::default(), |all, entry| all.or(entry.filter)),
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
        let found = self.binding_names.candidates(&(namespace, name)).iter().find(|at| {
            let held = self.bindings.get(**at as usize).and_then(Option::as_ref);
            held.is_some_and(|b| &*b.namespace == namespace && &*b.name == name)
        });
        found.copied()
    }

    /// The slot of a role, made when there is none.
    fn role_slot(&mut self, kind: RoleKind, namespace: &str, name: &str) -> RoleId {
        if let Some(id) = self.find_role(kind, namespace, name) {
            return id;
        }
        let slot =
            RoleSlot { kind, namespace: self.intern(namespace), name: name.into(), body: None, bindings: 0 };
        let id = self.free_roles.pop().unwrap_or_else(|| {
            self.roles.push(None);
            self.filters.push(Filter::OPEN);
            u32::try_from(self.roles.len() - 1).unwrap_or(u32::MAX)
        });
        if let Some(place) = self.roles.get_mut(id as usize) {
            *place = Some(slot);
        }
        self.role_names.add(&(kind, namespace, name), id);
        self.refilter(id);
        id
    }

    /// Frees a slot that neither a role nor a binding needs.
    fn release_role(&mut self, id: RoleId) {
        let Some(place) = self.roles.get_mut(id as usize) else { return };
        if !place.as_ref().is_some_and(|slot| slot.body.is_none() && slot.bindings == 0) {
            return;
        }
        if let Some(slot) = place.take() {
            self.role_names.remove(&(slot.kind, &*slot.namespace, &*slot.name), id);
            self.free_roles.push(id);
            let namespace = String::from(&*slot.namespace);
            drop(slot);
            self.forget_namespace(&namespace);
        }
    }

    fn intern(&mut self, namespace: &str) -> Arc<str> {
        if let Some(held) = self.namespaces.get(namespace) {
            return Arc::clone(held);
        }
        let fresh: Arc<str> = namespace.into();
        self.namespaces.insert(Arc::clone(&fresh));
        fresh
    }

    fn forget_namespace(&mut self, namespace: &str) {
        if self.namespaces.get(namespace).is_some_and(|held| Arc::strong_count(held) == 1) {
            self.namespaces.remove(namespace);
        }
    }
}

impl Subject {
    /// Calls with the key under which the index holds this subject of a binding in `namespace`: service accounts are
    /// users to it. Not called for a subject that can never match.
    fn with_key(&self, namespace: &str, call: impl FnOnce((&str, SubjectKind, &str))) {
        match self.kind {
            SubjectKind::User | SubjectKind::Group => call((namespace, self.kind, &self.name)),
            SubjectKind::ServiceAccount => {
                if let Some(of) = self.account_namespace(namespace) {
                    call((
                        namespace,
                        SubjectKind::User,
                        &format!("system:serviceaccount:{of}:{}", self.name),
                    ));
                }
            }
        }
    }

    /// The namespace of a service account: its own, or the binding's. None when neither names one.
    pub fn account_namespace<'a>(&'a self, binding: &'a str) -> Option<&'a str> {
        [&*self.namespace, binding].into_iter().find(|namespace| !namespace.is_empty())
    }
}
