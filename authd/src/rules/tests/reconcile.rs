//! Reconciliation of default policy with stored objects.

use apimachinery::object::Object;
use bootstrap::DefaultPolicy;
use serde_json::{Value, json};

use super::super::reconcile::{WriteOperation, binding_spec, required_writes, role_spec};
use super::super::{RoleKind, reconcile};
use super::*;

const GROUP: &str = "rbac.authorization.k8s.io";

fn object(kind: &str, name: &str, rest: Value) -> Object {
    let mut object = Object::from_value(rest).unwrap();
    object.set_type(&format!("{GROUP}/v1"), kind);
    object.set_meta("name", name);
    object
}

fn defaults() -> DefaultPolicy {
    let role = json!({"metadata": {"labels": {"d": "1"}}, "rules": [
        {"verbs": ["get", "list"], "apiGroups": [""], "resources": ["pods"]},
        {"verbs": ["get"], "nonResourceURLs": ["/version"]}]});
    let sum =
        json!({"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "sum"}}]}, "rules": null});
    let binding = json!({"roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": "role"},
        "subjects": [{"kind": "Group", "apiGroup": GROUP, "name": "g"},
                     {"kind": "ServiceAccount", "namespace": "kube-system", "name": "s"}]});
    DefaultPolicy {
        cluster_roles: vec![object("ClusterRole", "role", role), object("ClusterRole", "sum", sum)],
        cluster_role_bindings: vec![object("ClusterRoleBinding", "binding", binding)],
        roles: Vec::new(),
        role_bindings: Vec::new(),
    }
}

fn policy_with(defaults: &DefaultPolicy) -> Policy {
    let mut p = policy();
    for object in &defaults.cluster_roles {
        p.put_role(RoleKind::ClusterRole, "", object.name(), role_spec(object, &names()));
    }
    for object in &defaults.cluster_role_bindings {
        p.put_binding("", object.name(), binding_spec(object, &names()).unwrap());
    }
    p
}

/// Changes a complete default policy, and checks the writes that restore it.
fn check(change: impl FnOnce(&mut Policy), expected: &[Value]) {
    let defaults = defaults();
    let mut p = policy_with(&defaults);
    change(&mut p);
    let got: Vec<Value> = required_writes(&p, &defaults, &names())
        .into_iter()
        .map(|write| match write.operation {
            WriteOperation::Create(body) => json!(["create", write.resource, body["metadata"]["name"]]),
            WriteOperation::Patch(body) => json!(["patch", write.resource, write.name, body]),
            WriteOperation::Apply(body) => json!(["apply", write.resource, write.name, body]),
            WriteOperation::Delete(body) => json!(["delete", write.resource, write.name, body]),
        })
        .collect();
    assert_eq!(got, expected);
}

fn change_role(p: &mut Policy, name: &str, change: impl FnOnce(&mut RoleSpec)) {
    let object = defaults().cluster_roles.into_iter().find(|object| object.name() == name).unwrap();
    let mut spec = role_spec(&object, &names());
    change(&mut spec);
    p.put_role(RoleKind::ClusterRole, "", name, spec);
}

fn change_binding(p: &mut Policy, change: impl FnOnce(&mut BindingSpec)) {
    let mut spec = binding_spec(&defaults().cluster_role_bindings[0], &names()).unwrap();
    change(&mut spec);
    p.put_binding("", "binding", spec);
}

#[test]
fn complete_default_policy_needs_no_writes() {
    check(|_| (), &[]);
    check(|p| change_role(p, "role", |spec| spec.rules.push(rule("delete|-|nodes"))), &[]);
    check(|p| change_binding(p, |spec| spec.subjects.push(subject("U:extra"))), &[]);
}

#[test]
fn missing_default_policy_is_restored() {
    check(|p| p.delete_role(RoleKind::ClusterRole, "", "role"), &[json!(["create", "clusterroles", "role"])]);
    check(|p| p.delete_binding("", "binding"), &[json!(["create", "clusterrolebindings", "binding"])]);
    let pods = json!({"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]});
    check(
        |p| change_role(p, "role", |spec| spec.rules = vec![rule("get|-|pods")]),
        &[json!(["patch", "clusterroles", "role", {"rules": [
            pods,
            {"verbs": ["list"], "apiGroups": [""], "resources": ["pods"]},
            {"verbs": ["get"], "nonResourceURLs": ["/version"]}]}])],
    );
    check(
        |p| change_role(p, "role", |spec| spec.meta.labels.clear()),
        &[json!(["patch", "clusterroles", "role", {"metadata": {"labels": {"d": "1"}}}])],
    );
    check(
        |p| change_role(p, "sum", |spec| spec.aggregation = None),
        &[json!(["patch", "clusterroles", "sum",
            {"aggregationRule": {"clusterRoleSelectors": [{"matchLabels": {"to": "sum"}}]}}])],
    );
    check(
        |p| change_binding(p, |spec| spec.subjects = vec![subject("U:own")]),
        &[json!(["patch", "clusterrolebindings", "binding", {"subjects": [
            {"kind": "User", "apiGroup": GROUP, "name": "own"},
            {"kind": "Group", "apiGroup": GROUP, "name": "g"},
            {"kind": "ServiceAccount", "namespace": "kube-system", "name": "s"}]}])],
    );
    check(
        |p| {
            change_binding(p, |spec| {
                spec.meta.revision = 7;
                spec.role_name = "other".into();
            });
        },
        &[
            json!(["delete", "clusterrolebindings", "binding", {"resourceVersion": "7"}]),
            json!(["create", "clusterrolebindings", "binding"]),
        ],
    );
}

#[test]
fn object_with_autoupdate_false_is_not_changed() {
    check(
        |p| {
            change_role(p, "role", |spec| {
                *spec = RoleSpec { meta: Meta { protected: true, ..Meta::default() }, ..RoleSpec::default() }
            });
            change_binding(p, |spec| {
                spec.meta.protected = true;
                spec.role_name = "other".into();
            });
        },
        &[],
    );
}

#[test]
fn default_policy_is_complete_after_one_round() {
    let names = names();
    let defaults = bootstrap::default_policy(&names);
    let mut p = policy();
    let writes = reconcile::required_writes(&p, &defaults, &names);
    let all = defaults.cluster_roles.len()
        + defaults.cluster_role_bindings.len()
        + defaults.roles.len()
        + defaults.role_bindings.len();
    assert_eq!(writes.len(), all, "an empty store gets everything");
    for (kind, objects) in
        [(RoleKind::ClusterRole, &defaults.cluster_roles), (RoleKind::Role, &defaults.roles)]
    {
        for object in objects {
            p.put_role(kind, object.namespace(), object.name(), role_spec(object, &names));
        }
    }
    for object in defaults.cluster_role_bindings.iter().chain(&defaults.role_bindings) {
        p.put_binding(object.namespace(), object.name(), binding_spec(object, &names).unwrap());
    }
    assert_eq!(reconcile::required_writes(&p, &defaults, &names), [], "the second round writes nothing");
    let admin = p.effective_rules(RoleKind::ClusterRole, "", "admin").unwrap();
    let view = p.effective_rules(RoleKind::ClusterRole, "", "view").unwrap();
    assert!(admin.len() > view.len() && !view.is_empty(), "admin {} view {}", admin.len(), view.len());
    assert!(view.iter().all(|rule| admin.contains(rule)), "admin contains the rules of view");
}
