//! Shared immutability rule of ConfigMaps and Secrets: `immutable: true`.

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;
use serde_json::Value;

/// Maximum total size, in bytes, of all values of a ConfigMap or Secret (requirements D-LIM).
pub(super) const DATA_MAX: usize = 1024 * 1024;

/// Validates an update of a possibly immutable object.
/// `immutable` cannot change from true, and `fields` of an immutable object cannot change.
pub(super) fn validate_update(new: &Object, old: &Object, fields: &[&str]) -> FieldErrors {
    let is_immutable = |object: &Object| object.get("immutable") == Some(&Value::Bool(true));
    if !is_immutable(old) {
        return FieldErrors::new();
    }
    let error = |field: &str| {
        FieldError::forbidden(&FieldPath::new(field), "field is immutable when `immutable` is set")
    };
    let mut errors = FieldErrors::new();
    if !is_immutable(new) {
        errors.push(error("immutable"));
    }
    errors.extend(fields.iter().filter(|field| new.get(field) != old.get(field)).map(|field| error(field)));
    errors
}
