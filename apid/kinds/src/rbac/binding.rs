//! Rules of RoleBindings and ClusterRoleBindings: subjects and role references (requirements A-RBAC-25 to
//! 42).

use apimachinery::clock::Clock;
use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::GROUP;
use crate::defaults::{fill_text, map_at, maps_in_list};
use crate::table::cell::PathReader as _;
use crate::table::{AGE, NAME};
use crate::validation::{Field, text};
use crate::{Column, Context, Strategy, format};

/// Rules of a kind of bindings.
pub(super) struct BindingRules {
    /// The kinds that the role reference may have.
    pub(super) roles: &'static [&'static str],
    /// Whether a service account without a namespace is in the namespace of the binding.
    pub(super) namespaced: bool,
}

impl Strategy for BindingRules {
    /// Sets default API groups of subjects and of the role reference.
    /// The default is this group, and the core group for service accounts.
    fn default(&self, object: &mut Object, ctx: &Context<'_>) {
        let group = ctx.names.group(GROUP);
        if let Some(role) = map_at(&mut object.0, "roleRef") {
            fill_text(role, "apiGroup", &group);
        }
        for subject in maps_in_list(&mut object.0, "subjects") {
            if subject.get("kind").is_some_and(|kind| kind == "User" || kind == "Group") {
                fill_text(subject, "apiGroup", &group);
            }
        }
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        let group = ctx.names.group(GROUP);
        let mut errors = FieldErrors::new();
        let role = Field::new(object.get("roleRef"), "roleRef");
        text::check_listed(&role.child("apiGroup"), &[&group], &mut errors);
        text::check_listed(&role.child("kind"), self.roles, &mut errors);
        text::require_format(&role.child("name"), |name| format::path_segment(name, false), &mut errors);
        for subject in Field::new(object.get("subjects"), "subjects").items() {
            validate_subject(&subject, self.namespaced, &group, &mut errors);
        }
        errors
    }

    /// Validates that the role reference is unchanged, so existing subjects do not gain another role.
    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        if new.get("roleRef") == old.get("roleRef") {
            return FieldErrors::new();
        }
        let part = |field: &str| Value::from(new.text(&format!("roleRef.{field}")));
        let role_text = format!(
            "{{\"APIGroup\":{},\"Kind\":{},\"Name\":{}}}",
            part("apiGroup"),
            part("kind"),
            part("name")
        );
        FieldError::invalid_json(&FieldPath::new("roleRef"), &role_text, "cannot change roleRef").into()
    }
}

fn validate_subject(subject: &Field<'_, '_>, namespaced: bool, group: &str, errors: &mut FieldErrors) {
    let (kind, name, api_group) = (subject.child("kind"), subject.child("name"), subject.child("apiGroup"));
    text::require(&name, errors);
    match kind.text() {
        "ServiceAccount" => {
            text::check_nonempty_format(&name, format::subdomain, errors);
            text::check_listed(&api_group, &[""], errors);
            if !namespaced {
                text::require(&subject.child("namespace"), errors);
            }
        }
        "User" | "Group" => text::check_listed(&api_group, &[group], errors),
        _ => text::check_listed(&kind, &["ServiceAccount", "User", "Group"], errors),
    }
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
    let role = object.find("roleRef");
    let role = role.map_or_else(String::new, |role| format!("{}/{}", role.text("kind"), role.text("name")));
    let subjects = |kind: &str| {
        let subjects = object.items("subjects").iter().filter(|subject| subject.text("kind") == kind);
        let names = subjects.map(|subject| match kind {
            "ServiceAccount" => format!("{}/{}", subject.text("namespace"), subject.text("name")),
            _ => subject.text("name").to_owned(),
        });
        json!(names.collect::<Vec<_>>().join(", "))
    };
    vec![json!(role), subjects("User"), subjects("Group"), subjects("ServiceAccount")]
}
