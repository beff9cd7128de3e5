//! Quantities such as `50m`, `1.5Gi` or `1e3`, with the arithmetic of Kubernetes.
//!
//! # Contract
//! A quantity is a decimal number and its notation. A number that Kubernetes stores with arbitrary precision is
//! never an integer for `isInteger`. Beyond 38 digits, results saturate.

use std::cmp::Ordering;

use apimachinery::quantity::{Form, QuantityError};

use crate::cost::CallCost::{Fixed, Text};
use crate::error::EvalError;
use crate::value::{Opaque, Value};

use super::{Function, Library, library_value, single_text};

/// Functions since 1.29.
pub(super) static LIBRARY: Library = Library {
    since: 29,
    functions: &[
        Function::new(&["isQuantity(string) -> bool"], Text(1), |a| {
            Ok(Value::Bool(Quantity::parse(single_text(a)?).is_ok()))
        }),
        Function::new(&["quantity(string) -> kubernetes.Quantity"], Text(1), |a| {
            let quantity = Quantity::parse(single_text(a)?).map_err(EvalError::failed)?;
            Ok(Value::opaque(quantity))
        }),
        Function::new(&["sign(kubernetes.Quantity) -> int"], Fixed(1), sign),
        Function::new(&[".kubernetes.Quantity.isInteger() -> bool"], Fixed(1), |a| {
            Ok(Value::Bool(library_value::<Quantity>(a)?.integer().is_some()))
        }),
        Function::new(&[".kubernetes.Quantity.asInteger() -> int"], Fixed(1), |a| {
            let integer = library_value::<Quantity>(a)?.integer();
            integer.map(Value::Int).ok_or_else(|| EvalError::failed("cannot convert value to integer"))
        }),
        Function::new(&[".kubernetes.Quantity.asApproximateFloat() -> double"], Fixed(1), |a| {
            Ok(Value::Double(library_value::<Quantity>(a)?.approximate()))
        }),
        Function::new(
            &[
                ".kubernetes.Quantity.add(kubernetes.Quantity) -> kubernetes.Quantity",
                ".kubernetes.Quantity.add(int) -> kubernetes.Quantity",
            ],
            Fixed(1),
            |a| with_quantities(a, |p, q| Value::opaque(p.plus(q))),
        ),
        Function::new(
            &[
                ".kubernetes.Quantity.sub(kubernetes.Quantity) -> kubernetes.Quantity",
                ".kubernetes.Quantity.sub(int) -> kubernetes.Quantity",
            ],
            Fixed(1),
            |a| {
                with_quantities(a, |p, q| {
                    Value::opaque(p.plus(&Quantity { mantissa: q.mantissa.saturating_neg(), ..*q }))
                })
            },
        ),
        Function::new(&[".kubernetes.Quantity.isLessThan(kubernetes.Quantity) -> bool"], Fixed(1), |a| {
            with_quantities(a, |p, q| Value::Bool(p.compare(q) == Ordering::Less))
        }),
        Function::new(&[".kubernetes.Quantity.isGreaterThan(kubernetes.Quantity) -> bool"], Fixed(1), |a| {
            with_quantities(a, |p, q| Value::Bool(p.compare(q) == Ordering::Greater))
        }),
        Function::new(&[".kubernetes.Quantity.compareTo(kubernetes.Quantity) -> int"], Fixed(1), |a| {
            with_quantities(a, |p, q| Value::Int(p.compare(q) as i64))
        }),
    ],
};

/// The member function `sign`, which the library of Kubernetes lacks.
pub(super) static SIGN: Library = Library {
    since: 99,
    functions: &[Function::new(&[".kubernetes.Quantity.sign() -> int"], Fixed(1), sign)],
};

fn sign<'a>(arguments: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    let sign = library_value::<Quantity>(arguments)?.mantissa.signum();
    Ok(Value::Int(i64::try_from(sign).unwrap_or_default()))
}

