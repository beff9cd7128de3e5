//! Keywords that no structural schema can have.

use apimachinery::names::{Names, SchemaExtension};
use apimachinery::object::Value;

use crate::definition::props::{Items, Props};

/// The first unsupported keyword of a schema or of its parts, as a message.
pub(crate) fn find_unsupported(schema: Props<'_>, names: &Names) -> Option<String> {
    if let Some(keyword) = unsupported_keyword(schema) {
        return Some(format!("OpenAPIV3Schema '{keyword}' is not supported"));
    }
    let find_in_part = |schema: Props<'_>| find_unsupported(schema, names);
    let mut branches = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|junctor| schema.branches(junctor));
    schema
        .schema("not")
        .and_then(find_in_part)
        .or_else(|| branches.find_map(find_in_part))
        .or_else(|| schema.schema("additionalProperties").and_then(find_in_part))
        .or_else(|| {
            let extension = SchemaExtension::PreserveUnknownFields;
            (schema.extension(extension) == Some(&Value::Bool(false))).then(|| {
                let name = names.schema_extension(extension);
                format!("internal error: '{name}' must be true or undefined")
            })
        })
        .or_else(|| match schema.items() {
            Items::Absent | Items::Many([]) => None,
            Items::One(items) => find_in_part(items),
            Items::Many(_) => Some("OpenAPIV3Schema 'items' must be a schema, but is an array".to_owned()),
        })
        .or_else(|| schema.schemas("properties").find_map(|(_, property)| find_in_part(property)))
}

/// The first unsupported keyword of the schema itself.
fn unsupported_keyword(schema: Props<'_>) -> Option<&'static str> {
    let is_empty_map = |value: &Value| value.as_object().is_some_and(serde_json::Map::is_empty);
    let has_map = |keyword: &str| schema.get(keyword).is_some_and(|value| !is_empty_map(value));
    let rules = [
        ("id", !schema.text("id").is_empty()),
        ("schema", !schema.text("$schema").is_empty()),
        ("$ref", !schema.text("$ref").is_empty()),
        ("patternProperties", has_map("patternProperties")),
        ("dependencies", has_map("dependencies")),
        ("additionalItems", schema.get("additionalItems").is_some()),
        ("definitions", has_map("definitions")),
    ];
    rules.into_iter().find(|(_, is_set)| *is_set).map(|(keyword, _)| keyword)
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::Preset;
    use serde_json::json;

    #[test]
    fn first_unsupported_keyword_is_found() {
        let names = Names::new(Preset::Svc, "example.test").unwrap();
        let extension = SchemaExtension::PreserveUnknownFields.stored_name();
        for (schema, message) in [
            (json!({"type": "object", "properties": {"a": {"items": {"type": "string"}}}}), None),
            (json!({"properties": {"a": {"$ref": "x"}}}), Some("OpenAPIV3Schema '$ref' is not supported")),
            (
                json!({"anyOf": [{"not": {"$schema": "x"}}]}),
                Some("OpenAPIV3Schema 'schema' is not supported"),
            ),
            (json!({"items": [{}]}), Some("OpenAPIV3Schema 'items' must be a schema, but is an array")),
            (
                json!({extension: false}),
                Some("internal error: 'x-svc-preserve-unknown-fields' must be true or undefined"),
            ),
        ] {
            assert_eq!(
                find_unsupported(Props::from_value(&schema).unwrap(), &names).as_deref(),
                message,
                "{schema}"
            );
        }
    }
}
