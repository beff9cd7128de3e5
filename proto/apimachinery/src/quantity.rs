//! Quantities: fixed-point numbers with a suffix, their values and canonical form.
//!
//! # Contract
//!
//! A quantity is a decimal number with one of three kinds of suffix: binary (`Ki` to `Ei`), decimal (`n` to
//! `E`), or a decimal exponent (`e3`). The canonical form keeps the kind, has no fraction, and has the
//! largest suffix that allows this. A quantity with a binary suffix becomes decimal if its value is below
//! 1024 or not a whole number. Values are rounded up, away from zero, to a billionth (or to the precision of
//! the caller). Binary values are at most 2^63 - 1.
//!
//! Parsing works on decimal digits, so an input may have any length. Only whole numbers of at most 18 digits
//! are computed as machine integers. The time is linear in the length of the input.

/// Power of ten of the finest scale of quantities: 10^-9.
pub const NANO: i32 = -9;
/// Power of ten of the finest scale of resource lists: 10^-3.
pub const MILLI: i32 = -3;

/// The reason why a text is not a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    /// The text does not begin with a number, or continues after the suffix.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Format,
    /// The suffix is unknown.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

/// Power of 1000 of each decimal suffix.
const DECIMAL: [(&str, i32); 10] =
    [("n", -3), ("u", -2), ("m", -1), ("", 0), ("k", 1), ("M", 2), ("G", 3), ("T", 4), ("P", 5), ("E", 6)];
/// Power of 1024 of each binary suffix.
const BINARY: [(&str, i32); 6] = [("Ki", 1), ("Mi", 2), ("Gi", 3), ("Ti", 4), ("Pi", 5), ("Ei", 6)];

/// The notation of a quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// A number with a decimal suffix or without a suffix.
    #[default]
    Decimal,
    /// A number with a decimal exponent: `e` and a number.
    Exponent,
    /// A number with a binary suffix.
    Binary,
}

/// Returns the canonical form of a quantity, rounded up to 10^`finest`; None when `text` is canonical.
///
/// # Errors
///
/// The text is not a quantity.
pub fn canonical(text: &str, finest: i32) -> Result<Option<String>, QuantityError> {
    if is_plainly_canonical(text) { Ok(None) } else { parse_canonical(text, finest) }
}

/// Whether a text is one to three digits without a leading zero, with a common suffix or none.
///
/// Fast path: every such text is canonical.
fn is_plainly_canonical(text: &str) -> bool {
    let (digits, suffix) = split_digits(text);
    (1..=3).contains(&digits.len())
        && !digits.starts_with('0')
        && matches!(suffix, "" | "m" | "k" | "M" | "G" | "T" | "P" | "Ki" | "Mi" | "Gi" | "Ti" | "Pi")
}

/// Returns the value in billionths, rounded away from zero, and the notation. Values beyond 128 bits
/// saturate.
///
/// # Errors
///
/// The text is not a quantity.
pub fn nanos(text: &str) -> Result<(i128, Form), QuantityError> {
    if let Some(value) = nanos_of_whole_number(text) {
        return Ok(value);
    }
    let (negative, mut number, form) = parse(text)?;
    let nanos = number.nanos();
    Ok((if negative { -nanos } else { nanos }, form))
}

/// Fast path of [`nanos`]: a whole number of at most 18 digits, without a sign and without an exponent.
fn nanos_of_whole_number(text: &str) -> Option<(i128, Form)> {
    /// A number of 18 digits is below 2^63, and below 2^127 after multiplication by 1024^6.
    const DIGITS_MAX: usize = 18;
    let (digits, suffix) = split_digits(text);
    if digits.len() > DIGITS_MAX {
        return None;
    }
    let number: i128 = digits.parse::<i64>().ok()?.into();
    let (form, power) = read_suffix(suffix).ok()?;
    let nanos = match form {
        Form::Decimal => number.saturating_mul(10_i128.pow(u32::try_from(power - NANO).ok()?)),
        Form::Binary => (number << (10 * power)).min(i64::MAX.into()) * 10_i128.pow(NANO.unsigned_abs()),
        Form::Exponent => return None,
    };
    Some((nanos, form))
}

/// Returns the canonical form of a quantity in billionths.
pub fn of_nanos(nanos: i128, form: Form) -> String {
    let digits = nanos.unsigned_abs().to_string();
    let mut number = Decimal::new(&digits, "");
    number.exponent = i64::from(NANO);
    write(nanos < 0, &mut number, form)
}

