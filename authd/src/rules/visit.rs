//! The walk over the rules of a user in a scope, and the visitors that decide, list and explain.
//!
//! # Contract
//!
//! ClusterRoleBindings come first, then the bindings of the namespace; in each, bindings of the user come
//! before those of the groups. [`Policy::decide`] stops at the first rule that allows. [`Policy::rules_of`]
//! lists all rules. [`Policy::explain`] visits the rules in the same order and collects the nearest misses.
//!
//! A decision that applies to any object name also has the same reason for every name. No rule that was visited
//! before depends on the name.
//!
//! # Invariants
//!
//! INVARIANT (one matcher): a decision and its explanation use the same walk over the same rules.
//! INVARIANT (once): a binding that matches a user through several subjects is visited once, for the first of
//! these subjects, which the reason names.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use apimachinery::attributes::Attributes;
use apimachinery::field::quote;
use apimachinery::user::UserInfo;

use super::filter::Probe;
use super::nearest::{Explanation, MatchedRule, NearMiss, NearestMisses};
use super::policy::{Binding, Policy, RoleKind, RoleSlot, Subject, SubjectKind};
use super::rule::PolicyRule;

/// The binding, subject and role through which a rule applies to a user.
#[derive(Clone, Copy, Debug)]
pub struct BindingPath<'p> {
    pub(super) binding: &'p Binding,
    pub(super) subject: &'p Subject,
    pub(super) role: &'p RoleSlot,
}

/// A step of the walk over the rules of a user.
enum VisitEvent<'p> {
    Rule(BindingPath<'p>, &'p Arc<PolicyRule>),
    /// The role of the binding does not exist.
    Missing(BindingPath<'p>),
}

/// The RBAC decision for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RbacDecision {
    /// A rule allows the request.
    Allowed {
        /// The reason: `RBAC: allowed by` and the binding, role and subject.
        reason: String,
        /// The rule applies through a ClusterRoleBinding: the decision depends on no Role and no RoleBinding.
        cluster_wide: bool,
        /// The decision and its reason apply to every object name. The rule has no `resourceNames`, and no rule
        /// before it allows the request for some names only.
        any_name: bool,
    },
    /// No rule allows the request.
    NotAllowed {
        /// Empty, or `RBAC: ` and messages about missing roles of bindings, in the wording of Kubernetes.
        reason: String,
        /// No rule allows the request for some object names only, so the request is not allowed for any name.
        any_name: bool,
    },
}

/// The rules of a user, each once, in the order of the walk.
#[derive(Clone, Debug, Default)]
pub struct UserRules {
    /// The rules.
    pub rules: Vec<Arc<PolicyRule>>,
    /// Messages about missing roles of bindings, at most [`MAX_MISSING_ROLES`] and their number.
    pub problems: Vec<String>,
    /// Whether the limit left out rules.
    pub is_truncated: bool,
}

/// The limit of a list of rules, in rules and in bytes.
#[derive(Clone, Copy, Debug)]
pub struct RulesLimit {
    rules: usize,
    bytes: usize,
}

impl RulesLimit {
    /// No limit: the stored policy alone limits the list.
    pub const NONE: RulesLimit = RulesLimit { rules: usize::MAX, bytes: usize::MAX };

    /// At most this number of rules, and at most this number of bytes in memory.
    pub const fn new(rules: usize, bytes: usize) -> Self {
        RulesLimit { rules, bytes }
    }

    /// Subtracts a rule from the limit. Returns false when the rule exceeds the limit.
    fn admits(&mut self, rule: &PolicyRule) -> bool {
        let (Some(rules), Some(bytes)) = (self.rules.checked_sub(1), self.bytes.checked_sub(rule.memory()))
        else {
            return false;
        };
        *self = RulesLimit { rules, bytes };
        true
    }
}

/// The maximum number of messages about missing roles in one list or reason.
const MAX_MISSING_ROLES: usize = 20;
/// The maximum length of the name of a missing role in a message, in characters: that of a valid name.
const MAX_ROLE_NAME: usize = 253;

/// The missing roles of bindings: each of the first [`MAX_MISSING_ROLES`] gets a message, the others are counted.
#[derive(Default)]
struct MissingRoles {
    messages: Vec<String>,
    others: usize,
}

impl MissingRoles {
    fn add(&mut self, policy: &Policy, role: &RoleSlot) {
        if self.messages.len() == MAX_MISSING_ROLES {
            self.others += 1;
            return;
        }
        let name = match role.name.char_indices().nth(MAX_ROLE_NAME) {
            Some((end, _)) => format!("{}…", role.name.get(..end).unwrap_or_default()),
            None => role.name.to_string(),
        };
        let message = policy.role_not_found_message(role.kind, &name);
        if !self.messages.contains(&message) {
            self.messages.push(message);
        }
    }

