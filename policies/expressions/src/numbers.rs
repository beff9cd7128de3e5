//! Exact comparison and conversion between integers and floating-point numbers.

use std::cmp::Ordering;

use crate::error::EvalError;

/// Exclusive upper limits of the integer types as floating-point numbers.
const INT_LIMIT: f64 = 9_223_372_036_854_775_808.0;
const UINT_LIMIT: f64 = 18_446_744_073_709_551_616.0;

/// Compares an integer with a floating-point number without rounding.
pub(crate) fn compare_exact(a: i128, b: f64) -> Option<Ordering> {
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
pub(crate) fn double_to_int(d: f64) -> Result<i64, EvalError> {
    if d > -INT_LIMIT && d < INT_LIMIT {
        #[expect(clippy::cast_possible_truncation, reason = "the bounds were checked")]
        return Ok(d as i64);
    }
    Err(EvalError::failed("integer overflow"))
}

/// Unsigned integer part of a floating-point number, if it fits into 64 bits.
pub(crate) fn double_to_uint(d: f64) -> Result<u64, EvalError> {
    if (0.0..UINT_LIMIT).contains(&d) {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "the bounds were checked"
        )]
        return Ok(d as u64);
    }
    Err(EvalError::failed("unsigned integer overflow"))
}