fn parse_canonical(text: &str, finest: i32) -> Result<Option<String>, QuantityError> {
    let (negative, mut number, form) = parse(text.trim())?;
    number.round_up(finest);
    let canonical = write(negative, &mut number, form);
    // The reference keeps a plus sign before a text that is canonical without the sign.
    Ok((text.strip_prefix('+').unwrap_or(text) != canonical).then_some(canonical))
}

/// Parses a quantity: whether it is negative, its absolute value, and its notation.
fn parse(text: &str) -> Result<(bool, Decimal, Form), QuantityError> {
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, text.get(1..).unwrap_or("")),
        Some(b'+') => (false, text.get(1..).unwrap_or("")),
        _ => (false, text),
    };
    let (whole, rest) = split_digits(unsigned);
    let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), split_digits);
    if whole.is_empty() && fraction.is_empty() && !unsigned.starts_with('.') {
        return Err(QuantityError::Format);
    }
    let (form, power) = read_suffix(rest)?;
    let mut number = Decimal::new(whole, fraction);
    if form == Form::Binary {
        number.double(10 * power);
        number.round_up(NANO);
        number.cap();
    } else {
        number.exponent += i64::from(power);
    }
    Ok((negative, number, form))
}

fn write(negative: bool, number: &mut Decimal, form: Form) -> String {
    let binary = if form == Form::Binary { number.as_binary() } else { None };
    let unsigned = binary.unwrap_or_else(|| number.as_decimal(form == Form::Exponent));
    if negative && unsigned != "0" { format!("-{unsigned}") } else { unsigned }
}

fn split_digits(text: &str) -> (&str, &str) {
    text.split_at(text.bytes().position(|b| !b.is_ascii_digit()).unwrap_or(text.len()))
}

/// Reads a suffix: the notation, and the power of ten, or of 1024 for a binary suffix.
fn read_suffix(text: &str) -> Result<(Form, i32), QuantityError> {
    if let Some((_, power)) = DECIMAL.iter().find(|(suffix, _)| *suffix == text) {
        return Ok((Form::Decimal, 3 * power));
    }
    if let Some((_, power)) = BINARY.iter().find(|(suffix, _)| *suffix == text) {
        return Ok((Form::Binary, *power));
    }
    if let Some(exponent) = text.strip_prefix(['e', 'E']) {
        // Rust's parser accepts one sign, like the parser of kube-apiserver.
        return exponent.parse().map(|power| (Form::Exponent, power)).map_err(|_| QuantityError::Suffix);
    }
    let letters = text.trim_start_matches(|c| "eEinumkKMGTP".contains(c));
    let digits = letters.strip_prefix(['+', '-']).unwrap_or(letters);
    if digits.bytes().all(|b| b.is_ascii_digit()) {
        Err(QuantityError::Suffix)
    } else {
        Err(QuantityError::Format)
    }
}

/// Decimal digits, most significant first and without leading zeros, times a power of ten. No digits mean
/// zero.
struct Decimal {
    digits: Vec<u8>,
    exponent: i64,
}

impl Decimal {
    fn new(whole: &str, fraction: &str) -> Self {
        let digits =
            whole.bytes().chain(fraction.bytes()).map(|b| b - b'0').skip_while(|d| *d == 0).collect();
        Decimal { digits, exponent: -i64::try_from(fraction.len()).unwrap_or(i64::MAX) }
    }

    /// Multiplies by 2^`times`.
    ///
    /// Digits far above 2^63 or far below a billionth are dropped first, to limit the work. They do not affect
    /// the result after [`Decimal::cap`] and rounding.
    fn double(&mut self, times: i32) {
        /// Number of digits kept before and after the decimal point.
        const KEPT: i64 = 40;
        if self.magnitude() > KEPT {
            self.digits.truncate(KEPT as usize);
            self.exponent = 0;
        }
        self.round_up(-KEPT as i32);
        for _ in 0..times {
            let mut carry = 0;
            for digit in self.digits.iter_mut().rev() {
                let doubled = *digit * 2 + carry;
                *digit = doubled % 10;
                carry = doubled / 10;
            }
            if carry > 0 {
                self.digits.insert(0, carry);
            }
        }
    }

    /// The number of digits before the decimal point.
    fn magnitude(&self) -> i64 {
        i64::try_from(self.digits.len()).unwrap_or(i64::MAX).saturating_add(self.exponent)
    }

    /// Rounds away from zero to a multiple of 10^`finest`.
    fn round_up(&mut self, finest: i32) {
        let finest = i64::from(finest);
        if self.exponent >= finest || self.digits.is_empty() {
            return;
        }
        let kept = usize::try_from(self.magnitude() - finest).unwrap_or(0);
        let has_remainder = self.digits.iter().skip(kept).any(|d| *d != 0);
        self.digits.truncate(kept);
        self.exponent = finest;
        if has_remainder {
            self.increment();
        }
    }

