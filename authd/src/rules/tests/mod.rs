//! Tests of the RBAC policy, and functions that parse policies and requests from short texts.

mod aggregation;
mod decisions;
mod random;
mod reconcile;

use apimachinery::attributes::Attributes;
use apimachinery::names::{Names, Preset};
use apimachinery::user::UserInfo;

use super::rule::{PolicyRule, StringList, string_list};
use super::{BindingSpec, Meta, Policy, RoleKind, RoleSpec, Subject, SubjectKind};

/// Parses `verbs|groups|resources|names|paths`, each a comma-separated list, with `-` for the core group.
pub(crate) fn rule(text: &str) -> PolicyRule {
    let mut parts = text.split('|').map(|part| {
        let items = part.split(',').filter(|item| !item.is_empty());
        string_list(&items.map(|item| if item == "-" { "" } else { item }).collect::<Vec<_>>())
    });
    let mut next = || -> StringList { parts.next().unwrap_or_default() };
    PolicyRule {
        verbs: next(),
        api_groups: next(),
        resources: next(),
        resource_names: next(),
        non_resource_urls: next(),
    }
}

pub(crate) fn names() -> Names {
    Names::new(Preset::Kubernetes, "").unwrap()
}

/// Parses a subject: `U:alice`, `G:team`, `S:namespace/name` or `S:/name`.
fn subject(text: &str) -> Subject {
    let (kind, name) = text.split_once(':').unwrap();
    let (kind, namespace, name) = match kind {
        "U" => (SubjectKind::User, "", name),
        "G" => (SubjectKind::Group, "", name),
        _ => {
            let (namespace, name) = name.split_once('/').unwrap();
            (SubjectKind::ServiceAccount, namespace, name)
        }
    };
    Subject { kind, name: name.into(), namespace: namespace.into() }
}

fn role(rules: &[&str]) -> RoleSpec {
    RoleSpec { rules: rules.iter().map(|text| rule(text)).collect(), ..RoleSpec::default() }
}

fn role_with_labels(rules: &[&str], labels: &[(&str, &str)]) -> RoleSpec {
    let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
    RoleSpec { meta: Meta { labels, ..Meta::default() }, ..role(rules) }
}

/// Builds a binding of the role `ClusterRole/name` or `Role/name` to subjects.
fn binding(role: &str, subjects: &[&str]) -> BindingSpec {
    let (kind, name) = role.split_once('/').unwrap();
    BindingSpec {
        meta: Meta::default(),
        role_kind: RoleKind::parse(kind).unwrap(),
        role_name: name.to_owned(),
        subjects: subjects.iter().map(|text| subject(text)).collect(),
    }
}

fn user(name: &str, groups: &[&str]) -> UserInfo {
    UserInfo {
        name: name.into(),
        groups: groups.iter().map(|g| (*g).to_owned()).collect(),
        ..UserInfo::default()
    }
}

/// Parses `verb group/resource[/subresource] namespace/name`, with `-` for the core group, or `verb /path`.
fn request(text: &str) -> Attributes {
    let mut parts = text.split(' ');
    let verb = parts.next().unwrap().to_owned();
    let target = parts.next().unwrap();
    if target.starts_with('/') {
        return Attributes { verb, path: target.to_owned(), ..Attributes::default() };
    }
    let mut target = target.split('/');
    let group = target.next().filter(|g| *g != "-").unwrap_or_default().to_owned();
    let (namespace, name) = parts.next().unwrap_or("/").split_once('/').unwrap();
    Attributes {
        verb,
        resource_request: true,
        group,
        version: "v1".into(),
        resource: target.next().unwrap().to_owned(),
        subresource: target.next().unwrap_or_default().to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ..Attributes::default()
    }
}

fn policy() -> Policy {
    Policy::new(&names())
}
