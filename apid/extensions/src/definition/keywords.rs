//! Names of schema extensions in requests, in responses and in stored definitions.
//!
//! # Contract
//!
//! A stored definition, and a definition in memory, has the same extension names under both presets:
//! [`SchemaExtension::stored_name`]. Under the preset `svc` the strategy of the kind calls [`to_stored`] on a
//! decoded body before the schema of the kind checks it. It calls [`to_served`] on an object before the object
//! is encoded. Under `kubernetes` both do nothing. The type table, Protobuf, server-side apply and the
//! structural schemas know only the stored names. Field paths and messages in responses have the served names;
//! [`to_served_text`] renames those of the type table.
//!
//! [`to_stored`] and [`to_served`] rename the keywords of every `openAPIV3Schema`, and of the field sets in
//! `managedFields`. They change no other key: a property, a default or an example may have any name.
//! [`to_stored`] also marks a stored name in a body, which the preset does not know. The schema of the kind
//! then reports the marked name as an unknown field.

use apimachinery::names::{Names, SchemaExtension};
use apimachinery::object::{Map, Object, Value};

/// The suffix of a name in a body that only the other preset knows. No valid field name contains this
/// character.
const UNKNOWN_MARK: char = '?';

/// Finds the new name of a keyword; None if the name stays.
type Rename<'a> = &'a dyn Fn(&str) -> Option<String>;

fn find_extension(keyword: &str, name: impl Fn(SchemaExtension) -> &'static str) -> Option<SchemaExtension> {
    SchemaExtension::ALL.into_iter().find(|extension| name(*extension) == keyword)
}

fn to_stored_name(keyword: &str, names: &Names) -> Option<String> {
    match find_extension(keyword, |extension| names.schema_extension(extension)) {
        Some(extension) => Some(extension.stored_name().to_owned()),
        None => {
            find_extension(keyword, SchemaExtension::stored_name).map(|_| format!("{keyword}{UNKNOWN_MARK}"))
        }
    }
}

fn to_served_name(keyword: &str, names: &Names) -> Option<String> {
    let extension = find_extension(keyword, SchemaExtension::stored_name)?;
    Some(names.schema_extension(extension).to_owned())
}

/// Renames the extensions of a decoded body to their stored names, in place.
pub fn to_stored(definition: &mut Object, names: &Names) {
    translate(definition, names, &|keyword| to_stored_name(keyword, names));
}

/// Renames the extensions of a stored definition to the names of the preset, in place.
pub fn to_served(definition: &mut Object, names: &Names) {
    translate(definition, names, &|keyword| to_served_name(keyword, names));
}

/// Renames the extensions of a schema from the stored names to the names of the preset.
pub fn schema_to_served(schema: &mut Value, names: &Names) {
    if are_translated(names) {
        translate_schema(schema, "", &|keyword| to_served_name(keyword, names));
    }
}

/// Renames the extensions in the field paths of a message from the stored names to the names of the preset.
/// A property with such a name keeps its name.
pub fn to_served_text(text: &str, names: &Names) -> String {
    let mut text = text.to_owned();
    if !are_translated(names) {
        return text;
    }
    for extension in SchemaExtension::ALL {
        let stored = extension.stored_name();
        let mut renamed = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once(stored) {
            renamed.push_str(before);
            let is_keyword = before.strip_suffix('.').is_some_and(|parent| !parent.ends_with("roperties"))
                && !after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '-');
            (rest, renamed) = match after.strip_prefix(UNKNOWN_MARK) {
                Some(after) if is_keyword => (after, renamed + stored),
                _ if is_keyword => (after, renamed + names.schema_extension(extension)),
                _ => (after, renamed + stored),
            };
        }
        text = renamed + rest;
    }
    text
}

/// Whether the served names differ from the stored names.
pub fn are_translated(names: &Names) -> bool {
    SchemaExtension::ALL.iter().any(|extension| names.schema_extension(*extension) != extension.stored_name())
}

fn translate(definition: &mut Object, names: &Names, rename: Rename<'_>) {
    if !are_translated(names) {
        return;
    }
    if let Some(spec) = definition.get_mut("spec").and_then(Value::as_object_mut) {
        translate_spec(spec, "", rename);
    }
    let entries = definition.0.get_mut("metadata").and_then(|metadata| metadata.get_mut("managedFields"));
    for entry in entries.and_then(Value::as_array_mut).into_iter().flatten() {
        let fields = entry.get_mut("fieldsV1").and_then(|fields| fields.get_mut("f:spec"));
        if let Some(spec) = fields.and_then(Value::as_object_mut) {
            translate_spec(spec, "f:", rename);
        }
    }
}

/// Translates the schemas of all versions. In a field set each field name has the prefix `f:`.
fn translate_spec(spec: &mut Map<String, Value>, prefix: &str, rename: Rename<'_>) {
    let field = |name: &str| format!("{prefix}{name}");
    let schema_of = |version: &mut Value| {
        if let Some(schema) = version.get_mut(field("schema"))
            && let Some(schema) = schema.get_mut(field("openAPIV3Schema"))
        {
            translate_schema(schema, prefix, rename);
        }
    };
    match spec.get_mut(&field("versions")) {
        Some(Value::Array(versions)) => versions.iter_mut().for_each(schema_of),
        // The items of a list in a field set are the entries of a map.
        Some(Value::Object(versions)) => versions.values_mut().for_each(schema_of),
        _ => {}
    }
}

