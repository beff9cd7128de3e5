//! Compares default policy with the stored objects (requirements A-DEF-1 to A-DEF-9).
//! The result is the list of required writes.
//!
//! # Contract
//!
//! Missing objects are created; missing rules, labels, selectors and subjects are added. Additions by users
//! stay. An object whose autoupdate annotation is `false` is not changed. A binding with a different
//! `roleRef` is deleted and recreated.
//! The result is empty if the stored objects are complete, so a second start writes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use apimachinery::attributes::{Operator, Requirement};
use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use bootstrap::DefaultPolicy;
use serde_json::{Map, json};

use super::covers::missing_rules;
use super::policy::{BindingSpec, Meta, Policy, RoleBody, RoleKind, RoleSpec, Subject, SubjectKind};
use super::rule::{PolicyRule, StringList};
use super::selector::Selector;

/// One write that default policy requires.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// The operation, with its body.
    pub operation: WriteOperation,
    /// The plural resource name in lower case, of the RBAC group.
    pub resource: &'static str,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// The name of the object.
    pub name: String,
}

impl Write {
    /// Whether both writes concern one object.
    pub fn same_object(&self, other: &Write) -> bool {
        (self.resource, &self.namespace, &self.name) == (other.resource, &other.namespace, &other.name)
    }
}

/// The operation of a write.
#[derive(Clone, Debug, PartialEq)]
pub enum WriteOperation {
    /// Creates this object.
    Create(Value),
    /// Applies this merge patch (RFC 7386).
    Patch(Value),
    /// Applies this configuration with server-side apply and force; the object exists.
    Apply(Value),
    /// Deletes the object on these preconditions; a later `Create` in the list has the same name.
    Delete(Value),
}

/// Returns the writes that restore default policy; empty if it is complete.
pub fn required_writes(policy: &Policy, defaults: &DefaultPolicy, names: &Names) -> Vec<Write> {
    let mut writes = Vec::new();
    for (kind, objects) in
        [(RoleKind::ClusterRole, &defaults.cluster_roles), (RoleKind::Role, &defaults.roles)]
    {
        for object in objects {
            let operation = match policy.role_body(kind, object.namespace(), object.name()) {
                None => Some(WriteOperation::Create(object.clone().into_value())),
                Some(stored) => {
                    repair_role(kind, stored, &role_spec(object, names)).map(WriteOperation::Patch)
                }
            };
            writes.extend(operation.map(|operation| new_write(operation, kind.resource(), object)));
        }
    }
    for (resource, objects) in
        [("clusterrolebindings", &defaults.cluster_role_bindings), ("rolebindings", &defaults.role_bindings)]
    {
        for object in objects {
            let operations = repair_binding(policy, object, names);
            writes.extend(operations.into_iter().map(|operation| new_write(operation, resource, object)));
        }
    }
    writes
}

/// Returns the operations that restore a default binding; empty if it is complete or protected.
fn repair_binding(policy: &Policy, object: &Object, names: &Names) -> Vec<WriteOperation> {
    let Some(expected) = binding_spec(object, names) else { return Vec::new() };
    let create = || WriteOperation::Create(object.clone().into_value());
    let Some(stored) = policy.binding(object.namespace(), object.name()) else { return vec![create()] };
    if stored.protected {
        return Vec::new();
    }
    if policy.role_of(stored) != Some((expected.role_kind, expected.role_name.as_str())) {
        let preconditions = json!({"resourceVersion": stored.revision.to_string()});
        return vec![WriteOperation::Delete(preconditions), create()];
    }
    let added: Vec<&Subject> =
        expected.subjects.iter().filter(|subject| !stored.subjects.contains(subject)).collect();
    if added.is_empty() {
        return Vec::new();
    }
    let group = names.group("rbac.authorization");
    let subjects = stored.subjects.iter().chain(added).map(|subject| subject_json(subject, &group));
    vec![WriteOperation::Patch(json!({"subjects": subjects.collect::<Vec<_>>()}))]
}

fn new_write(operation: WriteOperation, resource: &'static str, object: &Object) -> Write {
    Write { operation, resource, namespace: object.namespace().to_owned(), name: object.name().to_owned() }
}