    fn finish(mut self) -> Vec<String> {
        if self.others > 0 {
            self.messages.push(format!("{} more bindings refer to missing roles", self.others));
        }
        self.messages
    }
}

/// Recognizes the roles that an earlier binding of the walk has.
#[derive(Default)]
struct RoleFilter {
    roles: HashSet<*const RoleSlot>,
    /// The binding of the last rule, and whether this binding is the first with its role.
    last: Option<(*const Binding, bool)>,
}

impl RoleFilter {
    /// Whether no earlier binding of the walk has the role of this rule.
    fn is_first_binding(&mut self, path: BindingPath<'_>) -> bool {
        let binding = std::ptr::from_ref(path.binding);
        match self.last {
            Some((last, is_first)) if last == binding => is_first,
            _ => {
                let is_first = self.roles.insert(std::ptr::from_ref(path.role));
                self.last = Some((binding, is_first));
                is_first
            }
        }
    }
}

impl Policy {
    /// Decides whether the user may make the request.
    pub fn decide(&self, user: &UserInfo, request: &Attributes) -> RbacDecision {
        let mut allowed = None;
        let mut missing_roles = MissingRoles::default();
        let mut depends_on_name = false;
        let namespace = if request.resource_request { request.namespace.as_str() } else { "" };
        let _ = self.visit(user, namespace, Some(Probe::for_request(request)), &mut |visit| {
            match visit {
                VisitEvent::Rule(binding_path, rule) => {
                    if rule.allows(request) {
                        allowed = Some((binding_path, rule.resource_names.is_empty() && !depends_on_name));
                        return ControlFlow::Break(());
                    }
                    depends_on_name =
                        depends_on_name || request.resource_request && rule.allows_any_name(request);
                }
                VisitEvent::Missing(binding_path) => missing_roles.add(self, binding_path.role),
            }
            ControlFlow::Continue(())
        });
        if let Some((binding_path, any_name)) = allowed {
            let cluster_wide = binding_path.binding.namespace.is_empty();
            let reason = format!("RBAC: allowed by {}", binding_path.describe());
            let any_name = any_name && request.resource_request;
            return RbacDecision::Allowed { reason, cluster_wide, any_name };
        }
        let reason = match missing_roles.finish().as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            many => format!("RBAC: [{}]", many.join(", ")),
        };
        RbacDecision::NotAllowed { reason, any_name: request.resource_request && !depends_on_name }
    }

    /// Returns the rules of the user in the namespace and cluster-wide; for an empty namespace only the
    /// cluster-wide rules. Each rule is listed once. The walk ends before a rule that would exceed `limit`.
    ///
    /// The rules of a role that many bindings name are compared only for the first of these bindings.
    pub fn rules_of(&self, user: &UserInfo, namespace: &str, mut limit: RulesLimit) -> UserRules {
        let mut listed: HashSet<&PolicyRule> = HashSet::new();
        let mut listed_roles = RoleFilter::default();
        let mut user_rules = UserRules::default();
        let mut missing_roles = MissingRoles::default();
        let walk = self.visit(user, namespace, None, &mut |visit| {
            match visit {
                VisitEvent::Rule(path, rule) => {
                    if !listed_roles.is_first_binding(path) || listed.contains(&**rule) {
                        return ControlFlow::Continue(());
                    }
                    if !limit.admits(rule) {
                        return ControlFlow::Break(());
                    }
                    listed.insert(rule);
                    user_rules.rules.push(Arc::clone(rule));
                }
                VisitEvent::Missing(binding_path) => missing_roles.add(self, binding_path.role),
            }
            ControlFlow::Continue(())
        });
        UserRules { is_truncated: walk.is_break(), problems: missing_roles.finish(), ..user_rules }
    }

    /// Explains the decision: the rule that allows the request, or the nearest misses.
    ///
    /// The walk has the order of [`Policy::decide`], but uses no filters, because filters skip near misses.
    pub fn explain(&self, user: &UserInfo, request: &Attributes) -> Explanation {
        let namespace = if request.resource_request { request.namespace.as_str() } else { "" };
        let mut allowed = None;
        let mut nearest = NearestMisses::default();
        let _ = self.visit(user, namespace, None, &mut |visit| {
            let VisitEvent::Rule(binding_path, rule) = visit else { return ControlFlow::Continue(()) };
            if rule.allows(request) {
                allowed = Some((binding_path, rule));
                return ControlFlow::Break(());
            }
            if let Some(miss) = NearMiss::between(rule, request) {
                nearest.add(miss, (binding_path, rule));
            }
            ControlFlow::Continue(())
        });
        if let Some((binding_path, rule)) = allowed {
            let grant = MatchedRule { path: binding_path.describe(), rule: (**rule).clone() };
            return Explanation { grant: Some(grant), ..Explanation::default() };
        }
        let describe = |(miss, (path, rule)): &(NearMiss, (BindingPath<'_>, &Arc<PolicyRule>))| {
            format!("{} {}", path.describe(), miss.describe(rule, request))
        };
        let (nearest, more) = nearest.finish();
        Explanation { grant: None, nearest: nearest.iter().map(describe).collect(), more }
    }

    /// Visits the rules of the user. With a probe, it skips the rules whose filters do not admit the probe.
    fn visit<'p>(
        &'p self,
        user: &UserInfo,
        namespace: &str,
        probe: Option<Probe>,
        visitor: &mut dyn FnMut(VisitEvent<'p>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let scopes = std::iter::once("").chain((!namespace.is_empty()).then_some(namespace));
        for scope in scopes {
            let user_subject = std::iter::once((SubjectKind::User, user.name.as_str()));
            let groups = user.groups.iter().map(|group| (SubjectKind::Group, group.as_str()));
            for (kind, name) in user_subject.chain(groups) {
                // Grants of one binding under one key are adjacent, so the last visited binding is enough.
                let mut visited = None;
                for grant in self.grants.candidates(&(scope, kind, name)) {
                    if visited == Some(grant.binding) {
                        continue;
                    }
                    let filter = self.filters.get(grant.role as usize);
                    if !filter.is_some_and(|filter| probe.is_none_or(|probe| filter.admits(probe))) {
                        continue;
                    }
                    let Some(binding) = self.bindings.get(grant.binding as usize).and_then(Option::as_ref)
                    else {
                        continue;
                    };
                    let Some(role) = self.slot(grant.role) else { continue };
                    // The index may return bindings of other keys, and returns a binding under the key of
                    // each of its subjects.
                    let first_match = binding
                        .subjects
                        .iter()
                        .find(|subject| subject.matches_user(user, &binding.namespace));
                    let Some(subject) =
                        first_match.filter(|s| &*binding.namespace == scope && s.is_indexed_as(kind, name))
                    else {
                        continue;
                    };
                    visited = Some(grant.binding);
                    let binding_path = BindingPath { binding, subject, role };
                    match role.body.as_deref() {
                        None => visitor(VisitEvent::Missing(binding_path))?,
                        Some(body) => {
                            for entry in &body.effective_rules {
                                if probe.is_none_or(|probe| entry.filter.admits(probe)) {
                                    visitor(VisitEvent::Rule(binding_path, &entry.rule))?;
                                }
                            }
                        }
                    }
                }
            }
        }
        ControlFlow::Continue(())
    }
}

