//! Schemas of custom kinds in OpenAPI documents. OpenAPI 2 clients know fewer keywords than OpenAPI 3 clients.
//!
//! # Reference
//!
//! kube-apiserver publishes a reduced schema in OpenAPI 2, without logical operators and defaults. The type and
//! the content are missing in nullable parts and in parts that keep unknown fields. Embedded objects get the
//! fields of their type and metadata in both versions.

use apimachinery::names::{Names, SchemaExtension};
use serde_json::{Map, Value, json};

/// Keywords that kube-apiserver leaves out of schemas in OpenAPI 2.
const UNSUPPORTED_KEYWORDS: [&str; 6] = ["oneOf", "anyOf", "allOf", "not", "nullable", "default"];

fn is_set(schema: &Map<String, Value>, name: &str) -> bool {
    schema.get(name) == Some(&Value::Bool(true))
}

/// Whether a schema keeps unknown fields.
pub(super) fn preserves_unknown(schema: &Map<String, Value>, names: &Names) -> bool {
    is_set(schema, names.schema_extension(SchemaExtension::PreserveUnknownFields))
}

/// Reduces a schema and all its parts.
pub(super) fn simplify(schema: &mut Map<String, Value>, names: &Names) {
    let has_type =
        |schema: &Map<String, Value>, ty: &str| schema.get("type").is_some_and(|known| known == ty);
    let preserves_unknown = preserves_unknown(schema, names);
    if is_set(schema, "nullable") {
        for keyword in ["type", "items", "properties"] {
            schema.remove(keyword);
        }
    }
    if preserves_unknown {
        for keyword in ["items", "properties"] {
            schema.remove(keyword);
        }
    }
    let lacks_items = has_type(schema, "array") && !schema.contains_key("items");
    if lacks_items || preserves_unknown && has_type(schema, "object") {
        schema.remove("type");
    }
    drop_required_nullable_fields(schema);
    for keyword in UNSUPPORTED_KEYWORDS {
        schema.remove(keyword);
    }
    each_part(schema, &mut |part| simplify(part, names));
}

/// Removes the nullable properties from `required`. Removes `required` if the values of a map are nullable.
fn drop_required_nullable_fields(schema: &mut Map<String, Value>) {
    let is_nullable =
        |part: Option<&Value>| part.and_then(|part| part.get("nullable")) == Some(&Value::Bool(true));
    if is_nullable(schema.get("additionalProperties")) {
        schema.remove("required");
    }
    let Some(Value::Array(required)) = schema.get("required") else { return };
    let properties = schema.get("properties");
    let is_kept = |name: &&Value| {
        !is_nullable(name.as_str().and_then(|name| properties.and_then(|properties| properties.get(name))))
    };
    let kept: Vec<Value> = required.iter().filter(is_kept).cloned().collect();
    match kept.is_empty() {
        true => drop(schema.remove("required")),
        false => drop(schema.insert("required".to_owned(), kept.into())),
    }
}

/// Adds `apiVersion`, `kind` and `metadata` to all embedded objects, and requires the first two. With
/// `keeps_free_parts`, leaves out embedded objects that keep unknown fields. `metadata` is the schema of the
/// metadata.
pub(super) fn add_embedded_fields(
    schema: &mut Map<String, Value>,
    names: &Names,
    keeps_free_parts: bool,
    metadata: &Value,
) {
    each_part(schema, &mut |part| add_embedded_fields(part, names, keeps_free_parts, metadata));
    let is_free = keeps_free_parts && preserves_unknown(schema, names);
    if is_free || !is_set(schema, names.schema_extension(SchemaExtension::EmbeddedResource)) {
        return;
    }
    let properties = schema.entry("properties").or_insert_with(|| json!({}));
    if let Value::Object(properties) = properties {
        for name in ["apiVersion", "kind"] {
            properties.insert(name.to_owned(), json!({"type": "string"}));
        }
        properties.insert("metadata".to_owned(), metadata.clone());
    }
    let required = schema.entry("required").or_insert_with(|| json!([]));
    if let Value::Array(required) = required {
        for name in ["kind", "apiVersion"] {
            if !required.iter().any(|known| known == name) {
                required.push(name.into());
            }
        }
    }
}

/// Visits the direct parts of a schema: properties, items, and values of maps.
fn each_part(schema: &mut Map<String, Value>, visit: &mut dyn FnMut(&mut Map<String, Value>)) {
    let mut visit_value = |part: &mut Value| {
        if let Value::Object(part) = part {
            visit(part);
        }
    };
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(&mut visit_value);
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(part) = schema.get_mut(keyword) {
            visit_value(part);
        }
    }
}