/// Returns the merge patch that adds the missing parts to a stored role; None if nothing is missing.
fn repair_role(kind: RoleKind, stored: &RoleBody, expected: &RoleSpec) -> Option<Value> {
    if stored.meta.protected {
        return None;
    }
    let mut patch = Map::new();
    let labels = expected.meta.labels.iter().filter(|(key, _)| !stored.meta.labels.contains_key(*key));
    let labels: Map<String, Value> =
        labels.map(|(key, value)| (key.clone(), value.as_str().into())).collect();
    if kind == RoleKind::ClusterRole && !labels.is_empty() {
        patch.insert("metadata".into(), json!({"labels": labels}));
    }
    if expected.aggregation.is_none() || stored.aggregation.is_none() {
        let added = missing_rules(&stored.written_rules, &expected.rules).into_rules();
        if !added.is_empty() {
            let rules = stored.written_rules.iter().map(Arc::as_ref).chain(&added).map(rule_json);
            patch.insert("rules".into(), rules.collect());
        }
    }
    if let Some(selectors) = &expected.aggregation {
        let stored_selectors = stored.aggregation.as_deref().unwrap_or_default();
        let added: Vec<&Selector> =
            selectors.iter().filter(|selector| !stored_selectors.contains(selector)).collect();
        if stored.aggregation.is_none() || !added.is_empty() {
            let selectors: Vec<Value> = stored_selectors.iter().chain(added).map(selector_json).collect();
            patch.insert("aggregationRule".into(), json!({"clusterRoleSelectors": selectors}));
        }
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// Converts a role object to its policy form.
pub fn role_spec(object: &Object, names: &Names) -> RoleSpec {
    let rules = items(object.get("rules")).map(rule_of).collect();
    let aggregation = object
        .get("aggregationRule")
        .filter(|rule| !rule.is_null())
        .map(|rule| items(rule.get("clusterRoleSelectors")).map(selector_of).collect());
    RoleSpec { meta: meta_of(object, names), rules, aggregation }
}

/// Converts a binding object to its policy form; None if the kind of its role is unknown.
pub fn binding_spec(object: &Object, names: &Names) -> Option<BindingSpec> {
    let subjects = items(object.get("subjects")).filter_map(|subject| {
        let text = |field: &str| subject.get(field).and_then(Value::as_str).unwrap_or("");
        let kind = SubjectKind::parse(text("kind"))?;
        Some(Subject { kind, name: text("name").into(), namespace: text("namespace").into() })
    });
    Some(BindingSpec {
        meta: meta_of(object, names),
        role_kind: RoleKind::parse(object.str_at(&["roleRef", "kind"])?)?,
        role_name: object.str_at(&["roleRef", "name"])?.to_owned(),
        subjects: subjects.collect(),
    })
}

/// Returns the items of a list; none if the list is absent or of another type.
fn items(list: Option<&Value>) -> impl Iterator<Item = &Value> {
    list.and_then(Value::as_array).into_iter().flatten()
}

fn meta_of(object: &Object, names: &Names) -> Meta {
    Meta {
        labels: object.labels().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        protected: object.annotation(&names.autoupdate_annotation()) == Some("false"),
        revision: 0,
    }
}

fn rule_of(rule: &Value) -> PolicyRule {
    let list = |field: &str| -> StringList {
        items(rule.get(field)).filter_map(Value::as_str).map(Box::from).collect()
    };
    PolicyRule {
        verbs: list("verbs"),
        api_groups: list("apiGroups"),
        resources: list("resources"),
        resource_names: list("resourceNames"),
        non_resource_urls: list("nonResourceURLs"),
    }
}

/// Converts a rule to its API form.
pub fn rule_json(rule: &PolicyRule) -> Value {
    let mut json = Map::new();
    json.insert("verbs".into(), list_json(&rule.verbs));
    for (field, list) in [
        ("apiGroups", &rule.api_groups),
        ("resources", &rule.resources),
        ("resourceNames", &rule.resource_names),
        ("nonResourceURLs", &rule.non_resource_urls),
    ] {
        if !list.is_empty() {
            json.insert(field.into(), list_json(list));
        }
    }
    Value::Object(json)
}

fn list_json(list: &[Box<str>]) -> Value {
    list.iter().map(|word| Value::from(&**word)).collect()
}

fn selector_of(selector: &Value) -> Selector {
    let labels = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let match_labels: BTreeMap<String, String> =
        labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect();
    let mut parsed = Selector { match_labels, ..Selector::default() };
    for expression in items(selector.get("matchExpressions")) {
        let text = |field: &str| expression.get(field).and_then(Value::as_str).unwrap_or("");
        let values = items(expression.get("values"));
        match Operator::parse(text("operator")) {
            None => parsed.invalid = true,
            Some(operator) => parsed.match_expressions.push(Requirement {
                key: text("key").to_owned(),
                operator,
                values: values.filter_map(Value::as_str).map(str::to_owned).collect(),
            }),
        }
    }
    parsed
}

fn selector_json(selector: &Selector) -> Value {
    let mut json = Map::new();
    if !selector.match_labels.is_empty() {
        json.insert("matchLabels".into(), json!(selector.match_labels));
    }
    if !selector.match_expressions.is_empty() {
        let expressions = selector.match_expressions.iter();
        let expressions =
            expressions.map(|e| json!({"key": e.key, "operator": e.operator.as_str(), "values": e.values}));
        json.insert("matchExpressions".into(), expressions.collect());
    }
    Value::Object(json)
}

/// Converts a subject to its API form; `group` is the full name of the RBAC API group.
pub(super) fn subject_json(subject: &Subject, group: &str) -> Value {
    match subject.kind {
        SubjectKind::ServiceAccount if subject.namespace.is_empty() => {
            json!({"kind": "ServiceAccount", "name": subject.name})
        }
        SubjectKind::ServiceAccount => {
            json!({"kind": "ServiceAccount", "name": subject.name, "namespace": subject.namespace})
        }
        kind => json!({"kind": kind.as_str(), "apiGroup": group, "name": subject.name}),
    }
}
