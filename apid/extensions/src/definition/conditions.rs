//! Accepted names and conditions of a definition, as pure functions.
//!
//! # Contract
//!
//! A background task calls these functions and writes their results to the status:
//!
//! 1. [`accept_names`] with the names that other definitions of the group hold ([`NamesInUse`]) returns the
//!    accepted names and the conditions `NamesAccepted` and `Established` (still false);
//! 2. [`non_structural_schema`] and [`approval_policy`] return further conditions, if they apply;
//! 3. when routes, discovery and OpenAPI serve the kind, [`established`] returns the true condition;
//! 4. while objects of a deleted definition are deleted, [`terminating`] returns the condition.
//!
//! [`set_condition`] writes a condition. It changes `lastTransitionTime` only if the status changes.

use std::collections::BTreeSet;

use apimachinery::field::{FieldErrors, FieldPath, aggregate, quote};
use apimachinery::names::Names;
use apimachinery::object::{Map, Object, Value};
use serde_json::json;

use super::approval::{Approval, approval};
use super::conversion::Conversion;
use super::props::Props;
use super::spec::Spec;
use super::structure::{find_unsupported, validate_structure};

/// Condition type: the kind is served.
pub const ESTABLISHED: &str = "Established";
/// Condition type: no name of the kind conflicts with other kinds.
pub const NAMES_ACCEPTED: &str = "NamesAccepted";
/// Condition type: a schema violates the rules of structural schemas.
pub const NON_STRUCTURAL_SCHEMA: &str = "NonStructuralSchema";
/// Condition type: a definition in a protected group is approved.
pub const APPROVAL_POLICY: &str = "KubernetesAPIApprovalPolicyConformant";
/// Condition type: the definition is deleted, and its objects are being deleted.
pub const TERMINATING: &str = "Terminating";

/// Condition type: false while an OpenAPI document with the kind is too large to be built. Absent otherwise.
pub const OPENAPI_PUBLISHED: &str = "OpenAPIPublished";

/// A condition without `lastTransitionTime`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Type of the condition.
    pub condition: &'static str,
    /// `True`, `False` or `Unknown`.
    pub status: &'static str,
    /// Reason in CamelCase.
    pub reason: String,
    /// Message for people.
    pub message: String,
}

impl Condition {
    fn new(condition: &'static str, status: &'static str, reason: &str, message: &str) -> Self {
        Condition { condition, status, reason: reason.to_owned(), message: message.to_owned() }
    }

    /// Whether a stored condition is equal, except for its time.
    fn is_equal(&self, stored: &Value) -> bool {
        let text = |field: &str| stored.get(field).and_then(Value::as_str).unwrap_or("");
        text("type") == self.condition
            && text("status") == self.status
            && text("reason") == self.reason
            && text("message") == self.message
    }
}

/// Names that the definitions of one group hold in `status.acceptedNames`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamesInUse {
    resources: BTreeSet<String>,
    kinds: BTreeSet<String>,
    /// Names of built-in resources, which no definition may have.
    built_in_resources: BTreeSet<String>,
    /// Names of built-in kinds, which no definition may have.
    built_in_kinds: BTreeSet<String>,
}

impl NamesInUse {
    /// Adds the names of a built-in kind of the group: `resources` are plural and singular names and short names,
    /// `kinds` are those of the kind and its list.
    pub fn add_built_in<'a>(
        &mut self,
        resources: impl IntoIterator<Item = &'a str>,
        kinds: impl IntoIterator<Item = &'a str>,
    ) {
        self.built_in_resources.extend(resources.into_iter().map(str::to_owned));
        self.built_in_kinds.extend(kinds.into_iter().map(str::to_owned));
    }

    /// Whether a definition requests the resource or the kind of a built-in kind.
    pub fn has_built_in(&self, definition: &Object) -> bool {
        requested_names(definition).is_some_and(|names| {
            self.built_in_resources.contains(names.text("plural"))
                || self.built_in_kinds.contains(names.text("kind"))
        })
    }

    /// Adds the accepted names of a definition. The caller must add every definition of one group, including
    /// the definition that it passes to [`accept_names`].
    pub fn add(&mut self, definition: &Object) {
        let Some(names) = accepted_names(definition) else { return };
        let resources = [names.text("plural"), names.text("singular")];
        self.resources.extend(resources.into_iter().chain(texts(names, "shortNames")).map(str::to_owned));
        self.kinds.extend([names.text("kind"), names.text("listKind")].map(str::to_owned));
    }
}

