//! Durations in the text form of Go: `1h30m`, `-1.5s`, `500ms`.
//!
//! # Contract
//!
//! A duration is an optional sign and a sequence of decimal numbers with a unit: `ns`, `us` (`µs`), `ms`,
//! `s`, `m` or `h`. `0` needs no unit. The value is a signed 64-bit number of nanoseconds, rounded toward
//! zero. Parsing takes time linear in the length of the text.

use std::time::Duration;

/// Number of nanoseconds in a second.
const SECOND: i128 = 1_000_000_000;

/// Number of digits of a fraction that count: later digits are below a nanosecond for every unit.
const FRACTION_DIGITS: usize = 18;

/// The reason why a text is not a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// The text is not a sequence of numbers with units.
    #[error("not a duration: use a form like 1h30m, 5m0s or 500ms")]
    Format,
    /// The value exceeds 64 bits of nanoseconds.
    #[error("a duration is at most 292 years")]
    TooLong,
    /// The value is negative.
    #[error("a negative duration is not permitted")]
    Negative,
}

/// Parses a duration to nanoseconds, which are negative after a minus sign.
///
/// # Errors
///
/// The text is not a duration, or exceeds 64 bits of nanoseconds.
pub fn parse_nanos(text: &str) -> Result<i64, DurationError> {
    let (is_negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(DurationError::Format);
    }
    let mut total = 0;
    while !rest.is_empty() {
        let (nanos, after) = parse_part(rest)?;
        total += nanos;
        if total > -i128::from(i64::MIN) {
            return Err(DurationError::TooLong);
        }
        rest = after;
    }
    i64::try_from(if is_negative { -total } else { total }).map_err(|_| DurationError::TooLong)
}

/// Parses a duration that must not be negative.
///
/// # Errors
///
/// See [`DurationError`].
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let nanos = parse_nanos(text)?;
    u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| DurationError::Negative)
}

/// Parses a number with its unit. Returns the nanoseconds, and the rest of the text.
fn parse_part(text: &str) -> Result<(i128, &str), DurationError> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(DurationError::Format)?;
    let (number, after) = text.split_at_checked(end).ok_or(DurationError::Format)?;
    let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
    let (unit, after) = after.split_at_checked(end).ok_or(DurationError::Format)?;
    let unit = match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => SECOND,
        "m" => 60 * SECOND,
        "h" => 3_600 * SECOND,
        _ => return Err(DurationError::Format),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(DurationError::Format);
    }
    let fraction = fraction.get(..FRACTION_DIGITS).unwrap_or(fraction);
    let scale = 10_i128.pow(u32::try_from(fraction.len()).unwrap_or(0));
    Ok((integer(whole)? * unit + integer(fraction)? * unit / scale, after))
}

/// Parses decimal digits; `""` is zero.
fn integer(digits: &str) -> Result<i128, DurationError> {
    match digits {
        "" => Ok(0),
        digits => digits.parse::<u64>().map(i128::from).map_err(|_| DurationError::TooLong),
    }
}

/// Formats a duration as Go prints it: `5m0s`, `1h0m0s`, `1.5s`, `500ms`, `0s`.
pub fn format(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let decimal = |nanos: u128, unit: u128| {
        let text = format!("{}.{:0width$}", nanos / unit, nanos % unit, width = unit.ilog10() as usize);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match nanos {
        0 => "0s".to_owned(),
        1..=999 => format!("{nanos}ns"),
        1_000..=999_999 => format!("{}µs", decimal(nanos, 1_000)),
        1_000_000..=999_999_999 => format!("{}ms", decimal(nanos, 1_000_000)),
        _ => {
            let (hours, minutes) = (duration.as_secs() / 3600, duration.as_secs() / 60 % 60);
            let seconds = decimal(nanos % 60_000_000_000, 1_000_000_000);
            match (hours, minutes) {
                (0, 0) => format!("{seconds}s"),
                (0, minutes) => format!("{minutes}m{seconds}s"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_and_formatted_like_go() {
        for (text, nanos, printed) in [
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
            ("1h30m", 5_400_000_000_000, "1h30m0s"),
            ("5m0s", 300_000_000_000, "5m0s"),
            ("500ms", 500_000_000, "500ms"),
            ("1.5h", 5_400_000_000_000, "1h30m0s"),
            (".5s", 500_000_000, "500ms"),
            ("1.s", 1_000_000_000, "1s"),
            ("+90s", 90_000_000_000, "1m30s"),
            ("1.25s", 1_250_000_000, "1.25s"),
            ("15us", 15_000, "15µs"),
            ("1µs2ns", 1_002, "1.002µs"),
            ("7ns", 7, "7ns"),
            ("0.9ns", 0, "0s"),
            ("00000000000000000000001s", 1_000_000_000, "1s"),
            ("2562047h47m16.854775807s", i64::MAX as u64, "2562047h47m16.854775807s"),
        ] {
            let parsed = parse(text).unwrap();
            assert_eq!(parsed, Duration::from_nanos(nanos), "{text}");
            assert_eq!(format(parsed), printed, "{text}");
        }
    }

    #[test]
    fn negative_duration_is_parsed_to_signed_nanos_only() {
        assert_eq!(parse_nanos("-1.5s"), Ok(-1_500_000_000));
        assert_eq!(parse_nanos("-2562047h47m16.854775808s"), Ok(i64::MIN));
        assert_eq!(parse("-1s"), Err(DurationError::Negative));
    }

    #[test]
    fn malformed_or_too_long_duration_is_rejected() {
        use DurationError::{Format, TooLong};
        for (text, error) in [
            ("", Format),
            ("+", Format),
            ("-", Format),
            ("--1s", Format),
            ("5", Format),
            ("s", Format),
            (".s", Format),
            ("1x", Format),
            ("1m5", Format),
            ("1..5s", Format),
            ("1 s", Format),
            ("1é", Format),
            ("9999999999h", TooLong),
            ("99999999999999999999s", TooLong),
            ("2562047h47m16.854775808s", TooLong),
        ] {
            assert_eq!(parse_nanos(text), Err(error), "{text}");
        }
    }
}
