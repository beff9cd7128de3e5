//! The walk over the rules of a user in a scope, and the visitors that decide, list and explain.
//!
//! # Contract
//!
//! ClusterRoleBindings come first, then the bindings of the namespace; in each, bindings of the user come
//! before those of the groups. [`Policy::judge`] stops at the first rule that allows. [`Policy::rules_of`]
//! lists all rules. [`Policy::explain`] walks as `judge` does and collects the nearest misses.
//!
//! # Invariants
//!
//! INVARIANT (one matcher): a decision and its explanation use the same walk over the same rules.
//! INVARIANT (once): a binding that matches a user through several subjects is visited once, for the first of
//! them, which the reason names.

use std::ops::ControlFlow;
use std::sync::Arc;

use apimachinery::attributes::Attributes;
use apimachinery::field::quote;
use apimachinery::user::UserInfo;

use super::filter::Probe;
use super::policy::{Binding, Policy, RoleKind, RoleSlot, Subject, SubjectKind};
use super::rule::PolicyRule;

/// The binding through which a rule applies to the user.
#[derive(Clone, Copy, Debug)]
pub struct BindingPath<'p> {
    binding: &'p Binding,
    subject: &'p Subject,
    role: &'p RoleSlot,
}

/// One step of the walk.
enum Visit<'p> {
    Rule(BindingPath<'p>, &'p Arc<PolicyRule>),
    /// The role of the binding does not exist.
    Missing(BindingPath<'p>),
}

/// The RBAC decision for a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RbacDecision {
    /// A rule allows the request.
    Allowed {
        /// `RBAC: allowed by ...`.
        reason: String,
        /// The rule applies through a ClusterRoleBinding: the decision depends on no Role and no RoleBinding.
        cluster_wide: bool,
        /// The rule names no objects: it allows every other name too.
        any_name: bool,
    },
    /// No rule allows the request.
    NotAllowed(RbacDenial),
}

/// Why RBAC has no opinion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbacDenial {
    /// Empty, or `RBAC: ` and the missing roles of bindings, in the wording of Kubernetes.
    pub reason: String,
    /// No rule depends on the object's name: no other name is allowed either.
    pub any_name: bool,
}

impl Policy {
    /// Decides whether the user may make the request.
    pub fn judge(&self, user: &UserInfo, request: &Attributes) -> RbacDecision {
        let mut allowed = None;
        let mut missing: Vec<String> = Vec::new();
        let mut names_mattered = false;
        let namespace = if request.resource_request { request.namespace.as_str() } else { "" };
        let _ = self.visit(user, namespace, Some(Probe::of(request)), &mut |visit| {
            match visit {
                Visit::Rule(via, rule) => {
                    if rule.allows(request) {
                        allowed = Some((via, rule.resource_names.is_empty()));
                        return ControlFlow::Break(());
                    }
                    names_mattered =
                        names_mattered || request.resource_request && rule.allows_any_name(request);
                }
                Visit::Missing(via) => {
                    let text = self.not_found(via.role.kind, &via.role.name);
                    if !missing.contains(&text) {
                        missing.push(text);
                    }
                }
            }
            ControlFlow::Continue(())
        });
        if let Some((via, any_name)) = allowed {
            let cluster_wide = via.binding.namespace.is_empty();
            let reason = format!("RBAC: allowed by {}", via.describe());
            return RbacDecision::Allowed {
                reason,
                cluster_wide,
                any_name: any_name && request.resource_request,
            };
        }
        let reason = match missing.as_slice() {
            [] => String::new(),
            [one] => format!("RBAC: {one}"),
            many => format!("RBAC: [{}]", many.join(", ")),
        };
        RbacDecision::NotAllowed(RbacDenial { reason, any_name: request.resource_request && !names_mattered })
    }

    /// Returns the rules of the user in the namespace (or in the cluster, if empty).
    /// The second list contains errors: bindings with a missing role.
    pub fn rules_of(&self, user: &UserInfo, namespace: &str) -> (Vec<Arc<PolicyRule>>, Vec<String>) {
        let mut rules = Vec::new();
        let mut missing = Vec::new();
        let _ = self.visit(user, namespace, None, &mut |visit| {
            match visit {
                Visit::Rule(_, rule) => rules.push(Arc::clone(rule)),
                Visit::Missing(via) => missing.push(self.not_found(via.role.kind, &via.role.name)),
            }
            ControlFlow::Continue(())
        });
        (rules, missing)
    }

