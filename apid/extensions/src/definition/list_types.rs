//! Rules for list types, keys of map lists, and map types.

use std::collections::HashSet;

use apimachinery::field::{FieldError, FieldPath};
use apimachinery::names::{Names, SchemaExtension};
use apimachinery::object::Value;

use super::props::{Items, Props};
use super::schema_path::{SchemaErrors, SchemaPath};

/// Validates the schema extensions of one part, without its validation rules.
pub(super) fn validate_list_types(
    schema: Props<'_>,
    path: &SchemaPath<'_>,
    requires_atomic_set_items: bool,
    errors: &mut SchemaErrors<'_>,
) {
    let preserve = SchemaExtension::PreserveUnknownFields;
    if schema.extension(preserve) == Some(&Value::Bool(false)) {
        errors.add(&path.field(errors.extension(preserve)), |path| {
            FieldError::invalid(path, false, "must be true or undefined")
        });
    }
    if let Some(map_type) = schema.extension_text(SchemaExtension::MapType) {
        validate_type_of(schema, "object", SchemaExtension::MapType, path, errors);
        if !matches!(map_type, "atomic" | "granular") {
            let path = path.field(errors.extension(SchemaExtension::MapType));
            errors.add(&path, |path| FieldError::not_supported(path, map_type, &["atomic", "granular"]));
        }
    }
    let list_path = path.field(errors.extension(SchemaExtension::ListType));
    let list_type = schema.extension_text(SchemaExtension::ListType);
    if let Some(list_type) = list_type {
        let is_list = validate_type_of(schema, "array", SchemaExtension::ListType, path, errors);
        if is_list && requires_atomic_set_items && list_type == "set" {
            validate_set_items(schema, path, errors);
        }
        if !matches!(list_type, "atomic" | "set" | "map") {
            errors.add(&list_path, |path| {
                FieldError::not_supported(path, list_type, &["atomic", "set", "map"])
            });
        }
    }
    if !schema.extension_list(SchemaExtension::ListMapKeys).is_empty() && list_type != Some("map") {
        let keys = errors.extension(SchemaExtension::ListMapKeys);
        let detail = format!("must be map if {keys} is non-empty");
        errors.add(&list_path, |path| match list_type {
            None => FieldError::required(path, &detail),
            Some(list_type) => FieldError::invalid(path, list_type, &detail),
        });
    }
    if list_type == Some("map") {
        validate_map_keys(schema, path, errors);
    }
}

/// Validates the type of a schema with an extension. Returns whether the schema has the type.
fn validate_type_of(
    schema: Props<'_>,
    ty: &str,
    extension: SchemaExtension,
    path: &SchemaPath<'_>,
    errors: &mut SchemaErrors<'_>,
) -> bool {
    if schema.ty() == ty {
        return true;
    }
    let detail = format!("must be {ty} if {} is specified", errors.extension(extension));
    errors.require_text(&path.field("type"), schema.ty(), &detail);
    false
}

/// Validates that the items of a set are scalar or atomic.
fn validate_set_items(schema: Props<'_>, path: &SchemaPath<'_>, errors: &mut SchemaErrors<'_>) {
    let Some(items) = schema.item_schema() else { return };
    let Some(extension) = granular_extension(items) else { return };
    let set = errors.extension(SchemaExtension::ListType);
    let detail = format!("must be atomic as item of a list with {set}=set");
    let items_path = path.field("items");
    // The message shows the list type in both cases, as in kube-apiserver.
    let value = items.extension_text(SchemaExtension::ListType).map_or(Value::Null, Value::from);
    errors.add(&items_path.field(errors.extension(extension)), |path| {
        FieldError::invalid(path, value, &detail)
    });
}

/// The extension that makes values neither scalar nor atomic.
fn granular_extension(schema: Props<'_>) -> Option<SchemaExtension> {
    let (list, map) = (SchemaExtension::ListType, SchemaExtension::MapType);
    match schema.ty() {
        "array" => schema.extension_text(list).is_some_and(|ty| ty != "atomic").then_some(list),
        "object" => (schema.extension_text(map) != Some("atomic")).then_some(map),
        _ => None,
    }
}