/// The result of [`accept_names`].
#[derive(Clone, Debug, PartialEq)]
pub struct AcceptedNames {
    /// The value of `status.acceptedNames`.
    pub names: Value,
    /// Condition `NamesAccepted`.
    pub names_accepted: Condition,
    /// Condition `Established`; None if the stored condition stays.
    pub established: Option<Condition>,
}

/// Whether the accepted names differ from the requested names; then [`accept_names`] must run.
pub fn has_pending_names(definition: &Object) -> bool {
    requested_names(definition).map(nonempty_fields) != accepted_names(definition).map(nonempty_fields)
}

/// Computes the accepted names of a definition. A requested name conflicts if it is in `in_use`, except an
/// accepted name of the same field. A short name may also equal the accepted plural or singular name. A name of a
/// built-in kind always conflicts, and a definition with such a resource or kind is not established any more.
pub fn accept_names(definition: &Object, in_use: &NamesInUse) -> AcceptedNames {
    let empty = Map::new();
    let requested = requested_names(definition).unwrap_or(Props(&empty));
    let accepted = accepted_names(definition).unwrap_or(Props(&empty));
    let name_conflict = |field: &str, used: &BTreeSet<String>, built_in: &BTreeSet<String>| {
        let name = requested.text(field);
        let is_in_use = built_in.contains(name) || name != accepted.text(field) && used.contains(name);
        is_in_use.then(|| already_in_use(name))
    };
    let resource_conflict = |field: &str| name_conflict(field, &in_use.resources, &in_use.built_in_resources);
    let kind_conflict = |field: &str| name_conflict(field, &in_use.kinds, &in_use.built_in_kinds);
    let decisions = [
        ("plural", "PluralConflict", resource_conflict("plural")),
        ("singular", "SingularConflict", resource_conflict("singular")),
        ("shortNames", "ShortNamesConflict", short_name_conflict(requested, accepted, in_use)),
        ("kind", "KindConflict", kind_conflict("kind")),
        ("listKind", "ListKindConflict", kind_conflict("listKind")),
        ("categories", "", None),
    ];
    let mut names = accepted.0.clone();
    // The condition shows the last conflict.
    let mut conflict = None;
    for (field, reason, message) in decisions {
        match message {
            Some(message) => conflict = Some((reason, message)),
            None => copy_field(requested.0, &mut names, field),
        }
    }
    // `status.acceptedNames` always has these two fields.
    for field in ["plural", "kind"] {
        names.entry(field).or_insert_with(|| "".into());
    }
    let names_accepted = match &conflict {
        None => Condition::new(NAMES_ACCEPTED, "True", "NoConflicts", "no conflicts found"),
        Some((reason, message)) => Condition::new(NAMES_ACCEPTED, "False", reason, message),
    };
    let established = match in_use.has_built_in(definition) {
        true => Some(not_accepted()),
        false => established_after_names(definition, conflict.is_none()),
    };
    AcceptedNames { names: Value::Object(names), names_accepted, established }
}

/// The condition `Established` after a decision about the names; None if the stored condition stays.
fn established_after_names(definition: &Object, are_accepted: bool) -> Option<Condition> {
    if is_established(definition) {
        return None;
    }
    if are_accepted {
        let message = "the initial names have been accepted";
        return Some(Condition::new(ESTABLISHED, "False", "Installing", message));
    }
    find_condition(definition, ESTABLISHED).is_none().then(not_accepted)
}

fn not_accepted() -> Condition {
    Condition::new(ESTABLISHED, "False", "NotAccepted", "not all names are accepted")
}

/// The condition `Established` of a definition whose names are accepted and whose kind is served.
/// An invalid certificate of the conversion webhook prevents the condition. None if the condition must not
/// change.
pub fn established(definition: &Object) -> Option<Condition> {
    if !is_condition_true(definition, NAMES_ACCEPTED) || is_established(definition) {
        return None;
    }
    let conversion = Conversion::from_spec(Spec::new(definition).fields);
    if conversion.is_some_and(|conversion| conversion.has_invalid_bundle()) {
        let message = "The conversion webhook CABundle is invalid";
        return Some(Condition::new(ESTABLISHED, "False", "InvalidCABundle", message));
    }
    let message = "the initial names have been accepted";
    Some(Condition::new(ESTABLISHED, "True", "InitialNamesAccepted", message))
}