    /// Returns the rules nearest to allowing a denied request, a line each, at most `most`.
    pub fn explain(&self, user: &UserInfo, request: &Attributes, most: usize) -> Vec<String> {
        let mut near: Vec<(usize, String)> = Vec::new();
        let namespace = if request.resource_request { request.namespace.as_str() } else { "" };
        let _ = self.visit(user, namespace, None, &mut |visit| {
            let line = match visit {
                Visit::Missing(via) => {
                    (4, format!("{} grants nothing: the role does not exist", via.describe()))
                }
                Visit::Rule(via, rule) => {
                    let met = rule.examine(request);
                    if met.allows() || !met.target && !met.verb {
                        return ControlFlow::Continue(());
                    }
                    let lacks = [
                        (met.verb, "the verb"),
                        (met.group, "the API group"),
                        (met.target, if request.resource_request { "the resource" } else { "the path" }),
                        (met.name, "the name"),
                    ];
                    let lacks: Vec<&str> =
                        lacks.into_iter().filter(|(met, _)| !met).map(|(_, part)| part).collect();
                    (
                        met.matched_parts(),
                        format!("{} has a rule without {}", via.describe(), lacks.join(" and ")),
                    )
                }
            };
            if !near.contains(&line) {
                near.push(line);
                near.sort_by_key(|(met, _)| std::cmp::Reverse(*met));
                near.truncate(most);
            }
            ControlFlow::Continue(())
        });
        near.into_iter().map(|(_, line)| line).collect()
    }

    fn visit<'p>(
        &'p self,
        user: &UserInfo,
        namespace: &str,
        probe: Option<Probe>,
        visitor: &mut dyn FnMut(Visit<'p>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        let scopes = std::iter::once("").chain((!namespace.is_empty()).then_some(namespace));
        for scope in scopes {
            let own = std::iter::once((SubjectKind::User, user.name.as_str()));
            let groups = user.groups.iter().map(|group| (SubjectKind::Group, group.as_str()));
            for (kind, name) in own.chain(groups) {
                for grant in self.grants.candidates(&(scope, kind, name)) {
                    let filter = self.filters.get(grant.role as usize);
                    if !filter.is_some_and(|filter| probe.is_none_or(|probe| filter.admits(probe))) {
                        continue;
                    }
                    let Some(binding) = self.bindings.get(grant.binding as usize).and_then(Option::as_ref)
                    else {
                        continue;
                    };
                    let Some(role) = self.slot(grant.role) else { continue };
                    // The index may return bindings of another key, and returns a binding once for each of
                    // its subjects.
                    let first = binding.subjects.iter().find(|subject| subject.is(user, &binding.namespace));
                    let Some(subject) =
                        first.filter(|s| &*binding.namespace == scope && s.is_indexed_as(kind, name))
                    else {
                        continue;
                    };
                    let via = BindingPath { binding, subject, role };
                    match role.body.as_deref() {
                        None => visitor(Visit::Missing(via))?,
                        Some(body) => {
                            for entry in &body.effective {
                                if probe.is_none_or(|probe| entry.filter.admits(probe)) {
                                    visitor(Visit::Rule(via, &entry.rule))?;
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
    fn is(&self, user: &UserInfo, namespace: &str) -> bool {
        match self.kind {
            SubjectKind::User => *self.name == *user.name,
            SubjectKind::Group => user.in_group(&self.name),
            SubjectKind::ServiceAccount => self.account_namespace(namespace).is_some_and(|of| {
                let rest =
                    user.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.strip_prefix(of));
                rest.and_then(|rest| rest.strip_prefix(':')) == Some(&*self.name)
            }),
        }
    }

    /// Whether the index stores the subject under this kind and name.
    /// Service accounts are indexed as users.
    fn is_indexed_as(&self, kind: SubjectKind, name: &str) -> bool {
        match self.kind {
            SubjectKind::Group => kind == SubjectKind::Group && *self.name == *name,
            SubjectKind::User | SubjectKind::ServiceAccount => kind == SubjectKind::User,
        }
    }
}

impl BindingPath<'_> {
    /// Binding, role and subject, in the wording of Kubernetes.
    pub fn describe(&self) -> String {
        let BindingPath { binding, subject, role } = self;
        let (kind, name) = if binding.namespace.is_empty() {
            ("ClusterRoleBinding", quote(&binding.name))
        } else {
            ("RoleBinding", quote(&format!("{}/{}", binding.name, binding.namespace)))
        };
        let whom = match subject.kind {
            SubjectKind::ServiceAccount => {
                let of = subject.account_namespace(&binding.namespace).unwrap_or_default();
                format!("{}/{of}", subject.name)
            }
            SubjectKind::User | SubjectKind::Group => subject.name.to_string(),
        };
        let (role_kind, role) = (RoleKind::as_str(role.kind), quote(&role.name));
        format!("{kind} {name} of {role_kind} {role} to {} {}", subject.kind.as_str(), quote(&whom))
    }
}
