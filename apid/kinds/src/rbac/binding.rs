//! Rules of RoleBindings and ClusterRoleBindings: subjects and role references (requirements A-RBAC-25 to
//! 42).

use apimachinery::clock::Clock;
use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::{Map, Object};
use serde_json::{Value, json};

use super::GROUP;
use crate::table::{AGE, NAME};
use crate::{Column, Context, format, labels};

/// Sets default API groups of subjects and of the role reference.
/// The default is this group, and the core group for service accounts.
pub(super) fn default(object: &mut Object, ctx: &Context<'_>) {
    let group = ctx.names.group(GROUP);
    if let Some(Value::Object(role)) = object.get_mut("roleRef") {
        default_group(role, &group);
    }
    if let Some(Value::Array(subjects)) = object.get_mut("subjects") {
        for subject in subjects.iter_mut().filter_map(Value::as_object_mut) {
            if matches!(text(subject, "kind"), "User" | "Group") {
                default_group(subject, &group);
            }
        }
    }
}

fn default_group(reference: &mut Map<String, Value>, group: &str) {
    if text(reference, "apiGroup").is_empty() {
        reference.insert("apiGroup".to_owned(), group.into());
    }
}

/// Validates a binding. `roles` are the kinds that the role reference may have.
/// In a `namespaced` binding, a service account without a namespace is in the namespace of the binding.
pub(super) fn validate(object: &Object, roles: &[&str], namespaced: bool, ctx: &Context<'_>) -> FieldErrors {
    let group = ctx.names.group(GROUP);
    let empty = Map::new();
    let mut errors = validate_role(role_ref(object).unwrap_or(&empty), roles, &group);
    let subjects = object.get("subjects").and_then(Value::as_array);
    for (i, subject) in subjects.into_iter().flatten().filter_map(Value::as_object).enumerate() {
        errors.extend(validate_subject(subject, namespaced, &group, &FieldPath::new("subjects").index(i)));
    }
    errors
}

/// Validates that the role reference is unchanged, so existing subjects do not gain another role.
pub(super) fn validate_update(new: &Object, old: &Object) -> FieldErrors {
    if role_ref(new) == role_ref(old) {
        return FieldErrors::new();
    }
    let part = |field: &str| Value::from(role_ref(new).map_or("", |role| text(role, field)));
    let role_text =
        format!("{{\"APIGroup\":{},\"Kind\":{},\"Name\":{}}}", part("apiGroup"), part("kind"), part("name"));
    FieldError::invalid_json(&FieldPath::new("roleRef"), &role_text, "cannot change roleRef").into()
}

fn validate_role(role: &Map<String, Value>, roles: &[&str], group: &str) -> FieldErrors {
    let path = FieldPath::new("roleRef");
    let mut errors = FieldErrors::new();
    if text(role, "apiGroup") != group {
        errors.push(FieldError::not_supported(&path.child("apiGroup"), text(role, "apiGroup"), &[group]));
    }
    if !roles.contains(&text(role, "kind")) {
        errors.push(FieldError::not_supported(&path.child("kind"), text(role, "kind"), roles));
    }
    match text(role, "name") {
        "" => errors.push(FieldError::required(&path.child("name"), "")),
        name => errors.extend(labels::invalid(&path.child("name"), name, format::path_segment(name, false))),
    }
    errors
}

fn validate_subject(
    subject: &Map<String, Value>,
    namespaced: bool,
    group: &str,
    path: &FieldPath,
) -> FieldErrors {
    let name = text(subject, "name");
    let api_group = text(subject, "apiGroup");
    let has_namespace = !text(subject, "namespace").is_empty();
    let mut errors = FieldErrors::new();
    if name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    }
    match text(subject, "kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                errors.extend(labels::invalid(&path.child("name"), name, format::subdomain(name)));
            }
            if !api_group.is_empty() {
                errors.push(FieldError::not_supported(&path.child("apiGroup"), api_group, &[""]));
            }
            if !namespaced && !has_namespace {
                errors.push(FieldError::required(&path.child("namespace"), ""));
            }
        }
        "User" | "Group" => {
            if api_group != group {
                errors.push(FieldError::not_supported(&path.child("apiGroup"), api_group, &[group]));
            }
        }
        kind => {
            let supported = ["ServiceAccount", "User", "Group"];
            errors.push(FieldError::not_supported(&path.child("kind"), kind, &supported));
        }
    }
    errors
}

fn role_ref(object: &Object) -> Option<&Map<String, Value>> {
    object.get("roleRef").and_then(Value::as_object)
}

fn text<'a>(map: &'a Map<String, Value>, field: &str) -> &'a str {
    map.get(field).and_then(Value::as_str).unwrap_or("")
}

pub(super) const COLUMNS: &[Column] = &[
    NAME,
    Column::text("Role", "Granted role."),
    AGE,
    Column::wide("Users", "Users with the role."),
    Column::wide("Groups", "Groups with the role."),
    Column::wide("ServiceAccounts", "Service accounts with the role."),
];

pub(super) fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let role = role_ref(object).map_or(String::new(), |r| format!("{}/{}", text(r, "kind"), text(r, "name")));
    let subjects = |kind: &str| {
        let all = object.get("subjects").and_then(Value::as_array).into_iter().flatten();
        let names =
            all.filter_map(Value::as_object).filter(|s| text(s, "kind") == kind).map(|s| match kind {
                "ServiceAccount" => format!("{}/{}", text(s, "namespace"), text(s, "name")),
                _ => text(s, "name").to_owned(),
            });
        json!(names.collect::<Vec<_>>().join(", "))
    };
    vec![json!(role), subjects("User"), subjects("Group"), subjects("ServiceAccount")]
}