/// The condition `NonStructuralSchema`; None if all schemas are structural.
/// Only definitions of older releases have other schemas.
pub fn non_structural_schema(definition: &Object, names: &Names) -> Option<Condition> {
    let versions = definition.at(&["spec", "versions"]).and_then(Value::as_array)?;
    let path = FieldPath::new("spec").child("versions");
    let mut errors = FieldErrors::new();
    for (index, version) in versions.iter().enumerate() {
        let schema = version.get("schema").and_then(|validation| validation.get("openAPIV3Schema"));
        let Some(schema) = schema.and_then(Props::from_value) else { continue };
        if let Some(reason) = find_unsupported(schema, names) {
            let version = version.get("name").and_then(Value::as_str).unwrap_or("");
            let message = format!("failed to check validation schema for version {version}: {reason}");
            return Some(Condition::new(NON_STRUCTURAL_SCHEMA, "Unknown", "StructuralError", &message));
        }
        let path = path.index(index).child("schema").child("openAPIV3Schema");
        errors.extend(validate_structure(schema, names, &path));
    }
    let mut messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
    messages.dedup();
    let condition = || Condition::new(NON_STRUCTURAL_SCHEMA, "True", "Violations", &aggregate(&messages));
    (!messages.is_empty()).then(condition)
}

/// The condition `KubernetesAPIApprovalPolicyConformant`; None outside protected groups.
pub fn approval_policy(definition: &Object, names: &Names) -> Option<Condition> {
    let group = definition.str_at(&["spec", "group"]).unwrap_or("");
    if !names.is_protected_group(group) {
        return None;
    }
    let (state, message) = approval(definition, names);
    let (status, reason) = match state {
        Approval::Invalid => ("False", "InvalidAnnotation"),
        Approval::Missing => ("False", "MissingAnnotation"),
        Approval::Approved => ("True", "ApprovedAnnotation"),
        Approval::Bypassed => ("False", "UnapprovedAnnotation"),
    };
    Some(Condition::new(APPROVAL_POLICY, status, reason, &message))
}

/// State of the deletion of the objects of a deleted definition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// The definition is marked, and the deletion of its objects has not begun.
    Pending,
    /// Objects are being deleted.
    InProgress,
    /// The kind was never served, so that no objects exist.
    NeverEstablished,
    /// A step failed; the text names the step and the reason.
    Failed(String),
    /// No objects remain.
    Completed,
}

/// The condition `Terminating`.
pub fn terminating(deletion: &Deletion) -> Condition {
    let (status, reason, message) = match deletion {
        Deletion::Pending => (
            "True",
            "InstanceDeletionPending",
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        ),
        Deletion::InProgress => {
            ("True", "InstanceDeletionInProgress", "CustomResource deletion is in progress")
        }
        Deletion::NeverEstablished => ("False", "NeverEstablished", "resource was never established"),
        Deletion::Failed(message) => ("True", "InstanceDeletionFailed", message.as_str()),
        Deletion::Completed => ("False", "InstanceDeletionCompleted", "removed all instances"),
    };
    Condition::new(TERMINATING, status, reason, message)
}

/// The condition `OpenAPIPublished` of a definition whose kinds are in OpenAPI documents above `max` bytes.
/// `paths` are the paths of these documents.
pub fn openapi_not_published(paths: &[String], max: usize) -> Condition {
    let message = format!(
        "{} would exceed {} MiB and return 503: too many definitions or too large schemas",
        paths.join(", "),
        max >> 20
    );
    Condition::new(OPENAPI_PUBLISHED, "False", "DocumentTooLarge", &message)
}

/// Whether the definition has a condition of a type.
pub fn has_condition(definition: &Object, condition: &str) -> bool {
    find_condition(definition, condition).is_some()
}

/// Finalizer that keeps a definition until all its objects are deleted.
pub fn cleanup_finalizer(names: &Names) -> String {
    format!("customresourcecleanup.{}", names.group("apiextensions"))
}

