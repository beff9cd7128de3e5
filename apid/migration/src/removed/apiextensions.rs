//! CustomResourceDefinition of `apiextensions/v1beta1`.
//!
//! # Reference
//!
//! `v1` has schema, subresources and columns in each version, requires a structural schema, and has no `spec.version`,
//! no default scope and no `preserveUnknownFields: true`. In `v1beta1`, a definition preserves unknown fields
//! by default. The upgrade of such a definition sets `x-kubernetes-preserve-unknown-fields`, or its name in
//! the other preset, at the root of each schema.

use apimachinery::names::{Names, SchemaExtension};
use apimachinery::object::{Object, Value};
use serde_json::json;

use super::fields::{Fields, child, child_or_new, default, items, part, rename};
use super::{FieldChanges, Notes};

pub(super) const VERSIONS: &[FieldChanges] =
    &[FieldChanges::new(("apiextensions", "v1beta1", "CustomResourceDefinition"), upgrade, downgrade)];

/// Fields that `v1beta1` has in `spec` and `v1` has in each version: old name, new name.
const PER_VERSION: [(&str, &str); 3] = [
    ("validation", "schema"),
    ("subresources", "subresources"),
    ("additionalPrinterColumns", "additionalPrinterColumns"),
];

fn upgrade(object: &mut Object, names: &Names, notes: &mut Notes) {
    let Some(spec) = part(object, "spec") else { return };
    if default(spec, "scope", "Namespaced") {
        notes.add("spec.scope", "Namespaced is the default of the old version; v1 requires the scope");
    }
    let version =
        spec.remove("version").filter(|version| version.as_str().is_some_and(|name| !name.is_empty()));
    if spec.get("versions").and_then(Value::as_array).is_none_or(Vec::is_empty)
        && let Some(version) = version
    {
        spec.insert("versions".to_owned(), json!([{"name": version, "served": true, "storage": true}]));
    }
    for (old, new) in PER_VERSION {
        let Some(value) = spec.remove(old).filter(|value| !value.is_null()) else { continue };
        for version in items(spec, "versions") {
            default(version, new, value.clone());
        }
    }
    for column in items(spec, "versions").flat_map(|version| items(version, "additionalPrinterColumns")) {
        rename(column, "JSONPath", "jsonPath");
    }
    let preserves = spec.remove("preserveUnknownFields").is_none_or(|value| value != Value::Bool(false));
    require_schemas(spec, names, preserves, notes);
    upgrade_conversion(spec, notes);
}

/// Sets a schema in each version that lacks one. A new schema, and each schema of a definition that preserves
/// unknown fields, gets the extension that preserves them.
fn require_schemas(spec: &mut Fields, names: &Names, preserves: bool, notes: &mut Notes) {
    let extension = names.schema_extension(SchemaExtension::PreserveUnknownFields);
    let (mut lacks_schema, mut is_extended) = (false, false);
    for version in items(spec, "versions") {
        let Some(schema) = child_or_new(version, "schema") else { continue };
        let is_new = default(schema, "openAPIV3Schema", json!({"type": "object"}));
        lacks_schema |= is_new;
        if let Some(root) = child(schema, "openAPIV3Schema").filter(|_| is_new || preserves) {
            is_extended |= default(root, extension, true);
            default(root, "type", "object");
        }
    }
    if lacks_schema {
        notes.add("spec.versions[*].schema", "v1 requires a schema; the new schema accepts every field");
    }
    if is_extended {
        notes.add(
            "spec.preserveUnknownFields",
            &format!("v1 does not accept true; each schema has `{extension}` instead. Complete the schema and remove it"),
        );
    }
}

fn upgrade_conversion(spec: &mut Fields, notes: &mut Notes) {
    let Some(conversion) = child(spec, "conversion") else { return };
    let client = conversion.remove("webhookClientConfig").filter(|value| !value.is_null());
    let versions = conversion.remove("conversionReviewVersions").filter(|value| !value.is_null());
    if conversion.get("strategy").and_then(Value::as_str) != Some("Webhook") {
        return;
    }
    let versions = versions.unwrap_or_else(|| {
        let text = "[\"v1beta1\"] is the default of the old version; add v1 when the webhook supports it";
        notes.add("spec.conversion.webhook.conversionReviewVersions", text);
        json!(["v1beta1"])
    });
    let mut webhook = Fields::new();
    webhook.insert("conversionReviewVersions".to_owned(), versions);
    if let Some(client) = client {
        webhook.insert("clientConfig".to_owned(), client);
    }
    conversion.insert("webhook".to_owned(), webhook.into());
}

fn downgrade(object: &mut Object, _names: &Names) {
    let Some(spec) = part(object, "spec") else { return };
    default(spec, "preserveUnknownFields", false);
    for column in items(spec, "versions").flat_map(|version| items(version, "additionalPrinterColumns")) {
        rename(column, "jsonPath", "JSONPath");
    }
    let versions: Vec<Value> = spec.get("versions").and_then(Value::as_array).cloned().unwrap_or_default();
    if let Some(first) = versions.first().and_then(|version| version.get("name")).cloned() {
        spec.insert("version".to_owned(), first);
    }
    // The old version accepts per-version fields only if they differ between the versions.
    for (old, new) in PER_VERSION {
        let values: Vec<Option<&Value>> = versions.iter().map(|version| version.get(new)).collect();
        let Some(Some(first)) = values.first() else { continue };
        if values.iter().all(|value| *value == Some(*first)) {
            spec.insert(old.to_owned(), (*first).clone());
            for version in items(spec, "versions") {
                version.remove(new);
            }
        }
    }
    if let Some(conversion) = child(spec, "conversion")
        && let Some(Value::Object(mut webhook)) = conversion.remove("webhook")
    {
        for (new, old) in [
            ("clientConfig", "webhookClientConfig"),
            ("conversionReviewVersions", "conversionReviewVersions"),
        ] {
            if let Some(value) = webhook.remove(new) {
                conversion.insert(old.to_owned(), value);
            }
        }
    }
}