impl Subject {
    /// Whether the subject matches the user, in a binding of this namespace.
    fn matches_user(&self, user: &UserInfo, namespace: &str) -> bool {
        match self.kind {
            SubjectKind::User => *self.name == *user.name,
            SubjectKind::Group => user.in_group(&self.name),
            SubjectKind::ServiceAccount => {
                self.account_namespace(namespace).is_some_and(|account_namespace| {
                    let rest = user
                        .name
                        .strip_prefix("system:serviceaccount:")
                        .and_then(|rest| rest.strip_prefix(account_namespace));
                    rest.and_then(|rest| rest.strip_prefix(':')) == Some(&*self.name)
                })
            }
        }
    }

    /// Whether the subject, which matches the user, is in the index under this kind and name of the walk.
    /// Service accounts are indexed as users.
    fn is_indexed_as(&self, kind: SubjectKind, name: &str) -> bool {
        match self.kind {
            SubjectKind::Group => kind == SubjectKind::Group && *self.name == *name,
            SubjectKind::User | SubjectKind::ServiceAccount => kind == SubjectKind::User,
        }
    }
}

impl BindingPath<'_> {
    /// Describes binding, role and subject in the wording of Kubernetes, with names as `NAME/NAMESPACE`.
    pub fn describe(&self) -> String {
        let BindingPath { binding, subject, role } = self;
        let (kind, name) = if binding.namespace.is_empty() {
            ("ClusterRoleBinding", quote(&binding.name))
        } else {
            ("RoleBinding", quote(&format!("{}/{}", binding.name, binding.namespace)))
        };
        let subject_name = match subject.kind {
            SubjectKind::ServiceAccount => {
                let account_namespace = subject.account_namespace(&binding.namespace).unwrap_or_default();
                format!("{}/{account_namespace}", subject.name)
            }
            SubjectKind::User | SubjectKind::Group => subject.name.to_string(),
        };
        let (role_kind, role) = (RoleKind::as_str(role.kind), quote(&role.name));
        format!("{kind} {name} of {role_kind} {role} to {} {}", subject.kind.as_str(), quote(&subject_name))
    }
}
