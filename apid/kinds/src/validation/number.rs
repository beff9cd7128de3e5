//! Rules for whole numbers.

use apimachinery::field::FieldErrors;
use schema::tags;

use super::Field;

/// Reports a negative number.
pub(crate) fn check_not_negative(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if field.integer().is_some_and(|number| number < 0) {
        errors.push(field.invalid("must be greater than or equal to 0"));
    }
}

/// Reports a negative number in a field whose validation tag `minimum` states the same rule.
pub(crate) fn check_tagged_minimum(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if field.integer().is_some_and(|number| number < 0) {
        errors.push(field.invalid("must be greater than or equal to 0").with_tag(tags::MINIMUM));
    }
}

/// Reports a number that is not positive.
pub(crate) fn check_positive(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if field.integer().is_some_and(|number| number <= 0) {
        errors.push(field.invalid("must be greater than 0"));
    }
}

/// Reports a number outside a range, with the bounds in the message.
pub(crate) fn check_range(field: &Field<'_, '_>, min: i64, max: i64, errors: &mut FieldErrors) {
    if field.integer().is_some_and(|number| !(min..=max).contains(&number)) {
        errors.push(field.invalid(&format!("must be between {min} and {max}, inclusive")));
    }
}
