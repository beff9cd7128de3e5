//! Canonical stored forms of numbers, bytes and times.

use apimachinery::object::{Number, Value, byte};
use apimachinery::time;
use base64::Engine as _;
use base64::alphabet::STANDARD as ALPHABET;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};

use crate::error::TypeError;
use crate::table::Type;
use crate::time_error;
use crate::value_path::{Path, PathStep};

/// Base64 decoding that accepts non-zero trailing bits, as kube-apiserver does.
const LENIENT: GeneralPurpose =
    GeneralPurpose::new(&ALPHABET, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));

/// The start of the zero time (the first second of year 1), which means no time.
const ZERO_TIME: &str = "0001-01-01T00:00:00";

/// The integer value of a number without fraction and exponent.
pub(crate) fn integer(number: &Number) -> Option<i64> {
    let negative_zero = || number.as_f64().filter(|f| *f == 0.0 && f.is_sign_negative()).map(|_| 0);
    number.as_i64().or_else(negative_zero)
}

/// Replaces a float without a fraction by an integer.
pub(crate) fn shorten_float(number: &mut Number) {
    /// Above this value, floats cannot represent every integer.
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if number.is_f64()
        && let Some(float) = number.as_f64().filter(|f| f.fract() == 0.0 && f.abs() <= EXACT)
    {
        #[expect(clippy::cast_possible_truncation, reason = "a whole number of at most 53 bits")]
        let whole = float as i64;
        *number = Number::from(whole);
    }
}

/// Normalizes base64: removes line ends and clears non-zero trailing bits.
pub(crate) fn base64(text: &mut String, path: &Path<'_>) -> Result<(), TypeError> {
    if STANDARD.decode(text.as_bytes()).is_ok() {
        return Ok(());
    }
    let bare: String = text.chars().filter(|c| !matches!(c, '\r' | '\n')).collect();
    match LENIENT.decode(bare) {
        Ok(bytes) => *text = STANDARD.encode(bytes),
        Err(_) => {
            let at = invalid_base64_position(text);
            return Err(path.malformed(format!("illegal base64 data at input byte {at}")));
        }
    }
    Ok(())
}

/// The base64 form of bytes that are sent as an array of numbers, which the JSON decoder of Go accepts.
pub(crate) fn base64_of_numbers(items: &[Value], path: &Path<'_>) -> Result<String, TypeError> {
    let byte = |(position, item): (usize, &Value)| {
        let path = Path { parent: Some(path), step: PathStep::Index(position) };
        byte(item).ok_or_else(|| path.not_a_byte(item))
    };
    Ok(STANDARD.encode(items.iter().enumerate().map(byte).collect::<Result<Vec<u8>, _>>()?))
}

/// Position of the first invalid byte of a base64 text, as Go reports it.
///
/// The byte is outside the alphabet, follows misplaced padding, or begins an incomplete group.
fn invalid_base64_position(text: &str) -> usize {
    let is_digit = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let mut bytes = text.bytes().enumerate().filter(|(_, byte)| !matches!(byte, b'\r' | b'\n'));
    let mut digits = 0;
    while let Some((at, byte)) = bytes.next() {
        if is_digit(byte) {
            digits = (digits + 1) % 4;
            continue;
        }
        // Padding completes a group of two or three digits and ends the text.
        if byte != b'=' || digits < 2 {
            return at;
        }
        if digits == 2 {
            match bytes.next() {
                Some((_, b'=')) => {}
                Some((at, _)) => return at,
                None => return text.len(),
            }
        }
        return bytes.next().map_or(text.len(), |(at, _)| at);
    }
    text.len() - digits
}

/// Normalizes a time to UTC: whole seconds, or six digits with `micro`. The zero time becomes null.
pub(crate) fn time(value: &mut Value, micro: bool, path: &Path<'_>) -> Result<(), TypeError> {
    let Value::String(text) = value else {
        return Err(path.mismatch(value, &Type::String("string")));
    };
    let read = time::read(text, micro);
    let at = read.map_err(|error| path.malformed(time_error::describe(text, micro, error)))?;
    let bytes = text.as_bytes();
    let has_byte = |i: usize, byte: u8| bytes.get(i) == Some(&byte);
    // Two-digit hours, UTC, and no fraction or one that begins with a dot: the text is canonical already.
    let is_canonical = has_byte(13, b':')
        && text.ends_with('Z')
        && if micro { has_byte(19, b'.') } else { text.len() == 20 };
    if !is_canonical {
        *text = if micro { time::micro_time(at) } else { time::time(at) };
    }
    if text.starts_with(ZERO_TIME) && !(micro && at.subsec_nanosecond() != 0) {
        *value = Value::Null;
    }
    Ok(())
}