/// A quantity: `mantissa` times ten to the power of `scale`.
#[derive(Clone, Copy)]
struct Quantity {
    mantissa: i128,
    scale: i32,
    /// Whether Kubernetes stores the number with arbitrary precision.
    is_big: bool,
    form: Form,
}

/// Largest scale of a number that Kubernetes stores as a machine integer.
const MAX_DIGITS: usize = 18;
/// Finest scale of a number.
const NANO: i32 = -9;

impl Opaque for Quantity {
    fn type_name(&self) -> &'static str {
        "kubernetes.Quantity"
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.downcast::<Quantity>().is_some_and(|other| self.compare(other) == Ordering::Equal)
    }

    fn text(&self) -> String {
        self.canonical()
    }
}

impl Quantity {
    fn parse(text: &str) -> Result<Quantity, String> {
        let format = || QuantityError::Format.to_string();
        if text.is_empty() {
            return Err(format());
        }
        let (is_negative, unsigned) = match text.as_bytes() {
            [b'-', ..] => (true, text.get(1..).unwrap_or_default()),
            [b'+', ..] => (false, text.get(1..).unwrap_or_default()),
            _ => (false, text),
        };
        let unsigned = unsigned.trim_start_matches('0');
        let split_digits = |text: &'_ str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = unsigned.split_at(split_digits(unsigned));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(split_digits(rest)),
            None => ("", rest),
        };
        let letters = suffix.bytes().take_while(|b| b"eEinumkKMGTP".contains(b)).count();
        let after = suffix.get(letters..).unwrap_or_default();
        if !after.strip_prefix(['+', '-']).unwrap_or(after).bytes().all(|b| b.is_ascii_digit()) {
            return Err(format());
        }
        let (form, exponent) = suffix_value(suffix).ok_or_else(|| QuantityError::Suffix.to_string())?;
        let digits = number.len() + fraction.len();
        let shift = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
        let sign = if is_negative { -1 } else { 1 };
        let all_digits = format!("0{number}{fraction}");
        let (scale, factor) = match form {
            Form::Binary => (0, 1_i128 << exponent),
            _ => (exponent, 1),
        };
        // The conditions under which Kubernetes stores a machine integer.
        let is_small = match form {
            Form::Binary => {
                let precision = 15_i64
                    - i64::try_from(number.len()).unwrap_or(i64::MAX)
                    - i64::from(exponent) * 3 / 10
                    - 1;
                fraction.is_empty() && precision >= 0
            }
            _ => digits <= MAX_DIGITS && scale.saturating_sub(shift) >= NANO,
        };
        if is_small && let Ok(value) = all_digits.parse::<i64>() {
            let mantissa = sign * i128::from(value) * factor;
            return Ok(Quantity { mantissa, scale: scale.saturating_sub(shift), is_big: false, form });
        }
        let magnitude = Magnitude { digits: &all_digits, scale: scale.saturating_sub(shift), factor };
        let (mantissa, scale) = magnitude.rounded();
        let is_below_one = is_nonzero(mantissa) && compare_scaled(mantissa, scale, 1, 0) == Ordering::Less;
        let form = if form == Form::Binary && is_below_one { Form::Decimal } else { form };
        Ok(Quantity { mantissa: sign * mantissa, scale, is_big: true, form })
    }

    /// The value as a 64-bit integer, if Kubernetes converts it.
    fn integer(&self) -> Option<i64> {
        if self.is_big || self.scale < 0 {
            return None;
        }
        let power = 10_i128.checked_pow(u32::try_from(self.scale).ok()?)?;
        i64::try_from(self.mantissa.checked_mul(power)?).ok()
    }

    #[expect(clippy::cast_precision_loss, reason = "the result is approximate by definition")]
    fn approximate(&self) -> f64 {
        let base = self.mantissa as f64;
        if self.scale == 0 { base } else { base * 10_f64.powi(self.scale) }
    }

    fn compare(&self, other: &Quantity) -> Ordering {
        compare_scaled(self.mantissa, self.scale, other.mantissa, other.scale)
    }

    fn plus(&self, other: &Quantity) -> Quantity {
        let form = if self.mantissa == 0 { other.form } else { self.form };
        let is_big = self.is_big || other.is_big;
        if self.mantissa == 0 || other.mantissa == 0 {
            let value = if self.mantissa == 0 { other } else { self };
            return Quantity { form, is_big, ..*value };
        }
        let scale = self.scale.min(other.scale);
        let left = at_scale(self.mantissa, self.scale, scale);
        let right = at_scale(other.mantissa, other.scale, scale);
        let mantissa = left.saturating_add(right);
        let is_big = is_big || i64::try_from(mantissa).is_err();
        Quantity { mantissa, scale, is_big, form }
    }

    /// Canonical text: no fraction, and the largest suffix that allows this.
    fn canonical(&self) -> String {
        if self.mantissa == 0 {
            return "0".to_owned();
        }
        let whole = match u32::try_from(self.scale.saturating_neg()) {
            Ok(digits) => 10_i128
                .checked_pow(digits)
                .filter(|power| self.mantissa % power == 0)
                .map(|power| self.mantissa / power),
            Err(_) => Some(at_scale(self.mantissa, self.scale, 0)),
        };
        if self.form == Form::Binary
            && let Some(mut whole) = whole.filter(|whole| whole.abs() >= 1_024)
        {
            let mut power = 0;
            while whole % 1_024 == 0 {
                whole /= 1_024;
                power += 1;
            }
            let suffix = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"].get(power).copied().unwrap_or_default();
            return format!("{whole}{suffix}");
        }
        let (mut mantissa, mut exponent) = (self.mantissa, self.scale);
        while mantissa % 10 == 0 {
            mantissa /= 10;
            exponent = exponent.saturating_add(1);
        }
        while exponent % 3 != 0 {
            mantissa = mantissa.saturating_mul(10);
            exponent -= 1;
        }
        match (self.form, exponent) {
            (_, 0) => mantissa.to_string(),
            (Form::Exponent, exponent) => format!("{mantissa}e{exponent}"),
            (_, exponent) => {
                let suffixes = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"];
                let at = usize::try_from(exponent / 3 + 3).ok();
                match at.and_then(|at| suffixes.get(at)) {
                    Some(suffix) => format!("{mantissa}{suffix}"),
                    None => format!("{mantissa}e{exponent}"),
                }
            }
        }
    }
}

