//! Paths of the subresource `scale` in a version of a definition.
//!
//! # Reference
//!
//! kube-apiserver reads the values as its accessors of untyped objects do. The errors have the texts of these
//! accessors and show Go types.

use apimachinery::field::{FieldError, FieldErrors, FieldPath, format_go_value, shorten};
use apimachinery::object::Object;
use serde_json::{Map, Value};

use crate::table::cell::PathReader;

/// Paths to the values of a Scale in objects of a custom kind. A path is a list of field names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScalePaths {
    /// Path to the desired number of replicas.
    pub spec_replicas: Vec<String>,
    /// Path to the actual number of replicas.
    pub status_replicas: Vec<String>,
    /// Path to the serialized label selector; None if the definition has no such path.
    pub label_selector: Option<Vec<String>>,
}

impl ScalePaths {
    /// Reads the paths of a version: simple JSONPaths like `.spec.replicas`. None without the subresource.
    pub(super) fn of_version(version: &Value) -> Option<Self> {
        let scale = version.find("subresources.scale").filter(|scale| scale.is_object())?;
        let path = |field: &str| {
            let path = scale.text(field);
            path.split('.').filter(|name| !name.is_empty()).map(str::to_owned).collect::<Vec<_>>()
        };
        let label_selector = Some(path("labelSelectorPath")).filter(|path| !path.is_empty());
        Some(ScalePaths {
            spec_replicas: path("specReplicasPath"),
            status_replicas: path("statusReplicasPath"),
            label_selector,
        })
    }

    /// Checks the desired number of replicas.
    pub(super) fn validate_spec(&self, object: &Object) -> Option<FieldError> {
        check_replicas(object, &self.spec_replicas)
    }

    /// Checks the actual number of replicas and the label selector.
    pub(super) fn validate_status(&self, object: &Object) -> FieldErrors {
        let selector = self.label_selector.as_deref().and_then(|path| check_text(object, path));
        check_replicas(object, &self.status_replicas).into_iter().chain(selector).collect()
    }
}

/// The text of a path with a leading dot, as the definition writes it.
fn path_text(path: &[String]) -> String {
    format!(".{}", path.join("."))
}

/// Checks that a number of replicas is absent, or a 32-bit integer that is not negative.
fn check_replicas(object: &Object, path: &[String]) -> Option<FieldError> {
    let (value, detail) = match read(&object.0, path) {
        Err(detail) => (0, detail),
        Ok(None) => return None,
        Ok(Some(value)) => match value.as_i64() {
            None => (0, type_error(path, value, "int64")),
            Some(replicas) if replicas < 0 => (replicas, "should be a non-negative integer".to_owned()),
            Some(replicas) if replicas > i64::from(i32::MAX) => {
                (replicas, format!("should be less than or equal to {}", i32::MAX))
            }
            Some(_) => return None,
        },
    };
    Some(FieldError::invalid(&FieldPath::new(&path_text(path)), value, &detail))
}

/// Checks that a label selector is absent or a text.
fn check_text(object: &Object, path: &[String]) -> Option<FieldError> {
    let detail = match read(&object.0, path) {
        Err(detail) => detail,
        Ok(None | Some(Value::String(_))) => return None,
        Ok(Some(value)) => type_error(path, value, "string"),
    };
    Some(FieldError::invalid(&FieldPath::new(&path_text(path)), "", &detail))
}

/// The value at a path; None if a field on the path is absent or if a parent of the value is null.
///
/// # Errors
///
/// A parent of the value is no object.
fn read<'a>(fields: &'a Map<String, Value>, path: &[String]) -> Result<Option<&'a Value>, String> {
    let Some((first, rest)) = path.split_first() else { return Ok(None) };
    let mut value = fields.get(first);
    for (depth, name) in (2..).zip(rest) {
        value = match value {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Object(fields)) => fields.get(name),
            Some(other) => {
                let parent = path.get(..depth).unwrap_or(path);
                return Err(type_error(parent, other, "map[string]interface{}"));
            }
        };
    }
    Ok(value)
}

fn type_error(path: &[String], value: &Value, expected: &str) -> String {
    let ty = match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_i64() => "int64",
        Value::Number(_) => "float64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    };
    let (path, text) = (path_text(path), format_go_value(value));
    format!("{path} accessor error: {} is of the type {ty}, expected {expected}", shorten(&text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_for_scale_are_integers_in_range_and_texts() {
        let paths = ScalePaths {
            spec_replicas: vec!["spec".to_owned(), "size".to_owned()],
            status_replicas: vec!["status".to_owned(), "size".to_owned()],
            label_selector: Some(vec!["status".to_owned(), "selector".to_owned()]),
        };
        for (object, causes) in [
            (json!({"spec": {"size": 3}, "status": {"size": 2, "selector": "a=b"}}), &[][..]),
            (json!({"spec": null, "status": {}}), &[]),
            (
                json!({"spec": {"size": -1}, "status": {"size": 2_147_483_648_i64}}),
                &[
                    ".spec.size: Invalid value: -1: should be a non-negative integer",
                    ".status.size: Invalid value: 2147483648: should be less than or equal to 2147483647",
                ],
            ),
            (
                json!({"spec": {"size": {"b": [1], "a": null}}, "status": {"size": null, "selector": 7}}),
                &[
                    ".spec.size: Invalid value: 0: .spec.size accessor error: map[a:<nil> b:[1]] is of the type \
                     map[string]interface {}, expected int64",
                    ".status.size: Invalid value: 0: .status.size accessor error: <nil> is of the type <nil>, expected \
                     int64",
                    ".status.selector: Invalid value: \"\": .status.selector accessor error: 7 is of the type int64, \
                     expected string",
                ],
            ),
            (
                json!({"spec": "text", "status": {"size": 1.5}}),
                &[
                    ".spec.size: Invalid value: 0: .spec.size accessor error: text is of the type string, expected \
                     map[string]interface{}",
                    ".status.size: Invalid value: 0: .status.size accessor error: 1.5 is of the type float64, expected \
                     int64",
                ],
            ),
        ] {
            let object = Object::from_value(object).unwrap();
            let spec_error = paths.validate_spec(&object).map(|error| error.to_string());
            let status_errors = paths.validate_status(&object);
            let found: Vec<String> =
                spec_error.into_iter().chain(status_errors.iter().map(ToString::to_string)).collect();
            assert_eq!(found, causes);
        }
    }
}