    fn increment(&mut self) {
        for digit in self.digits.iter_mut().rev() {
            if *digit < 9 {
                *digit += 1;
                return;
            }
            *digit = 0;
        }
        self.digits.insert(0, 1);
    }

    /// Limits the value to 2^63 - 1.
    fn cap(&mut self) {
        let max: Vec<u8> = i64::MAX.to_string().bytes().map(|b| b - b'0').collect();
        // Numbers of the same magnitude compare like their digits.
        if (self.magnitude(), &self.digits) > (19, &max) {
            *self = Decimal { digits: max, exponent: 0 };
        }
    }

    /// The value in billionths, rounded up.
    fn nanos(&mut self) -> i128 {
        self.round_up(NANO);
        let number = self
            .digits
            .iter()
            .fold(0_i128, |number, digit| number.saturating_mul(10).saturating_add(i128::from(*digit)));
        let zeros = u32::try_from(self.exponent - i64::from(NANO)).ok();
        let factor = zeros.and_then(|zeros| 10_i128.checked_pow(zeros)).unwrap_or(i128::MAX);
        number.saturating_mul(factor)
    }

    /// Removes trailing zeros.
    fn strip_trailing_zeros(&mut self) {
        while self.digits.last() == Some(&0) {
            self.digits.pop();
            self.exponent += 1;
        }
        if self.digits.is_empty() {
            self.exponent = 0;
        }
    }

    /// Formats with a binary suffix; None when the value is not a whole number, or is below 1024.
    fn as_binary(&mut self) -> Option<String> {
        self.strip_trailing_zeros();
        let zeros = usize::try_from(self.exponent).ok()?;
        let digits = self.digits.iter().copied().chain(std::iter::repeat_n(0, zeros));
        let mut value = digits
            .take(39)
            .fold(0_u128, |value, digit| value.saturating_mul(10).saturating_add(u128::from(digit)));
        if value < 1024 {
            return None;
        }
        let mut suffix = "";
        for (name, _) in BINARY {
            if value % 1024 != 0 {
                break;
            }
            value /= 1024;
            suffix = name;
        }
        Some(format!("{value}{suffix}"))
    }

