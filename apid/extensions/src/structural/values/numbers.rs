//! Validation of numbers: ranges and multiples.
//!
//! # Reference
//!
//! A limit loses its fraction before it is compared with an integer, as in kube-apiserver. A multiple has a
//! relative tolerance of 1e-9, because the quotient is a float. Texts show numbers in the shortest form.
//! A format limits the value and the limits of the schema. The cause of such an error names no field.

use std::cmp::Ordering;

use apimachinery::field::FieldError;
use apimachinery::object::{Number, Value};
use expressions::double_text;

use super::super::node::Constraints;
use super::super::place::Place;
use super::Check;

/// Tolerance of a quotient that should be an integer.
const TOLERANCE: f64 = 1e-9;
/// Largest safe integer, 2^53 - 1: up to this integer a float distinguishes each integer from the next.
const INTEGER_MAX: f64 = 9_007_199_254_740_991.0;

/// Checks the range of the format, the multiple, the minimum and the maximum.
pub(super) fn check(
    check: &mut Check<'_>,
    place: &Place<'_, '_>,
    constraints: &Constraints,
    number: &Number,
) {
    check_range(check, place, constraints, number);
    let number = DecodedNumber::from_number(number);
    if let Some(factor) = constraints.multiple_of
        && !number.is_multiple(factor)
    {
        fail(check, place, "a multiple of", &number.limit_text(factor));
    }
    let (minimum, maximum) = (constraints.minimum, constraints.maximum);
    for (limit, is_exclusive, wrong_order, words) in [
        (minimum, constraints.exclusive_minimum, Ordering::Less, "greater than"),
        (maximum, constraints.exclusive_maximum, Ordering::Greater, "less than"),
    ] {
        let Some(limit) = limit else { continue };
        let order = number.compare(limit);
        if order == Some(wrong_order) || is_exclusive && order == Some(Ordering::Equal) {
            let or_equal = if is_exclusive { "" } else { " or equal to" };
            fail(check, place, &format!("{words}{or_equal}"), &number.limit_text(limit));
        }
    }
}

/// Checks that the number and the limits of the schema are in the range of the format.
fn check_range(check: &mut Check<'_>, place: &Place<'_, '_>, constraints: &Constraints, number: &Number) {
    let Some(format) = constraints.format.as_deref() else { return };
    let is_checked_within = match (format, number.as_i64()) {
        ("int32", Some(integer)) => i32::try_from(integer).is_ok(),
        ("int64", Some(_)) => true,
        _ => number.as_f64().is_some_and(|float| is_within(format, float)),
    };
    let limit_within = |limit: Option<f64>| limit.is_none_or(|limit| is_within(format, limit));
    for (is_within, subject) in [
        (is_checked_within, "Checked"),
        (limit_within(constraints.multiple_of), "MultipleOf"),
        (limit_within(constraints.minimum), "Minimum boundary"),
        (limit_within(constraints.maximum), "Maximum boundary"),
    ] {
        if !is_within {
            let ty = place.node.kind.name();
            let detail =
                format!("{subject} value must be of type {ty} with format {format} in {}", place.name());
            check.fail_without_field(place, &detail);
        }
    }
}

/// Whether a number has a representation in a format: a whole number in its range, or a float.
fn is_within(format: &str, number: f64) -> bool {
    // 2^63, the first number above the range of `int64`.
    const INT64_END: f64 = 9_223_372_036_854_775_808.0;
    match format {
        "int32" => number.fract() == 0.0 && (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&number),
        "int64" => number.fract() == 0.0 && (-INT64_END..INT64_END).contains(&number),
        "float" => number.abs() <= f64::from(f32::MAX),
        _ => true,
    }
}

/// Adds the error that a number should be, for example, `greater than` a limit.
fn fail(check: &mut Check<'_>, place: &Place<'_, '_>, words: &str, limit: &str) {
    check.fail(place, |name, path| {
        FieldError::invalid(path, place.data.to_value(), &format!("{name} in body should be {words} {limit}"))
    });
}

/// A number as kube-apiserver decodes it.
enum DecodedNumber {
    Integer(i64),
    Float(f64),
}

impl DecodedNumber {
    fn from_number(number: &Number) -> DecodedNumber {
        match number.as_i64() {
            Some(integer) => DecodedNumber::Integer(integer),
            None => DecodedNumber::Float(number.as_f64().unwrap_or(f64::NAN)),
        }
    }

    fn is_multiple(&self, factor: f64) -> bool {
        match *self {
            DecodedNumber::Integer(integer) if truncate(factor) != 0 => {
                integer.checked_rem(truncate(factor)).is_none_or(|rest| rest == 0)
            }
            #[expect(clippy::cast_precision_loss, reason = "the quotient is approximate anyway")]
            DecodedNumber::Integer(integer) => has_integer_quotient(integer as f64, factor),
            DecodedNumber::Float(float) => has_integer_quotient(float, factor),
        }
    }

    /// Order of the number and a limit; None for NaN.
    fn compare(&self, limit: f64) -> Option<Ordering> {
        match self {
            DecodedNumber::Integer(integer) => Some(integer.cmp(&truncate(limit))),
            DecodedNumber::Float(float) => float.partial_cmp(&limit),
        }
    }

    /// A limit in the text of an error.
    fn limit_text(&self, limit: f64) -> String {
        match self {
            DecodedNumber::Integer(_) if truncate(limit) != 0 || limit == 0.0 => truncate(limit).to_string(),
            _ => double_text(limit),
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "kube-apiserver drops the fraction of a limit")]
fn truncate(limit: f64) -> i64 {
    limit as i64
}

fn has_integer_quotient(number: f64, factor: f64) -> bool {
    let quotient = if factor < 1.0 { 1.0 / factor * number } else { number / factor };
    if !quotient.is_finite() || quotient.abs() > INTEGER_MAX {
        return false;
    }
    let whole = quotient.trunc();
    let distance = (quotient - whole).abs();
    distance == 0.0 || distance / (quotient.abs() + whole.abs()) < TOLERANCE
}

/// Whether a number counts as an integer: without a fraction, and exact as a float.
pub(super) fn is_integer(number: &Number) -> bool {
    number.is_i64()
        || number
            .as_f64()
            .is_some_and(|float| !number.is_u64() && float.fract() == 0.0 && float.abs() <= INTEGER_MAX)
}

/// Whether two values are equal; numbers are equal by value.
pub(super) fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a == b,
            _ => a.as_f64() == b.as_f64(),
        },
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_have_shortest_text() {
        for (float, text) in [
            (5.0, "5"),
            (0.5, "0.5"),
            (1e21, "1e+21"),
            (1.5e-7, "1.5e-07"),
            (-0.25, "-0.25"),
            (1e20, "100000000000000000000"),
        ] {
            assert_eq!(double_text(float), text);
        }
    }

    #[test]
    fn quotient_tolerates_float_errors() {
        for (number, factor, is_multiple) in [
            (1.5, 0.5, true),
            (0.7, 0.5, false),
            (0.3, 0.1, true),
            (4.35, 0.01, false),
            (7.0, 2.0, false),
            (1e300, 1e-10, false),
        ] {
            assert_eq!(has_integer_quotient(number, factor), is_multiple, "{number} by {factor}");
        }
    }
}