/// Writes a condition. Returns whether the definition changed.
/// `now` is the time in the format of the API; it replaces the stored time only if the status changes.
pub fn set_condition(definition: &mut Object, condition: &Condition, now: &str) -> bool {
    let status = definition.part_mut("status");
    let conditions = status.entry("conditions").or_insert(Value::Null);
    if !conditions.is_array() {
        *conditions = Value::Array(Vec::new());
    }
    let Value::Array(conditions) = conditions else { return false };
    let Some(stored) = conditions.iter_mut().find(|stored| has_type(stored, condition.condition)) else {
        conditions.push(json!({
            "type": condition.condition,
            "status": condition.status,
            "lastTransitionTime": now,
            "reason": condition.reason,
            "message": condition.message,
        }));
        return true;
    };
    if condition.is_equal(stored) {
        return false;
    }
    if stored.get("status").and_then(Value::as_str) != Some(condition.status)
        || stored.get("lastTransitionTime").is_none_or(Value::is_null)
    {
        stored["lastTransitionTime"] = now.into();
    }
    stored["status"] = condition.status.into();
    stored["reason"] = condition.reason.as_str().into();
    stored["message"] = condition.message.as_str().into();
    true
}

/// Removes a condition. Returns whether the definition changed.
pub fn remove_condition(definition: &mut Object, condition: &str) -> bool {
    let status = definition.get_mut("status").and_then(Value::as_object_mut);
    let Some(Value::Array(conditions)) = status.and_then(|status| status.get_mut("conditions")) else {
        return false;
    };
    let count = conditions.len();
    conditions.retain(|stored| !has_type(stored, condition));
    conditions.len() != count
}

/// Whether a condition is true.
pub fn is_condition_true(definition: &Object, condition: &str) -> bool {
    find_condition(definition, condition).and_then(|stored| stored.get("status")?.as_str()) == Some("True")
}

/// Whether the kind of the definition is established.
pub fn is_established(definition: &Object) -> bool {
    is_condition_true(definition, ESTABLISHED)
}

/// Sets the condition `Terminating` of a definition whose deletion begins, at the time of its deletion.
pub fn begin_deletion(definition: &mut Object) {
    if find_condition(definition, TERMINATING).is_none() {
        let now = definition.meta_str("deletionTimestamp").to_owned();
        set_condition(definition, &terminating(&Deletion::Pending), &now);
    }
}

fn find_condition<'a>(definition: &'a Object, condition: &str) -> Option<&'a Value> {
    let conditions = definition.at(&["status", "conditions"])?.as_array()?;
    conditions.iter().find(|stored| has_type(stored, condition))
}

fn has_type(stored: &Value, condition: &str) -> bool {
    stored.get("type").and_then(Value::as_str) == Some(condition)
}

fn requested_names(definition: &Object) -> Option<Props<'_>> {
    definition.at(&["spec", "names"]).and_then(Props::from_value)
}

fn accepted_names(definition: &Object) -> Option<Props<'_>> {
    definition.at(&["status", "acceptedNames"]).and_then(Props::from_value)
}

fn texts<'a>(names: Props<'a>, field: &str) -> impl Iterator<Item = &'a str> {
    names.list(field).iter().filter_map(Value::as_str)
}

fn copy_field(from: &Map<String, Value>, to: &mut Map<String, Value>, field: &str) {
    match from.get(field) {
        Some(value) => drop(to.insert(field.to_owned(), value.clone())),
        None => drop(to.remove(field)),
    }
}

fn already_in_use(name: &str) -> String {
    format!("{} is already in use", quote(name))
}

/// The message about requested short names that are in use, except the accepted names of this definition.
fn short_name_conflict(requested: Props<'_>, accepted: Props<'_>, in_use: &NamesInUse) -> Option<String> {
    let held_names: BTreeSet<&str> = texts(accepted, "shortNames")
        .chain(["plural", "singular"].into_iter().filter_map(|field| accepted.get(field)?.as_str()))
        .collect();
    let mut messages: Vec<String> = texts(requested, "shortNames")
        .filter(|name| {
            let is_in_use = !held_names.contains(name) && in_use.resources.contains(*name);
            is_in_use || in_use.built_in_resources.contains(*name)
        })
        .map(already_in_use)
        .collect();
    messages.dedup();
    (!messages.is_empty()).then(|| aggregate(&messages))
}

/// Fields that are neither null nor empty.
fn nonempty_fields(names: Props<'_>) -> Vec<(&String, &Value)> {
    let is_empty = |value: &Value| match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    };
    names.0.iter().filter(|(_, value)| !is_empty(value)).collect()
}

#[cfg(test)]
#[path = "tests/conditions.rs"]
mod tests;
