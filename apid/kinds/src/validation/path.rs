//! Rules for paths in file systems.

use apimachinery::field::FieldErrors;

use super::Field;

/// Reports an absolute path, or a path with a segment `..`.
pub(crate) fn check_local_descending(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if field.text().starts_with('/') {
        errors.push(field.invalid("must be a relative path"));
    }
    check_backsteps(field, errors);
}

/// Reports the same paths as [`check_local_descending`], and each path that begins with `..`.
pub(crate) fn check_local_non_reserved(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    check_local_descending(field, errors);
    // A segment `..` at the beginning is reported above.
    if field.text().starts_with("..") && !field.text().starts_with("../") {
        errors.push(field.invalid("must not start with '..'"));
    }
}

/// Reports a segment `..`.
pub(crate) fn check_backsteps(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if field.text().split(['/', '\\']).any(|segment| segment == "..") {
        errors.push(field.invalid("must not contain '..'"));
    }
}