    /// Formats with a decimal suffix, or with `e` and an exponent.
    fn as_decimal(&mut self, exponent_form: bool) -> String {
        self.strip_trailing_zeros();
        if self.digits.is_empty() {
            return "0".to_owned();
        }
        let mut power = self.exponent.div_euclid(3);
        if !exponent_form {
            // Exa is the largest suffix.
            power = power.min(6);
        }
        let zeros = usize::try_from(self.exponent - 3 * power).unwrap_or(0);
        let mut text: String = self.digits.iter().map(|d| char::from(b'0' + d)).collect();
        text.extend(std::iter::repeat_n('0', zeros));
        match DECIMAL.iter().find(|(_, p)| i64::from(*p) == power) {
            Some((suffix, _)) if !exponent_form => text.push_str(suffix),
            _ if power == 0 => {}
            _ => text.push_str(&format!("e{}", 3 * power)),
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_canonical_form() {
        for (text, want) in [
            ("0.5", "500m"),
            ("1024Mi", "1Gi"),
            ("1000m", "1"),
            ("1000Ki", "1000Ki"),
            ("1.5Gi", "1536Mi"),
            ("2", "2"),
            ("1048576", "1048576"),
            ("1e-1", "100e-3"),
            ("1e9", "1e9"),
            ("1E9", "1e9"),
            ("+1.10", "1100m"),
            ("12E", "12E"),
            ("1000k", "1M"),
            ("0.1Gi", "107374182400m"),
            ("0", "0"),
            ("-0", "0"),
            ("0Ki", "0"),
            ("00", "0"),
            (".5", "500m"),
            ("1.", "1"),
            (".", "0"),
            ("1Ki", "1Ki"),
            ("0.5Ki", "512"),
            ("1023.5Ki", "1048064"),
            ("-1.5Gi", "-1536Mi"),
            ("1n", "1n"),
            ("0.1n", "1n"),
            ("-0.1n", "-1n"),
            ("1.0000000001", "1000000001n"),
            ("9.9999999999", "10"),
            ("12345678901234567890", "12345678901234567890"),
            ("1000000000000000000000000", "1000000E"),
            ("9223372036854775807Ki", "9223372036854775807"),
            ("8Ei", "9223372036854775807"),
            ("7Ei", "7Ei"),
            ("1e-1000000", "1e-9"),
            ("1e2", "100"),
            ("3e-3", "3e-3"),
            ("1e1000000000", "10e999999999"),
        ] {
            let have = canonical(text, NANO).unwrap().unwrap_or_else(|| text.to_owned());
            assert_eq!(have, want, "{text}");
            assert_eq!(canonical(&have, NANO), Ok(None), "{text}: conformed twice");
            assert_eq!(
                canonical(&format!(" {text} "), NANO),
                Ok(Some(want.to_owned())),
                "{text}: with spaces"
            );
        }
        for (text, want) in
            [("0.0001", "1m"), ("100u", "1m"), ("1m", "1m"), ("1.5001", "1501m"), ("-0.1m", "-1m")]
        {
            assert_eq!(canonical(text, MILLI).unwrap().unwrap_or_else(|| text.to_owned()), want, "{text}");
        }
    }

    #[test]
    fn whole_number_has_same_value_as_computed_from_digits() {
        for digits in ["0", "007", "1", "64", "1024", "999999999999999999", "1000000000000000000"] {
            for (suffix, _) in DECIMAL.iter().copied().chain(BINARY.map(|(suffix, _)| (suffix, 0))) {
                let text = format!("{digits}{suffix}");
                let (_, mut number, form) = parse(&text).unwrap();
                assert_eq!(nanos(&text), Ok((number.nanos(), form)), "{text}");
            }
        }
        for text in ["", "Ki", "1x", "1ki", "1e", "1e3m"] {
            assert_eq!(nanos(text).map(|_| ()), parse(text).map(|_| ()), "{text}");
        }
    }

    #[test]
    fn quantity_value_in_billionths() {
        for (text, worth, form) in [
            ("1", 1_000_000_000, Form::Decimal),
            ("-1.5Ki", -1_536_000_000_000, Form::Binary),
            ("1e-1", 100_000_000, Form::Exponent),
            ("0.1n", 1, Form::Decimal),
            ("0e1000000000", 0, Form::Exponent),
            ("1e1000000000", i128::MAX, Form::Exponent),
            ("-1e1000000000", -i128::MAX, Form::Exponent),
            ("1e-1000000000", 1, Form::Exponent),
        ] {
            assert_eq!(nanos(text), Ok((worth, form)), "{text}");
        }
        assert_eq!(nanos(" 1"), Err(QuantityError::Format));
        let exbi = 1_i128 << 60;
        assert_eq!(of_nanos(21 * exbi * 1_000_000_000, Form::Binary), "21Ei", "sums have no cap");
        assert_eq!(
            of_nanos(i128::MIN, Form::Decimal).len(),
            "-170141183460469231731687303715884105728n".len()
        );
    }

    #[test]
    fn plain_quantities_take_fast_path_and_are_canonical() {
        for digits in ["1", "10", "64", "100", "999"] {
            for suffix in DECIMAL.iter().map(|(s, _)| *s).chain(BINARY.iter().map(|(s, _)| *s)) {
                let text = format!("{digits}{suffix}");
                if is_plainly_canonical(&text) {
                    assert_eq!(parse_canonical(&text, NANO), Ok(None), "{text}");
                    assert_eq!(parse_canonical(&text, MILLI), Ok(None), "{text}");
                }
            }
        }
        assert!(
            is_plainly_canonical("250m") && !is_plainly_canonical("1000m") && !is_plainly_canonical("1u")
        );
    }

    #[test]
    fn malformed_quantity_is_rejected() {
        for (text, error) in [
            ("", QuantityError::Format),
            ("a", QuantityError::Format),
            ("--1", QuantityError::Format),
            ("1.2.3", QuantityError::Format),
            ("1 Gi", QuantityError::Format),
            ("1K", QuantityError::Suffix),
            ("1ki", QuantityError::Suffix),
            ("1e", QuantityError::Suffix),
            ("1e99999999999", QuantityError::Suffix),
            ("1Gi1", QuantityError::Suffix),
        ] {
            assert_eq!(canonical(text, NANO), Err(error), "{text}");
        }
    }

    #[test]
    fn quantity_with_million_digits_takes_linear_time() {
        let text = format!("{}.{}Gi", "9".repeat(1_000_000), "9".repeat(1_000_000));
        assert_eq!(canonical(&text, NANO).unwrap().unwrap(), "9223372036854775807");
        let text = format!("0.{}1", "0".repeat(1_000_000));
        assert_eq!(canonical(&text, NANO).unwrap().unwrap(), "1n");
    }
}
