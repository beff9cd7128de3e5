//! The smallest rule and binding that would allow a denied request.
//!
//! # Contract
//!
//! [`SuggestedGrant::for_request`] suggests a Role with a RoleBinding for a request in a namespace, else a
//! ClusterRole with a ClusterRoleBinding. Applied to an empty policy, the objects allow the smallest set of
//! requests that contains this request. The set can contain more requests, because RBAC cannot limit a rule
//! to requests without a name, and a cluster-wide rule applies in each namespace. A request with a field
//! `*` stands for all requests that a rule with this `*` allows.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use apimachinery::attributes::Attributes;
use apimachinery::codec::yaml;
use apimachinery::names::Names;
use apimachinery::user::{UserInfo, service_account};
use serde_json::{Value, json};

use super::nearest::resource_path;
use super::policy::{RoleKind, Subject, SubjectKind};
use super::reconcile::{rule_json, subject_json};
use super::rule::{PolicyRule, string_list};

/// The maximum number of characters of a verb or resource in the name of a suggested object.
const MAX_NAME_PART: usize = 40;

/// A role with one rule, and its binding to one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuggestedGrant {
    /// The name of the role and of the binding.
    pub name: String,
    /// The namespace of role and binding; empty for a ClusterRole and a ClusterRoleBinding.
    pub namespace: String,
    /// The only rule of the role.
    pub rule: PolicyRule,
    /// The subject of the binding.
    pub subject: Subject,
}

impl SuggestedGrant {
    /// Suggests a grant for a request; None if the user has neither a name nor a group.
    pub fn for_request(user: &UserInfo, request: &Attributes) -> Option<Self> {
        let subject = subject(user)?;
        let mut rule = PolicyRule { verbs: string_list(&[&request.verb]), ..PolicyRule::default() };
        if request.resource_request {
            rule.api_groups = string_list(&[&request.group]);
            rule.resources = string_list(&[resource_path(request)]);
            if !request.name.is_empty() {
                rule.resource_names = string_list(&[&request.name]);
            }
        } else {
            rule.non_resource_urls = string_list(&[&request.path]);
        }
        let namespace = if request.resource_request { request.namespace.clone() } else { String::new() };
        let name = object_name(&subject, request, &rule);
        Some(SuggestedGrant { name, namespace, rule, subject })
    }

    /// Returns the kind of the role.
    pub fn role_kind(&self) -> RoleKind {
        if self.namespace.is_empty() { RoleKind::ClusterRole } else { RoleKind::Role }
    }

    /// Returns the role and the binding as YAML documents for `kubectl apply`.
    pub fn manifest(&self, names: &Names) -> String {
        let group = names.group("rbac.authorization");
        let kind = self.role_kind().as_str();
        let metadata = match self.namespace.as_str() {
            "" => json!({"name": self.name}),
            namespace => json!({"name": self.name, "namespace": namespace}),
        };
        let subject = subject_json(&self.subject, &group);
        let api_version = format!("{group}/v1");
        let role = json!({
            "apiVersion": api_version, "kind": kind, "metadata": metadata, "rules": [rule_json(&self.rule)],
        });
        let binding = json!({
            "apiVersion": api_version, "kind": format!("{kind}Binding"), "metadata": metadata,
            "roleRef": {"apiGroup": group, "kind": kind, "name": self.name}, "subjects": [subject],
        });
        let document = |value: &Value| String::from_utf8_lossy(&yaml::encode(value)).into_owned();
        format!("{}---\n{}", document(&role), document(&binding))
    }
}

/// Returns the narrowest subject that includes the user: the service account, the user, or the first group.
fn subject(user: &UserInfo) -> Option<Subject> {
    if let Some((namespace, name)) = service_account(&user.name) {
        return Some(Subject {
            kind: SubjectKind::ServiceAccount,
            name: name.into(),
            namespace: namespace.into(),
        });
    }
    let (kind, name) = match user.name.as_str() {
        "" => (SubjectKind::Group, user.groups.first()?.as_str()),
        name => (SubjectKind::User, name),
    };
    Some(Subject { kind, name: name.into(), namespace: Box::default() })
}

/// Returns a name with a hash of the whole grant, so that applying another suggestion replaces no object.
fn object_name(subject: &Subject, request: &Attributes, rule: &PolicyRule) -> String {
    let mut hasher = DefaultHasher::new();
    (subject, rule, &request.namespace).hash(&mut hasher);
    let target = if request.resource_request { &request.resource } else { "path" };
    let name_part = |text: &str| -> String {
        let characters =
            text.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' });
        characters.take(MAX_NAME_PART).collect()
    };
    format!("allow-{}-{}-{:08x}", name_part(&request.verb), name_part(target), hasher.finish() & 0xffff_ffff)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::tests::names;

    #[test]
    fn suggested_grant_is_written_as_role_and_binding() {
        let user = UserInfo { name: "alice".into(), groups: vec!["team".into()], ..UserInfo::default() };
        let request = Attributes {
            verb: "delete".into(),
            resource_request: true,
            group: "apps".into(),
            resource: "deployments".into(),
            namespace: "team-a".into(),
            name: "web".into(),
            ..Attributes::default()
        };
        let grant = SuggestedGrant::for_request(&user, &request).unwrap();
        let manifest = grant.manifest(&names());
        let (role, binding) = manifest.split_once("---\n").unwrap();
        for (text, lines) in [
            (role, ["kind: Role", "namespace: team-a", "- delete", "- deployments", "- web", "- apps"]),
            (
                binding,
                [
                    "kind: RoleBinding",
                    "namespace: team-a",
                    "name: alice",
                    "kind: User",
                    "roleRef:",
                    "subjects:",
                ],
            ),
        ] {
            for line in lines {
                assert!(text.contains(line), "{line}\n{text}");
            }
        }
        let cluster =
            SuggestedGrant::for_request(&user, &Attributes { namespace: String::new(), ..request.clone() })
                .unwrap();
        assert!(cluster.manifest(&names()).contains("kind: ClusterRoleBinding"));
        assert_ne!(grant.name, cluster.name, "each grant has its own name");
    }

    #[test]
    fn suggested_subject_is_the_narrowest_that_includes_the_user() {
        let suggested_subject = |name: &str, groups: &[&str]| {
            let groups = groups.iter().map(|group| (*group).to_owned()).collect();
            let user = UserInfo { name: name.into(), groups, ..UserInfo::default() };
            let subject = subject(&user)?;
            Some(format!("{} {}/{}", subject.kind.as_str(), subject.namespace, subject.name))
        };
        assert_eq!(suggested_subject("alice", &["team"]).as_deref(), Some("User /alice"));
        assert_eq!(suggested_subject("", &["team", "ops"]).as_deref(), Some("Group /team"));
        assert_eq!(
            suggested_subject("system:serviceaccount:a:robot", &[]).as_deref(),
            Some("ServiceAccount a/robot")
        );
        assert_eq!(
            suggested_subject("system:serviceaccount:a", &[]).as_deref(),
            Some("User /system:serviceaccount:a")
        );
        for invalid in ["system:serviceaccount:a:b:c", "system:serviceaccount:a:b..c"] {
            assert_eq!(
                suggested_subject(invalid, &[]),
                Some(format!("User /{invalid}")),
                "no service account has this name"
            );
        }
        assert_eq!(suggested_subject("", &[]), None);
    }
}
