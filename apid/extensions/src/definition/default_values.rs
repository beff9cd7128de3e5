//! Rules for default values.
//!
//! # Contract
//!
//! A default must be valid under its own schema and have no fields that pruning drops. A default inside the
//! metadata of an embedded object is validated as a part of a whole object. Defaults below
//! `additionalProperties` have no rules.
//!
//! # Invariants
//!
//! INVARIANT (bounded work): a part of a schema compiles once for each default at the part or above it.

use apimachinery::field::{FieldError, FieldErrors, FieldPath, aggregate};
use apimachinery::names::SchemaExtension;
use apimachinery::object::{Map, Object, Value};

use super::checks::{Environment, compile, has_unknown_fields};
use super::props::Props;
use super::schema_path::{SchemaErrors, SchemaPath};

/// Validates the defaults of a structural schema.
pub(super) fn validate_defaults(
    schema: Props<'_>,
    requires_pruned: bool,
    environment: Environment<'_>,
    path: &FieldPath,
) -> FieldErrors {
    let errors = SchemaErrors::new(environment.names);
    let mut walk = DefaultsWalk { environment, requires_pruned, errors };
    walk.visit(schema, &SchemaPath::root(path), Position::root(schema));
    walk.errors.errors
}

/// Whether a structural schema has a default with fields that pruning drops.
pub(super) fn has_unpruned_default(schema: Props<'_>) -> bool {
    schema.any(&mut |part| {
        let default = part.get("default").filter(|default| default.is_object() || default.is_array());
        let compiled = default.and_then(|default| Some((default, compile(part, false)?)));
        compiled.is_some_and(|(default, schema)| has_unknown_fields(&schema, default))
    })
}

/// Position of a part below the closest embedded object.
#[derive(Clone, Copy)]
struct Position<'a> {
    /// The schema of the embedded object.
    embedded: Props<'a>,
    /// The last step of the path from the embedded object; each step knows the one before.
    steps: Option<&'a PathStep<'a>>,
    /// Whether the part describes `apiVersion`, `kind` or `metadata` of the embedded object.
    is_in_metadata: bool,
    is_root: bool,
}

/// One step of the path from the embedded object to a part: to a field, or without a field to a list item.
struct PathStep<'a> {
    outer: Option<&'a PathStep<'a>>,
    field: Option<&'a str>,
}

impl<'a> Position<'a> {
    fn root(schema: Props<'a>) -> Self {
        Position { embedded: schema, steps: None, is_in_metadata: false, is_root: true }
    }

    /// Builds an embedded object that has this value at the position, an `apiVersion` and a `kind`, and
    /// nothing else.
    fn build_embedded_object(self, value: Value) -> Object {
        let mut value = value;
        let mut step = self.steps;
        while let Some(inner) = step {
            value = match inner.field {
                Some(field) => Value::Object(Map::from_iter([(field.to_owned(), value)])),
                None => Value::Array(vec![value]),
            };
            step = inner.outer;
        }
        let mut object = Object::from_value(value).unwrap_or_default();
        for (field, text) in [("apiVersion", "validation/v1"), ("kind", "Validation")] {
            if object.get(field).is_none() {
                object.set(field, text);
            }
        }
        object
    }
}

struct DefaultsWalk<'a> {
    environment: Environment<'a>,
    requires_pruned: bool,
    errors: SchemaErrors<'a>,
}

