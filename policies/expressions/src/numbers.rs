//! Arithmetic, comparison across number types, and conversions between them.

use std::cmp::Ordering;

use crate::error::EvalError;
use crate::value::Value;

/// Exclusive upper limits of the integer types as floating-point numbers.
const INT_LIMIT: f64 = 9_223_372_036_854_775_808.0;
const UINT_LIMIT: f64 = 18_446_744_073_709_551_616.0;

/// Compares two numbers of any types; `None` if one is not a number, `Some(None)` for NaN.
pub(crate) fn compare(a: &Value<'_>, b: &Value<'_>) -> Option<Option<Ordering>> {
    Some(match (a, b) {
        (Value::Int(a), Value::Int(b)) => Some(a.cmp(b)),
        (Value::Uint(a), Value::Uint(b)) => Some(a.cmp(b)),
        (Value::Double(a), Value::Double(b)) => a.partial_cmp(b),
        (Value::Int(a), Value::Uint(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Value::Uint(a), Value::Int(b)) => Some(i128::from(*a).cmp(&i128::from(*b))),
        (Value::Int(a), Value::Double(b)) => compare_exact(i128::from(*a), *b),
        (Value::Uint(a), Value::Double(b)) => compare_exact(i128::from(*a), *b),
        (Value::Double(a), Value::Int(b)) => compare_exact(i128::from(*b), *a).map(Ordering::reverse),
        (Value::Double(a), Value::Uint(b)) => compare_exact(i128::from(*b), *a).map(Ordering::reverse),
        _ => return None,
    })
}

/// Compares an integer with a floating-point number without rounding.
fn compare_exact(a: i128, b: f64) -> Option<Ordering> {
    if b.is_nan() {
        None
    } else if b >= UINT_LIMIT {
        Some(Ordering::Less)
    } else if b < -INT_LIMIT {
        Some(Ordering::Greater)
    } else {
        let whole = b.trunc();
        #[expect(clippy::cast_possible_truncation, reason = "the bounds were checked")]
        let order = a.cmp(&(whole as i128));
        Some(order.then_with(|| 0.0_f64.partial_cmp(&(b - whole)).unwrap_or(Ordering::Equal)))
    }
}

/// Integer value of a floating-point number, if it is integral and in the range of any integer type.
pub(crate) fn to_integer_if_integral(d: f64) -> Option<i128> {
    let in_range = d > -INT_LIMIT - 1.0 && d < UINT_LIMIT && d.fract() == 0.0;
    #[expect(clippy::cast_possible_truncation, reason = "the bounds were checked")]
    in_range.then_some(d as i128)
}

/// Integer part of a floating-point number, if it fits into 64 bits.
pub(crate) fn double_to_int<'a>(d: f64) -> Result<Value<'a>, EvalError> {
    if d > -INT_LIMIT && d < INT_LIMIT {
        #[expect(clippy::cast_possible_truncation, reason = "the bounds were checked")]
        return Ok(Value::Int(d as i64));
    }
    Err(EvalError::failed("integer overflow"))
}

/// Unsigned integer part of a floating-point number, if it fits into 64 bits.
pub(crate) fn double_to_uint<'a>(d: f64) -> Result<Value<'a>, EvalError> {
    if (0.0..UINT_LIMIT).contains(&d) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the bounds were checked"
        )]
        return Ok(Value::Uint(d as u64));
    }
    Err(EvalError::failed("unsigned integer overflow"))
}

/// Arithmetic operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Add,
}

/// Computes `a op b` for two numbers of one type; `None` for other values.
pub(crate) fn apply<'a>(op: Operator, a: &Value<'a>, b: &Value<'a>) -> Option<Result<Value<'a>, EvalError>> {
    let checked_int = |v: Option<i64>| v.map(Value::Int).ok_or_else(|| EvalError::failed("integer overflow"));
    let checked_uint =
        |v: Option<u64>| v.map(Value::Uint).ok_or_else(|| EvalError::failed("unsigned integer overflow"));
    let is_zero_divisor = matches!(b, Value::Int(0) | Value::Uint(0));
    if is_zero_divisor && std::mem::discriminant(a) == std::mem::discriminant(b) {
        match op {
            Operator::Divide => return Some(Err(EvalError::failed("division by zero"))),
            Operator::Modulo => return Some(Err(EvalError::failed("modulus by zero"))),
            _ => {}
        }
    }
    Some(match (a, b) {
        (Value::Int(a), Value::Int(b)) => checked_int(match op {
            Operator::Add => a.checked_add(*b),
            Operator::Subtract => a.checked_sub(*b),
            Operator::Multiply => a.checked_mul(*b),
            Operator::Divide => a.checked_div(*b),
            Operator::Modulo => a.checked_rem(*b),
        }),
        (Value::Uint(a), Value::Uint(b)) => checked_uint(match op {
            Operator::Add => a.checked_add(*b),
            Operator::Subtract => a.checked_sub(*b),
            Operator::Multiply => a.checked_mul(*b),
            Operator::Divide => a.checked_div(*b),
            Operator::Modulo => a.checked_rem(*b),
        }),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(match op {
            Operator::Add => a + b,
            Operator::Subtract => a - b,
            Operator::Multiply => a * b,
            Operator::Divide => a / b,
            Operator::Modulo => return None,
        })),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_comparison_is_exact_across_types() {
        let order = |a: Value<'static>, b: Value<'static>| compare(&a, &b);
        let cases = [
            (Value::Int(1), Value::Double(1.5), Some(Ordering::Less)),
            (Value::Int(-1), Value::Double(-1.5), Some(Ordering::Greater)),
            (Value::Int(i64::MAX), Value::Double(9.3e18), Some(Ordering::Less)),
            (Value::Int(i64::MAX), Value::Double(INT_LIMIT), Some(Ordering::Less)),
            (
                Value::Int(9_007_199_254_740_993),
                Value::Double(9_007_199_254_740_992.0),
                Some(Ordering::Greater),
            ),
            (Value::Uint(u64::MAX), Value::Int(-1), Some(Ordering::Greater)),
            (Value::Double(2.0), Value::Uint(2), Some(Ordering::Equal)),
            (Value::Double(f64::NAN), Value::Int(0), None),
            (Value::Double(f64::NEG_INFINITY), Value::Int(i64::MIN), Some(Ordering::Less)),
        ];
        for (a, b, expected) in cases {
            assert_eq!(order(a.clone(), b.clone()), Some(expected), "{a:?} {b:?}");
        }
        assert_eq!(order(Value::Int(1), Value::Bool(true)), None);
    }
}