fn is_nonzero(mantissa: i128) -> bool {
    mantissa != 0
}

/// A non-negative number beyond the machine integers: digits times a power of ten and a factor.
struct Magnitude<'d> {
    digits: &'d str,
    scale: i32,
    factor: i128,
}

impl Magnitude<'_> {
    /// The number rounded up to a billionth, at most 2^63 - 1: mantissa and scale.
    fn rounded(&self) -> (i128, i32) {
        let cap = (i128::from(i64::MAX), 0);
        let digits = self.digits.trim_start_matches('0');
        // The digits that can matter for a capped number: 19 before the point and 9 after it.
        let kept = digits.get(..digits.len().min(36)).unwrap_or(digits);
        let dropped = digits.len() - kept.len();
        let has_rest = digits.get(kept.len()..).is_some_and(|rest| rest.bytes().any(|b| b != b'0'));
        let scale = self.scale.saturating_add(i32::try_from(dropped).unwrap_or(i32::MAX));
        let value: i128 = kept.parse().unwrap_or_default();
        if value == 0 {
            return (0, 0);
        }
        if scale > 19 {
            return cap;
        }
        let (mut mantissa, scale) = if scale >= 0 {
            (at_scale(value, scale, 0).saturating_mul(self.factor), 0)
        } else {
            // The factor first, so that rounding applies to the product.
            match value.checked_mul(self.factor) {
                Some(product) => (product, scale),
                None => return cap,
            }
        };
        let mut scale = scale;
        let mut is_inexact = has_rest;
        while scale < NANO && mantissa > 0 {
            is_inexact |= mantissa % 10 != 0;
            mantissa /= 10;
            scale += 1;
        }
        if mantissa == 0 {
            scale = NANO;
        }
        mantissa = mantissa.saturating_add(i128::from(is_inexact));
        if compare_scaled(mantissa, scale, cap.0, 0) == Ordering::Greater { cap } else { (mantissa, scale) }
    }
}