/// Validates that the keys of a map list name scalar properties of its items.
fn validate_map_keys(schema: Props<'_>, path: &SchemaPath<'_>, errors: &mut SchemaErrors<'_>) {
    let list_type = errors.extension(SchemaExtension::ListType);
    let keys = schema.extension_list(SchemaExtension::ListMapKeys);
    let keys_path = path.field(errors.extension(SchemaExtension::ListMapKeys));
    if keys.is_empty() {
        errors.require(&keys_path, &format!("must not be empty if {list_type} is map"));
    }
    let items_path = path.field("items");
    let items = match schema.items() {
        Items::One(items) => items,
        Items::Absent => {
            return errors.require(&items_path, &format!("must have a schema if {list_type} is map"));
        }
        Items::Many(list) => {
            let detail = format!("must only have a single schema if {list_type} is map");
            errors.add(&items_path, |path| FieldError::invalid(path, list.to_vec(), &detail));
            return;
        }
    };
    let is_map = format!("parent array's {list_type} is map");
    if items.ty() != "object" {
        errors.add(&items_path.field("type"), |path| {
            FieldError::invalid(path, items.ty(), &format!("must be object if {is_map}"))
        });
        return;
    }
    let properties = items_path.field("properties");
    let mut seen_keys = HashSet::new();
    for key in keys.iter().map(|key| key.as_str().unwrap_or("")) {
        match items.property(key) {
            Some(property) if matches!(property.ty(), "array" | "object") => {
                errors.add(&properties.key(key).field("type"), |path| {
                    FieldError::invalid(path, items.ty(), &format!("must be a scalar type if {is_map}"))
                });
            }
            Some(_) => {}
            None => errors.add(&keys_path, |path| {
                FieldError::invalid(path, keys.to_vec(), "entries must all be names of item properties")
            }),
        }
        if !seen_keys.insert(key) {
            errors.add(&keys_path, |path| {
                FieldError::invalid(path, keys.to_vec(), "must not contain duplicate entries")
            });
        }
    }
}

/// Validates that the items of sets and map lists are not null, and that map keys always have a value.
pub(super) fn validate_map_list(schema: Props<'_>, path: &SchemaPath<'_>, errors: &mut SchemaErrors<'_>) {
    let Some(items) = schema.item_schema() else { return };
    let Some(list_type @ ("set" | "map")) = schema.extension_text(SchemaExtension::ListType) else { return };
    let items_path = path.field("items");
    if items.flag("nullable") {
        let extension = errors.extension(SchemaExtension::ListType);
        let detail = format!("cannot be nullable when {extension} is {list_type}");
        errors.forbid(&items_path.field("nullable"), &detail);
    }
    if list_type != "map" {
        return;
    }
    let required: HashSet<&str> = items.texts("required").collect();
    let properties = items_path.field("properties");
    let reason = format!("this property is in {}, so it", errors.extension(SchemaExtension::ListMapKeys));
    for key in schema.extension_list(SchemaExtension::ListMapKeys) {
        let key = key.as_str().unwrap_or("");
        let Some(property) = items.property(key) else { continue };
        let property_path = properties.key(key);
        if !required.contains(key) && property.get("default").is_none() {
            let detail = format!("{reason} must have a default or be a required property");
            errors.require(&property_path.field("default"), &detail);
        }
        if property.flag("nullable") {
            errors.forbid(&property_path.field("nullable"), &format!("{reason} cannot be nullable"));
        }
    }
}

/// Whether a schema or one of its parts has a set whose items are neither scalar nor atomic.
pub(super) fn has_set_of_granular_items(schema: Props<'_>) -> bool {
    schema.any(&mut |part| {
        let is_set = part.extension_text(SchemaExtension::ListType) == Some("set");
        is_set && part.item_schema().and_then(granular_extension).is_some()
    })
}

