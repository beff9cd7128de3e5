//! The subjects that a policy allows a request, each with its binding and role.
//!
//! # Contract
//!
//! RBAC allows a user the request exactly if one of the returned subjects is the user, a group of the user,
//! or the service account. The cost is linear in the number of bindings, so decisions do not use this module.

use std::sync::Arc;

use apimachinery::attributes::Attributes;
use apimachinery::user::UserInfo;

use super::policy::{Binding, Policy, Subject, SubjectKind};
use super::rule::PolicyRule;
use super::visit::{BindingPath, RulesLimit};

/// A subject that is allowed a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AllowedSubject {
    /// The subject; the namespace of a service account is set.
    pub subject: Subject,
    /// Binding, role and subject, with names as `NAME/NAMESPACE`.
    pub path: String,
    /// If the request has no name, the object names for which it is allowed; empty: all objects.
    pub names: Vec<String>,
}

impl Policy {
    /// Returns the subjects that are allowed the request, once for each binding, sorted by kind, namespace
    /// and name.
    ///
    /// A request without a name is also allowed by a rule with `resourceNames`; [`AllowedSubject::names`]
    /// lists the names of such rules.
    pub fn allowed_subjects(&self, request: &Attributes) -> Vec<AllowedSubject> {
        let mut allowed = Vec::new();
        for binding in self.bindings.iter().flatten() {
            let in_scope = binding.namespace.is_empty()
                || request.resource_request && *binding.namespace == *request.namespace;
            let Some(role) = self.slot(binding.role).filter(|_| in_scope) else { continue };
            let rules = role.body.iter().flat_map(|body| &body.effective_rules).map(|entry| &entry.rule);
            let is_for_any_name = request.resource_request && request.name.is_empty();
            let matches = |rule: &&Arc<PolicyRule>| {
                rule.allows(request) || is_for_any_name && rule.allows_any_name(request)
            };
            let mut matching: Vec<_> = rules.filter(matches).collect();
            // A rule without `resourceNames` comes first: it allows all objects, so other rules do not
            // matter.
            matching.sort_by_key(|rule| !rule.resource_names.is_empty());
            let Some(first_rule) = matching.first() else { continue };
            let mut names: Vec<String> = Vec::new();
            if is_for_any_name && !first_rule.resource_names.is_empty() {
                names =
                    matching.iter().flat_map(|rule| &rule.resource_names).map(ToString::to_string).collect();
                names.sort();
                names.dedup();
            }
            for subject in &binding.subjects {
                let Some(resolved) = resolve(subject, binding) else { continue };
                let path = BindingPath { binding, subject, role }.describe();
                allowed.push(AllowedSubject { subject: resolved, path, names: names.clone() });
            }
        }
        allowed.sort_by(|a, b| {
            let by_subject = sort_key(&a.subject).cmp(&sort_key(&b.subject));
            by_subject.then_with(|| a.path.cmp(&b.path)).then_with(|| a.names.cmp(&b.names))
        });
        allowed.dedup();
        allowed
    }

    /// Returns the object names for which the user is allowed the request, which has no name.
    /// None means all objects; an empty list means no object.
    pub fn names_allowed(&self, user: &UserInfo, request: &Attributes) -> Option<Vec<String>> {
        let namespace = if request.resource_request { request.namespace.as_str() } else { "" };
        let rules = self.rules_of(user, namespace, RulesLimit::NONE).rules;
        if rules.iter().any(|rule| rule.allows(request)) {
            return None;
        }
        let named = rules.iter().filter(|rule| request.resource_request && rule.allows_any_name(request));
        let mut names: Vec<String> =
            named.flat_map(|rule| &rule.resource_names).map(ToString::to_string).collect();
        names.sort();
        names.dedup();
        Some(names)
    }

    /// Returns the effective rules of all existing roles.
    pub fn rules(&self) -> impl Iterator<Item = &PolicyRule> {
        let roles = self.roles.iter().flatten().filter_map(|role| role.body.as_deref());
        roles.flat_map(|body| body.effective_rules.iter().map(|entry| &*entry.rule))
    }

    /// Returns the subjects of all bindings that can match a user, each once, sorted by kind, namespace and
    /// name.
    pub fn subjects(&self) -> Vec<Subject> {
        let bindings = self.bindings.iter().flatten();
        let mut subjects: Vec<Subject> = bindings
            .flat_map(|binding| binding.subjects.iter().filter_map(move |subject| resolve(subject, binding)))
            .collect();
        subjects.sort_by(|a, b| sort_key(a).cmp(&sort_key(b)));
        subjects.dedup();
        subjects
    }
}

/// Returns the kind, namespace and name, by which lists of subjects are sorted.
fn sort_key(subject: &Subject) -> (SubjectKind, &str, &str) {
    (subject.kind, &subject.namespace, &subject.name)
}

/// Returns the subject with the effective namespace of its service account; None if no user can match.
fn resolve(subject: &Subject, binding: &Binding) -> Option<Subject> {
    match subject.kind {
        SubjectKind::User | SubjectKind::Group => {
            Some(Subject { namespace: Box::default(), ..subject.clone() })
        }
        SubjectKind::ServiceAccount => {
            let namespace = subject.account_namespace(&binding.namespace)?.into();
            Some(Subject { namespace, ..subject.clone() })
        }
    }
}
