//! Ingress, IngressClass and NetworkPolicy of `extensions/v1beta1` and `networking/v1beta1`.

use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use serde_json::json;

use super::fields::{Fields, child, default, is_set, items, part, rename};
use super::{FieldChanges, Notes};

pub(super) const VERSIONS: &[FieldChanges] = &[
    FieldChanges::new(("extensions", "v1beta1", "Ingress"), upgrade_ingress, downgrade_ingress),
    FieldChanges::new(("networking", "v1beta1", "Ingress"), upgrade_ingress, downgrade_ingress),
    FieldChanges {
        restore: restore_class_scope,
        ..FieldChanges::new(("networking", "v1beta1", "IngressClass"), |_, _, _| {}, |_, _| {})
    },
    FieldChanges {
        restore: restore_protocols,
        ..FieldChanges::new(("extensions", "v1beta1", "NetworkPolicy"), |_, _, _| {}, |_, _| {})
    },
];

fn upgrade_ingress(object: &mut Object, _names: &Names, notes: &mut Notes) {
    let Some(spec) = part(object, "spec") else { return };
    if is_set(spec, "defaultBackend") {
        notes.add("spec.defaultBackend", "dropped: the old version has no such field");
    }
    rename(spec, "backend", "defaultBackend");
    if let Some(backend) = child(spec, "defaultBackend") {
        upgrade_backend(backend);
    }
    let mut is_path_type_set = false;
    for path in
        items(spec, "rules").filter_map(|rule| child(rule, "http")).flat_map(|http| items(http, "paths"))
    {
        is_path_type_set |= default(path, "pathType", "ImplementationSpecific");
        if let Some(backend) = child(path, "backend") {
            upgrade_backend(backend);
        }
    }
    if is_path_type_set {
        notes.add(
            "spec.rules[*].http.paths[*].pathType",
            "ImplementationSpecific is the default of the old version; Prefix or Exact do not depend on the controller",
        );
    }
}

/// Moves the name and port of the service of a backend into `service`.
fn upgrade_backend(backend: &mut Fields) {
    backend.remove("service");
    let name = backend.remove("serviceName").filter(|name| !name.is_null() && name.as_str() != Some(""));
    let port = match backend.remove("servicePort") {
        Some(Value::Number(number)) if number.as_i64() != Some(0) => Some(json!({"number": number})),
        Some(Value::String(text)) if text.is_empty() => Some(json!({})),
        Some(Value::String(text)) => Some(json!({"name": text})),
        _ => None,
    };
    if name.is_none() && port.is_none() {
        return;
    }
    let service = json!({
        "name": name.unwrap_or_else(|| "".into()),
        "port": port.unwrap_or_else(|| json!({})),
    });
    backend.insert("service".to_owned(), service);
}

fn downgrade_ingress(object: &mut Object, _names: &Names) {
    let Some(spec) = part(object, "spec") else { return };
    rename(spec, "defaultBackend", "backend");
    if let Some(backend) = child(spec, "backend") {
        downgrade_backend(backend);
    }
    for path in
        items(spec, "rules").filter_map(|rule| child(rule, "http")).flat_map(|http| items(http, "paths"))
    {
        if let Some(backend) = child(path, "backend") {
            downgrade_backend(backend);
        }
    }
}

/// Moves the service of a backend into `serviceName` and `servicePort`. Objects of the old version always
/// contain the port, which is 0 if the backend has none.
fn downgrade_backend(backend: &mut Fields) {
    let service = backend.remove("service").unwrap_or_default();
    if let Some(name) = service.get("name").and_then(Value::as_str).filter(|name| !name.is_empty()) {
        backend.insert("serviceName".to_owned(), name.into());
    }
    let port = service.get("port").and_then(|port| match port.get("name").and_then(Value::as_str) {
        Some(name) if !name.is_empty() => Some(name.into()),
        _ => port.get("number").cloned(),
    });
    backend.insert("servicePort".to_owned(), port.unwrap_or_else(|| 0.into()));
}

/// Sets the scope of the parameters to null if the manifest has no scope: `v1beta1` has no default, and the
/// server sets a scope at creation.
fn restore_class_scope(old: &Object, new: &mut Object) {
    let is_unset = |object: &Object| object.at(&["spec", "parameters", "scope"]).is_none_or(Value::is_null);
    if is_unset(old)
        && let Some(spec) = part(new, "spec")
        && let Some(parameters) = child(spec, "parameters")
    {
        parameters.insert("scope".to_owned(), Value::Null);
    }
}

/// Removes the protocol of each port that has none in the manifest: `extensions/v1beta1` has no default, and
/// the server sets TCP at creation.
fn restore_protocols(old: &Object, new: &mut Object) {
    for direction in ["ingress", "egress"] {
        let empty = Vec::new();
        let old_rules = old.at(&["spec", direction]).and_then(Value::as_array).unwrap_or(&empty);
        let Some(spec) = part(new, "spec") else { return };
        for (old_rule, rule) in old_rules.iter().zip(items(spec, direction)) {
            let old_ports = old_rule.get("ports").and_then(Value::as_array).unwrap_or(&empty);
            for (old_port, port) in old_ports.iter().zip(items(rule, "ports")) {
                if old_port.get("protocol").is_none_or(Value::is_null) {
                    port.remove("protocol");
                }
            }
        }
    }
}
