//! The walk over the rules of a user in a scope, and the visitors that decide, list and explain.
//!
//! # Contract
//!
//! ClusterRoleBindings come first, then the bindings of the namespace; in each, bindings of the user come
//! before those of the groups. [`Policy::decide`] stops at the first rule that allows. [`Policy::rules_of`]
//! lists all rules. [`Policy::explain`] visits the rules in the same order and collects the nearest misses.
//!
//! A decision that applies to any object name also has the same reason for every name, because no rule that
//! was visited before depends on the name.
//!
//! # Invariants
//!
//! INVARIANT (one matcher): a decision and its explanation use the same walk over the same rules.
//! INVARIANT (once): a binding that matches a user through several subjects is visited once, for the first of
//! these subjects, which the reason names.

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
        /// The decision and its reason apply to every object name: the rule has no `resourceNames`, and no
        /// rule before it allows the request for some names only.
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

impl Policy {
    /// Decides whether the user may make the request.
    pub fn decide(&self, user: &UserInfo, request: &Attributes) -> RbacDecision {
        let mut allowed = None;
        let mut missing_roles: Vec<String> = Vec::new();
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
                VisitEvent::Missing(binding_path) => {
                    let text = self.role_not_found_message(binding_path.role.kind, &binding_path.role.name);
                    if !missing_roles.contains(&text) {
                        missing_roles.push(text);
                    }
                }
            }
            ControlFlow::Continue(())
        });
        if let Some((binding_path, any_name)) = allowed {
            let cluster_wide = binding_path.binding.namespace.is_empty();
            let reason = format!("RBAC: allowed by {}", binding_path.describe());
            let any_name = any_name && request.resource_request;
            return RbacDecision::Allowed { reason, cluster_wide, any_name };
        }
        let reason = match missing_roles.as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            many => format!("RBAC: [{}]", many.join(", ")),
        };
        RbacDecision::NotAllowed { reason, any_name: request.resource_request && !depends_on_name }
    }

    /// Returns the rules of the user in the namespace and cluster-wide; for an empty namespace only the
    /// cluster-wide rules. The second list contains messages about missing roles of bindings.
    pub fn rules_of(&self, user: &UserInfo, namespace: &str) -> (Vec<Arc<PolicyRule>>, Vec<String>) {
        let mut rules = Vec::new();
        let mut missing_roles = Vec::new();
        let _ = self.visit(user, namespace, None, &mut |visit| {
            match visit {
                VisitEvent::Rule(_, rule) => rules.push(Arc::clone(rule)),
                VisitEvent::Missing(binding_path) => missing_roles
                    .push(self.role_not_found_message(binding_path.role.kind, &binding_path.role.name)),
            }
            ControlFlow::Continue(())
        });
        (rules, missing_roles)
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
        self.describe_with(|namespace, name| format!("{name}/{namespace}"))
    }

    /// Describes binding, role and subject, with names as `NAMESPACE/NAME`.
    pub(super) fn describe_namespace_first(&self) -> String {
        self.describe_with(|namespace, name| format!("{namespace}/{name}"))
    }

    /// Describes binding, role and subject. `qualify` formats a namespace and a name.
    fn describe_with(&self, qualify: fn(&str, &str) -> String) -> String {
        let BindingPath { binding, subject, role } = self;
        let (kind, name) = if binding.namespace.is_empty() {
            ("ClusterRoleBinding", quote(&binding.name))
        } else {
            ("RoleBinding", quote(&qualify(&binding.namespace, &binding.name)))
        };
        let subject_name = match subject.kind {
            SubjectKind::ServiceAccount => {
                let account_namespace = subject.account_namespace(&binding.namespace).unwrap_or_default();
                qualify(account_namespace, &subject.name)
            }
            SubjectKind::User | SubjectKind::Group => subject.name.to_string(),
        };
        let (role_kind, role) = (RoleKind::as_str(role.kind), quote(&role.name));
        format!("{kind} {name} of {role_kind} {role} to {} {}", subject.kind.as_str(), quote(&subject_name))
    }
}