fn translate_schema(schema: &mut Value, prefix: &str, rename: Rename<'_>) {
    let keywords = match schema {
        Value::Array(schemas) => {
            schemas.iter_mut().for_each(|schema| translate_schema(schema, prefix, rename));
            return;
        }
        Value::Object(keywords) => keywords,
        _ => return,
    };
    for (keyword, value) in keywords.iter_mut() {
        match keyword.strip_prefix(prefix).unwrap_or("") {
            "properties" | "patternProperties" | "definitions" | "dependencies" => {
                let parts = value.as_object_mut().into_iter().flatten();
                parts.for_each(|(_, schema)| translate_schema(schema, prefix, rename));
            }
            "items" | "not" | "additionalProperties" | "additionalItems" | "allOf" | "anyOf" | "oneOf" => {
                translate_schema(value, prefix, rename);
            }
            _ => {}
        }
    }
    let renamed: Vec<(String, String)> = keywords
        .keys()
        .filter_map(|keyword| {
            let new = rename(keyword.strip_prefix(prefix)?)?;
            Some((keyword.clone(), format!("{prefix}{new}")))
        })
        .collect();
    // All old names leave before the first new name enters.
    let values: Vec<(String, Option<Value>)> =
        renamed.into_iter().map(|(old, new)| (new, keywords.remove(&old))).collect();
    keywords.extend(values.into_iter().filter_map(|(name, value)| Some((name, value?))));
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::Preset;
    use serde_json::json;

    fn definition(schema: Value) -> Object {
        let spec = json!({"versions": [{"schema": {"openAPIV3Schema": schema}}]});
        Object::from_value(json!({ "spec": spec })).unwrap()
    }

    #[test]
    fn extensions_have_stored_names_in_memory() {
        let svc = Names::new(Preset::Svc, "example.test").unwrap();
        let served = definition(json!({
            "x-svc-embedded-type": true,
            "properties": {"x-svc-list-type": {"x-svc-map-type": "atomic", "default": {"x-svc-map-type": 1}}},
            "anyOf": [{"items": {"x-svc-validations": [{"rule": "x-svc-"}]}}],
        }));
        let stored = definition(json!({
            "x-kubernetes-embedded-resource": true,
            "properties": {"x-svc-list-type": {"x-kubernetes-map-type": "atomic", "default": {"x-svc-map-type": 1}}},
            "anyOf": [{"items": {"x-kubernetes-validations": [{"rule": "x-svc-"}]}}],
        }));
        let mut object = served.clone();
        to_stored(&mut object, &svc);
        assert_eq!(object, stored);
        to_served(&mut object, &svc);
        assert_eq!(object, served);
    }

    #[test]
    fn kubernetes_preset_changes_nothing() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let original = definition(json!({"x-svc-map-type": "atomic", "x-kubernetes-map-type": "atomic"}));
        let mut object = original.clone();
        to_stored(&mut object, &names);
        to_served(&mut object, &names);
        assert_eq!(object, original);
    }

    #[test]
    fn stored_names_in_body_are_unknown_under_svc() {
        let svc = Names::new(Preset::Svc, "example.test").unwrap();
        let mut object = definition(json!({"x-kubernetes-map-type": "atomic", "x-svc-map-type": "granular"}));
        to_stored(&mut object, &svc);
        let expected =
            definition(json!({"x-kubernetes-map-type?": "atomic", "x-kubernetes-map-type": "granular"}));
        assert_eq!(object, expected);
    }

    #[test]
    fn paths_in_messages_have_served_names() {
        let svc = Names::new(Preset::Svc, "example.test").unwrap();
        for (text, served) in [
            ("a.x-kubernetes-map-type: bad", "a.x-svc-map-type: bad"),
            ("a.x-kubernetes-map-type?", "a.x-kubernetes-map-type"),
            (
                "a.x-kubernetes-validations[0].x, b.x-kubernetes-validations",
                "a.x-svc-validations[0].x, b.x-svc-validations",
            ),
            (
                "properties.x-kubernetes-map-type.x-kubernetes-embedded-resource",
                "properties.x-kubernetes-map-type.x-svc-embedded-type",
            ),
            (
                "a.x-kubernetes-map-types x-kubernetes-map-type",
                "a.x-kubernetes-map-types x-kubernetes-map-type",
            ),
        ] {
            assert_eq!(to_served_text(text, &svc), served);
        }
        let kubernetes = Names::new(Preset::Kubernetes, "").unwrap();
        assert_eq!(to_served_text("a.x-kubernetes-map-type", &kubernetes), "a.x-kubernetes-map-type");
    }

    #[test]
    fn managed_fields_are_translated() {
        let svc = Names::new(Preset::Svc, "example.test").unwrap();
        let fields = json!({"f:spec": {"f:versions": {"k:{\"name\":\"v1\"}": {
            "f:schema": {"f:openAPIV3Schema": {"f:properties": {"f:x-svc-map-type": {"f:x-svc-map-type": {}}}}},
        }}}});
        let metadata = json!({"managedFields": [{"fieldsV1": fields}]});
        let mut object = Object::from_value(json!({ "metadata": metadata })).unwrap();
        let original = object.clone();
        to_stored(&mut object, &svc);
        let text = serde_json::to_string(&object.0).unwrap();
        assert!(text.contains(r#""f:x-svc-map-type":{"f:x-kubernetes-map-type":{}}"#), "{text}");
        to_served(&mut object, &svc);
        assert_eq!(object, original);
    }
}
