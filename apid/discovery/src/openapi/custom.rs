//! Schemas of custom kinds in OpenAPI 2. OpenAPI 2 clients know fewer keywords than OpenAPI 3 clients.
//!
//! # Reference
//!
//! kube-apiserver publishes a reduced schema in OpenAPI 2: without logical operators and defaults, without
//! the type and the content of nullable parts, and without the content of parts that keep unknown fields.

use apimachinery::names::{Names, SchemaExtension};
use serde_json::{Map, Value};

/// Keywords that kube-apiserver leaves out of schemas in OpenAPI 2.
const UNSUPPORTED_KEYWORDS: [&str; 6] = ["oneOf", "anyOf", "allOf", "not", "nullable", "default"];

/// Reduces a schema and all its parts.
pub(super) fn simplify(schema: &mut Map<String, Value>, names: &Names) {
    let is_set = |schema: &Map<String, Value>, name: &str| schema.get(name) == Some(&Value::Bool(true));
    if is_set(schema, "nullable") {
        for keyword in ["type", "items", "properties"] {
            schema.remove(keyword);
        }
    }
    if is_set(schema, names.schema_extension(SchemaExtension::PreserveUnknownFields)) {
        for keyword in ["items", "properties"] {
            schema.remove(keyword);
        }
    }
    for keyword in UNSUPPORTED_KEYWORDS {
        schema.remove(keyword);
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.values_mut().for_each(|part| simplify_part(part, names));
    }
    for keyword in ["items", "additionalProperties"] {
        if let Some(part) = schema.get_mut(keyword) {
            simplify_part(part, names);
        }
    }
}

fn simplify_part(part: &mut Value, names: &Names) {
    if let Value::Object(schema) = part {
        simplify(schema, names);
    }
}
