//! The RBAC policy of a server, read over the API.
//!
//! # Contract
//!
//! The rules of an aggregated ClusterRole are those in its field `rules`. A subject of an unknown kind grants
//! nothing, as on the server. The kubeconfig user needs the permission to list all roles and bindings.

use apimachinery::names::{Names, Preset};
use serde_json::Value;

use super::InspectError;
use super::connection::Connection;
use crate::rules::rule::{StringList, string_list};
use crate::rules::{BindingSpec, Meta, Policy, PolicyRule, RoleKind, RoleSpec, Subject, SubjectKind};

/// Reads all roles and bindings.
pub(super) async fn read(connection: &Connection) -> Result<Policy, InspectError> {
    let group = connection.group_name("rbac.authorization").await?;
    let mut objects = Vec::new();
    for resource in ["clusterroles", "roles", "clusterrolebindings", "rolebindings"] {
        let items = connection.list(&format!("/apis/{group}/v1/{resource}")).await?;
        objects.extend(items.into_iter().map(|item| (resource, item)));
    }
    policy_of(&objects)
}

/// Builds a policy from objects, each with its resource.
pub(super) fn policy_of(objects: &[(&str, Value)]) -> Result<Policy, InspectError> {
    // The names appear only in messages about missing roles, which no command prints.
    let names = Names::new(Preset::Kubernetes, "").map_err(|error| InspectError::new(error.to_string()))?;
    let mut policy = Policy::new(&names);
    for (resource, object) in objects {
        let namespace = text(object, "/metadata/namespace");
        let name = text(object, "/metadata/name");
        match *resource {
            "clusterroles" => policy.put_role(RoleKind::ClusterRole, "", name, read_role(object)),
            "roles" => policy.put_role(RoleKind::Role, namespace, name, read_role(object)),
            _ => {
                if let Some(binding) = read_binding(object) {
                    policy.put_binding(namespace, name, binding);
                }
            }
        }
    }
    Ok(policy)
}

fn text<'v>(object: &'v Value, path: &str) -> &'v str {
    object.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn items<'v>(object: &'v Value, field: &str) -> impl Iterator<Item = &'v Value> {
    object.get(field).and_then(Value::as_array).into_iter().flatten()
}

fn read_role(object: &Value) -> RoleSpec {
    let words = |rule: &Value, field: &str| -> StringList {
        string_list(&items(rule, field).filter_map(Value::as_str).collect::<Vec<_>>())
    };
    let rules = items(object, "rules").map(|rule| PolicyRule {
        verbs: words(rule, "verbs"),
        api_groups: words(rule, "apiGroups"),
        resources: words(rule, "resources"),
        resource_names: words(rule, "resourceNames"),
        non_resource_urls: words(rule, "nonResourceURLs"),
    });
    RoleSpec { rules: rules.collect(), ..RoleSpec::default() }
}

fn read_binding(object: &Value) -> Option<BindingSpec> {
    let subjects = items(object, "subjects").filter_map(|subject| {
        Some(Subject {
            kind: SubjectKind::parse(text(subject, "/kind"))?,
            name: text(subject, "/name").into(),
            namespace: text(subject, "/namespace").into(),
        })
    });
    Some(BindingSpec {
        meta: Meta::default(),
        role_kind: RoleKind::parse(text(object, "/roleRef/kind"))?,
        role_name: text(object, "/roleRef/name").to_owned(),
        subjects: subjects.collect(),
    })
}
