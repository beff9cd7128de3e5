//! Declarative validation: the rules that the validation tags of the type table state.
//!
//! # Contract
//!
//! [`Schema::validate_tags`] validates a conformed object against the tags of its type and of the types of
//! its fields. Each error carries the name of its tag, so that it can be compared with the error of a
//! hand-written rule.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::{Map, Object, Value};

use crate::table::{Schema, SchemaField, Type};
use crate::validation_tags::ValidationTag;
use crate::validation_tags::tags::{MINIMUM, REQUIRED};

impl Schema {
    /// Validates a conformed object against the validation tags of its type and of the types of its fields.
    pub fn validate_tags(&'static self, object: &Object) -> FieldErrors {
        let mut errors = FieldErrors::new();
        self.validate_fields(&object.0, &FieldPath::root(), &mut errors);
        errors
    }

    fn validate_fields(&'static self, map: &Map<String, Value>, path: &FieldPath, errors: &mut FieldErrors) {
        for field in &self.fields {
            let value = map.get(field.name).filter(|value| !value.is_null());
            if value.is_none() && field.validation_tags.is_empty() {
                continue;
            }
            let path = path.child(field.name);
            field.validate(value, &path, errors);
            if let Some(value) = value {
                field.ty.validate_value(value, &path, errors);
            }
        }
    }
}

impl SchemaField {
    fn validate(&self, value: Option<&Value>, path: &FieldPath, errors: &mut FieldErrors) {
        if value.is_none() && self.validation_tags.contains(&ValidationTag::Required) {
            errors.push(FieldError::required(path, "").with_tag(REQUIRED));
        }
        let Some(number) = value.and_then(Value::as_i64) else { return };
        for tag in &self.validation_tags {
            if let ValidationTag::Minimum(minimum) = tag
                && number < *minimum
            {
                let text = format!("must be greater than or equal to {minimum}");
                errors.push(FieldError::invalid(path, number, &text).with_tag(MINIMUM));
            }
        }
    }
}

impl Type {
    /// Validates the structs inside a value of this type.
    fn validate_value(&self, value: &Value, path: &FieldPath, errors: &mut FieldErrors) {
        match (self, value) {
            (Type::Struct(inner), Value::Object(map)) => {
                if let Some(schema) = inner.schema() {
                    schema.validate_fields(map, path, errors);
                }
            }
            (Type::Pointer(inner), _) => inner.validate_value(value, path, errors),
            (Type::List(inner), Value::Array(items)) if inner.has_parts() => {
                for (index, item) in items.iter().enumerate() {
                    inner.validate_value(item, &path.index(index), errors);
                }
            }
            (Type::Map(inner), Value::Object(map)) if inner.has_parts() => {
                for (key, item) in map {
                    inner.validate_value(item, &path.key(key), errors);
                }
            }
            _ => {}
        }
    }

    /// Whether values of this type can contain a struct.
    fn has_parts(&self) -> bool {
        match self {
            Type::Struct(_) => true,
            Type::Pointer(inner) | Type::List(inner) | Type::Map(inner) => inner.has_parts(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn validators_follow_from_tags_of_the_type_table() {
        let schema = Schema::of("core/v1.ReplicationController").unwrap();
        for (spec, expected) in [
            (json!({"replicas": 0, "minReadySeconds": 0}), &[][..]),
            (
                json!({"replicas": -1, "minReadySeconds": -2}),
                &[
                    ("spec.minReadySeconds: Invalid value: -2: must be greater than or equal to 0", MINIMUM),
                    ("spec.replicas: Invalid value: -1: must be greater than or equal to 0", MINIMUM),
                ],
            ),
            (json!({"selector": {"a": "b"}}), &[("spec.replicas: Required value", REQUIRED)]),
            (json!({"replicas": null}), &[("spec.replicas: Required value", REQUIRED)]),
        ] {
            let object = Object::from_value(json!({"spec": spec})).unwrap();
            let errors = schema.validate_tags(&object);
            let found: Vec<(String, &str)> =
                errors.iter().map(|error| (error.to_string(), error.tag().unwrap())).collect();
            let expected: Vec<(String, &str)> =
                expected.iter().map(|(text, tag)| ((*text).to_owned(), *tag)).collect();
            assert_eq!(found, expected, "{object:?}");
        }
    }
}