/// Whether a schema or one of its parts violates [`validate_map_list`].
pub(super) fn has_invalid_map_list(schema: Props<'_>, names: &Names) -> bool {
    let root = FieldPath::root();
    schema.any(&mut |part| {
        let mut errors = SchemaErrors::new(names);
        validate_map_list(part, &SchemaPath::root(&root), &mut errors);
        !errors.errors.is_empty()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use apimachinery::names::Preset;
    use serde_json::json;

    #[track_caller]
    fn check(schema: Value, expected: &[&str]) {
        let names = Names::new(Preset::Svc, "example.test").unwrap();
        let root = FieldPath::new("s");
        let (props, path) = (Props::from_value(&schema).unwrap(), SchemaPath::root(&root));
        let mut errors = SchemaErrors::new(&names);
        validate_list_types(props, &path, true, &mut errors);
        validate_map_list(props, &path, &mut errors);
        assert_eq!(errors.errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{schema}");
    }

    #[test]
    fn set_items_are_scalar_or_atomic() {
        let set = |items: Value| json!({"type": "array", "x-kubernetes-list-type": "set", "items": items});
        check(set(json!({"type": "string"})), &[]);
        check(set(json!({"type": "object", "x-kubernetes-map-type": "atomic"})), &[]);
        check(
            set(json!({"type": "array", "x-kubernetes-list-type": "set"})),
            &[
                "s.items.x-svc-list-type: Invalid value: \"set\": must be atomic as item of a list with x-svc-list-type=set",
            ],
        );
        check(
            set(json!({"type": "object", "nullable": true})),
            &[
                "s.items.x-svc-map-type: Invalid value: null: must be atomic as item of a list with x-svc-list-type=set",
                "s.items.nullable: Forbidden: cannot be nullable when x-svc-list-type is set",
            ],
        );
    }

    #[test]
    fn map_keys_are_scalar_required_properties() {
        let map = |keys: Value, items: Value| json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys, "items": items});
        let items = |a: Value| json!({"type": "object", "required": ["a"], "properties": {"a": a}});
        check(map(json!(["a"]), items(json!({"type": "string"}))), &[]);
        check(
            map(json!(["a", "a", "b"]), items(json!({"type": "array", "nullable": true}))),
            &[
                "s.items.properties[a].type: Invalid value: \"object\": must be a scalar type if parent array's x-svc-list-type is map",
                "s.items.properties[a].type: Invalid value: \"object\": must be a scalar type if parent array's x-svc-list-type is map",
                "s.x-svc-list-map-keys: Invalid value: [\"a\",\"a\",\"b\"]: must not contain duplicate entries",
                "s.x-svc-list-map-keys: Invalid value: [\"a\",\"a\",\"b\"]: entries must all be names of item properties",
                "s.items.properties[a].nullable: Forbidden: this property is in x-svc-list-map-keys, so it cannot be nullable",
                "s.items.properties[a].nullable: Forbidden: this property is in x-svc-list-map-keys, so it cannot be nullable",
            ],
        );
        check(
            map(json!([]), json!({"type": "string"})),
            &[
                "s.x-svc-list-map-keys: Required value: must not be empty if x-svc-list-type is map",
                "s.items.type: Invalid value: \"string\": must be object if parent array's x-svc-list-type is map",
            ],
        );
        check(
            map(json!(["a"]), json!({"type": "object", "properties": {"a": {"type": "string"}}})),
            &[
                "s.items.properties[a].default: Required value: this property is in x-svc-list-map-keys, so it must have a default or be a required property",
            ],
        );
        check(
            json!({"type": "array", "x-kubernetes-list-map-keys": ["a"]}),
            &["s.x-svc-list-type: Required value: must be map if x-svc-list-map-keys is non-empty"],
        );
        check(
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}, "x-kubernetes-list-map-keys": ["a"]}),
            &["s.x-svc-list-type: Invalid value: \"set\": must be map if x-svc-list-map-keys is non-empty"],
        );
    }

    #[test]
    fn unknown_list_and_map_types_are_rejected() {
        for map_type in ["atomic", "granular"] {
            check(json!({"type": "object", "x-kubernetes-map-type": map_type}), &[]);
        }
        check(
            json!({"type": "object", "x-kubernetes-map-type": "foo"}),
            &["s.x-svc-map-type: Unsupported value: \"foo\": supported values: \"atomic\", \"granular\""],
        );
        check(
            json!({"type": "array", "x-kubernetes-list-type": "foo"}),
            &[
                "s.x-svc-list-type: Unsupported value: \"foo\": supported values: \"atomic\", \"set\", \"map\"",
            ],
        );
    }

    #[test]
    fn old_violations_are_found() {
        let names = Names::new(Preset::Svc, "example.test").unwrap();
        let set =
            json!({"properties": {"a": {"x-kubernetes-list-type": "set", "items": {"type": "object"}}}});
        assert!(has_set_of_granular_items(Props::from_value(&set).unwrap()));
        assert!(!has_invalid_map_list(Props::from_value(&set).unwrap(), &names));
        let nullable = json!({"allOf": [{"x-kubernetes-list-type": "set", "items": {"nullable": true}}]});
        assert!(has_invalid_map_list(Props::from_value(&nullable).unwrap(), &names));
    }
}