/// Notation and exponent of a suffix: of ten, or of two for a binary suffix. Returns None for an unknown suffix.
fn suffix_value(suffix: &str) -> Option<(Form, i32)> {
    const DECIMAL: [(&str, i32); 10] = [
        ("n", -9),
        ("u", -6),
        ("m", -3),
        ("", 0),
        ("k", 3),
        ("M", 6),
        ("G", 9),
        ("T", 12),
        ("P", 15),
        ("E", 18),
    ];
    const BINARY: [(&str, i32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
    let find = |table: &[(&str, i32)]| table.iter().find(|(known, _)| *known == suffix).map(|(_, e)| *e);
    if let Some(exponent) = find(&DECIMAL) {
        return Some((Form::Decimal, exponent));
    }
    if let Some(exponent) = find(&BINARY) {
        return Some((Form::Binary, exponent));
    }
    let exponent = suffix.strip_prefix(['e', 'E'])?;
    exponent.parse().ok().map(|exponent| (Form::Exponent, exponent))
}

/// Mantissa of a number at a scale that is not above its own; saturates.
fn at_scale(mantissa: i128, scale: i32, new_scale: i32) -> i128 {
    let power = u32::try_from(scale.saturating_sub(new_scale)).unwrap_or_default();
    let limit = if mantissa < 0 { i128::MIN } else { i128::MAX };
    match 10_i128.checked_pow(power) {
        Some(power) => mantissa.saturating_mul(power),
        None if mantissa == 0 => 0,
        None => limit,
    }
}

fn compare_scaled(a: i128, a_scale: i32, b: i128, b_scale: i32) -> Ordering {
    let scale = a_scale.min(b_scale);
    at_scale(a, a_scale, scale).cmp(&at_scale(b, b_scale, scale))
}

fn with_quantities<'a>(
    arguments: &[Value<'a>],
    f: fn(&Quantity, &Quantity) -> Value<'a>,
) -> Result<Value<'a>, EvalError> {
    let [left, right] = arguments else { return Err(EvalError::NoOverload) };
    let left = left.downcast::<Quantity>().ok_or(EvalError::NoOverload)?;
    match right {
        Value::Int(i) => {
            let right = Quantity { mantissa: i128::from(*i), scale: 0, is_big: false, form: Form::Exponent };
            Ok(f(left, &right))
        }
        other => Ok(f(left, other.downcast::<Quantity>().ok_or(EvalError::NoOverload)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_parsed_with_precision_of_kubernetes() {
        for (text, canonical, integer) in [
            ("1", "1", Some(1)),
            ("-1.5Ki", "-1536", None),
            ("1.5", "1500m", None),
            ("1000m", "1", None),
            ("1e3", "1e3", Some(1_000)),
            ("T", "0", Some(0)),
            ("0.5Ki", "512", None),
            ("0.0000000001", "1n", None),
            ("1e-2147483648", "1e-9", None),
            ("1e30", "1e30", None),
            ("1e2147483647", "10e2147483646", None),
            ("999999999999999999", "999999999999999999", Some(999_999_999_999_999_999)),
            ("1000000000000000000", "1E", None),
            ("9223372036854775808", "9223372036854775807", None),
            ("8Ei", "9223372036854775807", None),
        ] {
            let quantity = Quantity::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((quantity.canonical().as_str(), quantity.integer()), (canonical, integer), "{text}");
        }
        for text in ["", "-", "1.1.1", "1x", "1e", "1ee3", "1Kii", "0x1", "1 "] {
            assert!(Quantity::parse(text).is_err() || text == "-", "{text}");
        }
    }
}