impl DefaultsWalk<'_> {
    fn visit(&mut self, schema: Props<'_>, path: &SchemaPath<'_>, position: Position<'_>) {
        let is_embedded = position.is_root || schema.has_extension(SchemaExtension::EmbeddedResource);
        let position = if is_embedded {
            Position { embedded: schema, steps: None, is_in_metadata: false, ..position }
        } else {
            position
        };
        if let Some(default) = schema.get("default") {
            self.check(schema, default, &path.field("default"), position);
        }
        if let Some(items) = schema.item_schema() {
            let steps = PathStep { outer: position.steps, field: None };
            let position = Position { steps: Some(&steps), is_root: false, ..position };
            self.visit(items, &path.field("items"), position);
        }
        let properties = path.field("properties");
        for (name, property) in schema.schemas("properties") {
            let steps = PathStep { outer: position.steps, field: Some(name) };
            let begins_metadata = is_embedded && matches!(name, "metadata" | "apiVersion" | "kind");
            let position = Position {
                steps: Some(&steps),
                is_in_metadata: position.is_in_metadata || begins_metadata,
                is_root: false,
                ..position
            };
            self.visit(property, &properties.key(name), position);
        }
    }

    fn check(&mut self, schema: Props<'_>, default: &Value, path: &SchemaPath<'_>, position: Position<'_>) {
        let Some(compiled) = compile(schema, position.is_root) else { return };
        if position.is_in_metadata {
            let object = position.build_embedded_object(default.clone());
            if let Some(reason) = self.metadata_error(position.embedded, object) {
                let detail = format!("must result in valid metadata: {reason}");
                self.errors.add(path, |path| FieldError::invalid(path, default.clone(), &detail));
                return;
            }
        } else if self.requires_pruned && has_unknown_fields(&compiled, default) {
            let detail = "must not have unknown fields";
            self.errors.add(path, |path| FieldError::invalid(path, default.clone(), detail));
        }
        let validation = compiled.validate_value(default, &path.render(), self.environment.metadata);
        self.errors.errors.extend(validation.errors);
    }

    /// The reason why the type or the metadata of an object is invalid under the schema of an embedded object.
    fn metadata_error(&self, embedded: Props<'_>, mut object: Object) -> Option<String> {
        if let Err(error) = compile(embedded, true)?.conform(&mut object) {
            return Some(error.to_string());
        }
        let errors = (self.environment.metadata)(object.meta()?, &FieldPath::new("metadata"));
        (!errors.is_empty()).then(|| aggregate(&errors))
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::{Names, Preset};
    use serde_json::json;

    use super::*;

    /// Rules for metadata, which are in another crate: the name `bad` is invalid.
    fn metadata_rules(metadata: &Map<String, Value>, path: &FieldPath) -> FieldErrors {
        let is_bad = metadata.get("name").and_then(Value::as_str) == Some("bad");
        is_bad.then(|| FieldError::required(&path.child("name"), "")).into_iter().collect()
    }

    #[track_caller]
    fn check(schema: Value, expected: &[&str]) {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let environment = Environment { names: &names, metadata: &metadata_rules };
        let props = Props::from_value(&schema).unwrap();
        let errors = validate_defaults(props, true, environment, &FieldPath::new("s"));
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{schema}");
    }

    #[test]
    fn defaults_are_valid_and_pruned() {
        let schema_with = |property: Value| json!({"type": "object", "properties": {"x": property}});
        check(schema_with(json!({"type": "string", "default": "a"})), &[]);
        check(
            schema_with(json!({"type": "string", "default": 1})),
            &[
                "s.properties[x].default: Invalid value: \"integer\":  in body must be of type string: \"integer\"",
            ],
        );
        check(
            schema_with(json!({"type": "object", "default": {"y": 1}})),
            &["s.properties[x].default: Invalid value: {\"y\":1}: must not have unknown fields"],
        );
        let items = json!({"type": "object", "properties": {"a": {"type": "string", "default": 1}}});
        check(
            schema_with(json!({"type": "array", "items": items})),
            &[
                "s.properties[x].items.properties[a].default: Invalid value: \"integer\":  in body must be of type string: \"integer\"",
            ],
        );
        let unpruned = schema_with(json!({"type": "object", "default": {"y": 1}}));
        assert!(has_unpruned_default(Props::from_value(&unpruned).unwrap()));
    }

    #[test]
    fn default_in_embedded_metadata_is_validated_in_whole_object() {
        let schema_with_name = |name: &str| {
            let metadata = json!({"properties": {"name": {"type": "string", "default": name}}});
            let embedded =
                json!({"x-kubernetes-embedded-resource": true, "properties": {"metadata": metadata}});
            json!({"type": "object", "properties": {"e": embedded}})
        };
        check(schema_with_name("good"), &[]);
        check(
            schema_with_name("bad"),
            &[
                "s.properties[e].properties[metadata].properties[name].default: Invalid value: \"bad\": must result in valid metadata: metadata.name: Required value",
            ],
        );
    }
}
