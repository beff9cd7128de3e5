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

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::names::SchemaExtension;
use apimachinery::object::{Map, Object, Value};

use super::checks::{SchemaChecks, SchemaPart};
use super::props::Props;
use super::schema_path::{ErrorSink, SchemaPath};

/// Validates the defaults of a structural schema.
pub(super) fn validate_defaults(
    schema: Props<'_>,
    requires_pruned: bool,
    checks: &dyn SchemaChecks,
    path: &FieldPath,
) -> FieldErrors {
    let mut walk = DefaultsWalk { checks, requires_pruned, errors: FieldErrors::new() };
    walk.visit(schema, &SchemaPath::root(path), Position::root(schema));
    walk.errors
}

/// Whether a structural schema has a default with fields that pruning drops.
pub(super) fn has_unpruned_default(schema: Props<'_>, checks: &dyn SchemaChecks) -> bool {
    schema.any(&mut |part| {
        let default = part.get("default").filter(|default| default.is_object() || default.is_array());
        default.is_some_and(|default| checks.has_unknown_fields(SchemaPart::of_field(part), default))
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
    checks: &'a dyn SchemaChecks,
    requires_pruned: bool,
    errors: FieldErrors,
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
        let part = SchemaPart { schema: schema.0, is_resource: position.is_root };
        if position.is_in_metadata {
            let object = position.build_embedded_object(default.clone());
            if let Err(reason) = self.checks.check_metadata(position.embedded.0, object) {
                let detail = format!("must result in valid metadata: {reason}");
                self.errors.add(path, |path| FieldError::invalid(path, default.clone(), &detail));
                return;
            }
        } else if self.requires_pruned && self.checks.has_unknown_fields(part, default) {
            let detail = "must not have unknown fields";
            self.errors.add(path, |path| FieldError::invalid(path, default.clone(), detail));
        }
        self.errors.extend(self.checks.validate_value(part, default, &path.render()));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::checks::InvalidMetadata;
    use super::*;
    use crate::structural::StoredRules;

    /// Checks that compare types only.
    struct TypeChecks;

    impl SchemaChecks for TypeChecks {
        fn has_unknown_fields(&self, part: SchemaPart<'_>, value: &Value) -> bool {
            let known = part.schema.get("properties").and_then(Value::as_object);
            let mut fields = value.as_object().into_iter().flatten();
            fields.any(|(field, _)| !known.is_some_and(|known| known.contains_key(field)))
        }

        fn validate_value(&self, part: SchemaPart<'_>, value: &Value, path: &FieldPath) -> FieldErrors {
            let is_text = part.schema.get("type").and_then(Value::as_str) == Some("string");
            let error = FieldError::type_invalid(path, value.clone(), "type");
            (is_text != value.is_string()).then_some(error).into_iter().collect()
        }

        fn check_metadata(
            &self,
            _embedded: &Map<String, Value>,
            object: Object,
        ) -> Result<(), InvalidMetadata> {
            let is_valid = object.name() != "bad" && object.kind() == "Validation";
            let path = FieldPath::new("metadata.name");
            let error = || InvalidMetadata::Fields(FieldError::required(&path, "").into());
            if is_valid { Ok(()) } else { Err(error()) }
        }

        fn stored_rules(&self, _schema: &Map<String, Value>) -> StoredRules {
            StoredRules::default()
        }

        fn validate_expressions(
            &self,
            _schema: &Map<String, Value>,
            _stored: &StoredRules,
            _path: &FieldPath,
            _is_skipped: &dyn Fn(&FieldPath) -> bool,
        ) -> FieldErrors {
            FieldErrors::new()
        }

        fn is_known_format(&self, _format: &str) -> bool {
            true
        }
    }

    #[track_caller]
    fn check(schema: Value, expected: &[&str]) {
        let errors =
            validate_defaults(Props::from_value(&schema).unwrap(), true, &TypeChecks, &FieldPath::new("s"));
        assert_eq!(errors.iter().map(ToString::to_string).collect::<Vec<_>>(), expected, "{schema}");
    }

    #[test]
    fn defaults_are_valid_and_pruned() {
        let schema_with = |property: Value| json!({"type": "object", "properties": {"x": property}});
        check(schema_with(json!({"type": "string", "default": "a"})), &[]);
        check(
            schema_with(json!({"type": "string", "default": 1})),
            &["s.properties[x].default: Invalid value: 1: type"],
        );
        check(
            schema_with(json!({"type": "object", "default": {"y": 1}})),
            &["s.properties[x].default: Invalid value: {\"y\":1}: must not have unknown fields"],
        );
        let items = json!({"type": "object", "properties": {"a": {"type": "string", "default": 1}}});
        check(
            schema_with(json!({"type": "array", "items": items})),
            &["s.properties[x].items.properties[a].default: Invalid value: 1: type"],
        );
        let unpruned = schema_with(json!({"type": "object", "default": {"y": 1}}));
        assert!(has_unpruned_default(Props::from_value(&unpruned).unwrap(), &TypeChecks));
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
