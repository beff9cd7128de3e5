//! Reviews and RBAC kinds before `v1`.

use apimachinery::names::Names;
use apimachinery::object::{Object, Value};

use super::fields::{Fields, items, part, rename};
use super::{FieldChanges, Notes};

const RBAC: &str = "rbac.authorization";

pub(super) const VERSIONS: &[FieldChanges] = &[
    review("SubjectAccessReview"),
    review("LocalSubjectAccessReview"),
    FieldChanges::new((RBAC, "v1alpha1", "RoleBinding"), upgrade_binding, downgrade_binding),
    FieldChanges::new((RBAC, "v1alpha1", "ClusterRoleBinding"), upgrade_binding, downgrade_binding),
];

const fn review(kind: &'static str) -> FieldChanges {
    FieldChanges::new(
        ("authorization", "v1beta1", kind),
        |object, _, _| rename_groups(object, "group", "groups"),
        |object, _| rename_groups(object, "groups", "group"),
    )
}

fn rename_groups(object: &mut Object, from: &str, to: &str) {
    if let Some(spec) = part(object, "spec") {
        rename(spec, from, to);
    }
}

fn text<'a>(fields: &'a Fields, field: &str) -> &'a str {
    fields.get(field).and_then(Value::as_str).unwrap_or_default()
}

/// Replaces the `apiVersion` of subjects with a group. The user `*` becomes the group of all authenticated users.
fn upgrade_binding(object: &mut Object, names: &Names, notes: &mut Notes) {
    let mut is_wildcard = false;
    for subject in items(&mut object.0, "subjects") {
        let api_version = subject.remove("apiVersion");
        let group = match text(subject, "kind") {
            "ServiceAccount" => String::new(),
            "User" | "Group" => names.group(RBAC),
            _ => {
                let api_version = api_version.as_ref().and_then(Value::as_str).unwrap_or_default();
                api_version.split_once('/').map_or_else(String::new, |(group, _)| group.to_owned())
            }
        };
        subject.insert("apiGroup".to_owned(), group.into());
        if text(subject, "kind") == "User" && text(subject, "name") == "*" {
            subject.insert("kind".to_owned(), "Group".into());
            subject.insert("name".to_owned(), "system:authenticated".into());
            is_wildcard = true;
        }
    }
    if is_wildcard {
        notes.add("subjects", "the user `*` of v1alpha1 is the group `system:authenticated` in v1");
    }
}

fn downgrade_binding(object: &mut Object, names: &Names) {
    for subject in items(&mut object.0, "subjects") {
        let group = subject.remove("apiGroup");
        let group = group.as_ref().and_then(Value::as_str).unwrap_or_default();
        let api_version = match text(subject, "kind") {
            "ServiceAccount" if group.is_empty() => "v1".to_owned(),
            "User" | "Group" if group == names.group(RBAC) => format!("{group}/v1alpha1"),
            _ if group.is_empty() => String::new(),
            _ => format!("{group}/"),
        };
        if !api_version.is_empty() {
            subject.insert("apiVersion".to_owned(), api_version.into());
        }
    }
}
