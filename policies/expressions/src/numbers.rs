//! Conversion between integers and floating-point numbers.

use crate::error::EvalError;

/// Exclusive upper limits of the integer types as floating-point numbers.
const INT_LIMIT: f64 = 9_223_372_036_854_775_808.0;
const UINT_LIMIT: f64 = 18_446_744_073_709_551_616.0;

/// Nearest floating-point number of an integer.
#[expect(clippy::cast_precision_loss, reason = "the conversion rounds to the nearest value")]
pub(crate) fn int_to_double(i: i64) -> f64 {
    i as f64
}

/// Nearest floating-point number of an unsigned integer.
#[expect(clippy::cast_precision_loss, reason = "the conversion rounds to the nearest value")]
pub(crate) fn uint_to_double(u: u64) -> f64 {
    u as f64
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

/// Parses a floating-point number in decimal or hexadecimal notation, as Go does; None for another text and for
/// a number beyond the range.
pub(crate) fn parse_double(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    if let Some(digits) = unsigned.strip_prefix("0x").or_else(|| unsigned.strip_prefix("0X")) {
        let magnitude = parse_hexadecimal(digits)?;
        return Some(if text.starts_with('-') { -magnitude } else { magnitude });
    }
    let number: f64 = text.parse().ok()?;
    let is_named = unsigned.starts_with(['i', 'I']);
    (number.is_finite() || number.is_nan() || is_named).then_some(number)
}

/// Parses `1.8p-3` after `0x`: hexadecimal digits and a required binary exponent.
fn parse_hexadecimal(text: &str) -> Option<f64> {
    let (digits, exponent) = text.split_once(['p', 'P'])?;
    let exponent: i32 = exponent.parse().ok()?;
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let mut mantissa = 0.0_f64;
    for c in whole.chars().chain(fraction.chars()) {
        mantissa = mantissa.mul_add(16.0, f64::from(c.to_digit(16)?));
    }
    let shift = exponent.checked_sub(i32::try_from(fraction.len()).ok()?.checked_mul(4)?)?;
    let number = mantissa * 2.0_f64.powi(shift.max(-1_022)) * 2.0_f64.powi((shift + 1_022).min(0));
    number.is_finite().then_some(number)
}
