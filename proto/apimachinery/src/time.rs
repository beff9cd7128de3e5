//! Time formats of API objects: RFC 3339 in UTC, whole seconds (`Time`) or six digits (`MicroTime`).
//!
//! # Reference
//!
//! The parser accepts the same texts as Go's `time.Parse(time.RFC3339, …)`: any offset up to 24:60, a
//! fraction after a dot or a comma, an hour of one digit. It rejects leap seconds, lower-case `t` or `z`, and
//! years that do not have four digits.

use std::str::FromStr;

use jiff::civil::DateTime;
use jiff::tz::Offset;
use jiff::{SignedDuration, Timestamp};

use crate::field::quote;

/// Formats a `Time`: `2006-01-02T15:04:05Z`.
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Formats a `MicroTime`: `2006-01-02T15:04:05.000000Z`.
pub fn micro_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Converts seconds and nanoseconds since 1970; None if the year is out of range.
pub fn from_unix(seconds: i64, nanos: i32) -> Option<Timestamp> {
    Timestamp::new(seconds, nanos).ok()
}

/// The reason why a text is no time, with the text of Go's package `time`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError<'t> {
    /// The rest of the text does not begin with an element of the layout.
    #[error("cannot parse {} as \"{element}\"", quote(rest))]
    Missing {
        /// The element.
        element: &'static str,
        /// The rest of the text.
        rest: &'t str,
    },
    /// An element has a value out of range.
    #[error("{0} out of range")]
    OutOfRange(&'static str),
    /// A text follows the time.
    #[error("extra text: {}", quote(.0))]
    Extra(&'t str),
}

/// Elements of the date and the time of day, in their order.
///
/// Each has the separator before it, its text in Go's layout, its name, and its least and greatest value.
/// The parser compares the day with the length of its month at the end.
const ELEMENTS: [(&str, &str, &str, i8, i8); 5] = [
    ("-", "01", "month", 1, 12),
    ("-", "02", "day", 0, 99),
    ("T", "15", "hour", 0, 23),
    (":", "04", "minute", 0, 59),
    (":", "05", "second", 0, 59),
];

/// Parses a `Time`: RFC 3339 with any offset, with or without a fraction.
pub fn parse(text: &str) -> Option<Timestamp> {
    read(text, false).ok()
}

/// Parses a `MicroTime`: RFC 3339 with any offset and a fraction of exactly six digits.
pub fn parse_micro(text: &str) -> Option<Timestamp> {
    read(text, true).ok()
}

/// Parses a `MicroTime` if `micro`, else a `Time`, element by element as Go does.
///
/// # Errors
///
/// The first element that is missing or out of range, or the text after the time.
pub fn read(text: &str, micro: bool) -> Result<Timestamp, TimeError<'_>> {
    let mut rest = text;
    let year = take_digits(&mut rest, 4).ok_or(TimeError::Missing { element: "2006", rest: text })?;
    let mut values = [0; ELEMENTS.len()];
    for (value, (separator, element, name, min, max)) in values.iter_mut().zip(ELEMENTS) {
        rest = rest.strip_prefix(separator).ok_or(TimeError::Missing { element: separator, rest })?;
        let missing = TimeError::Missing { element, rest };
        let digits = take_digits(&mut rest, 2);
        // An hour may have one digit.
        let digits = if name == "hour" { digits.or_else(|| take_digits(&mut rest, 1)) } else { digits };
        *value = digits.ok_or(missing)?;
        if !(min..=max).contains(value) {
            return Err(TimeError::OutOfRange(name));
        }
    }
    let [month, day, hour, minute, second] = values;
    let nanosecond = if micro { take_micros(&mut rest)? } else { take_fraction(&mut rest) };
    let offset = take_offset(&mut rest)?;
    if !rest.is_empty() {
        return Err(TimeError::Extra(rest));
    }
    let local = DateTime::new(year, month, day, hour, minute, second, nanosecond)
        .map_err(|_| TimeError::OutOfRange("day"))?;
    let at = Offset::UTC.to_timestamp(local).and_then(|at| at.checked_sub(SignedDuration::from_secs(offset)));
    at.map_err(|_| TimeError::OutOfRange("year"))
}

/// Takes a number with this many digits from the beginning of a text.
fn take_digits<N: FromStr>(text: &mut &str, count: usize) -> Option<N> {
    let (digits, rest) = text.split_at_checked(count)?;
    let number = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse().ok())??;
    *text = rest;
    Some(number)
}

/// Takes a fraction of any length, if there is one; returns nanoseconds.
fn take_fraction(text: &mut &str) -> i32 {
    let Some(fraction) = text.strip_prefix(['.', ',']) else { return 0 };
    let rest = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
    let Some(digits) = fraction.strip_suffix(rest).filter(|digits| !digits.is_empty()) else { return 0 };
    *text = rest;
    format!("{digits:0<9.9}").parse().unwrap_or_default()
}

/// Takes a fraction of six digits; returns nanoseconds.
fn take_micros<'t>(text: &mut &'t str) -> Result<i32, TimeError<'t>> {
    let missing = TimeError::Missing { element: ".000000", rest: text };
    *text = text.strip_prefix(['.', ',']).ok_or(missing)?;
    take_digits(text, 6).map(|micros: i32| micros * 1000).ok_or(missing)
}

/// Takes `Z` or an offset; returns seconds east of UTC.
fn take_offset<'t>(text: &mut &'t str) -> Result<i64, TimeError<'t>> {
    let missing = TimeError::Missing { element: "Z07:00", rest: text };
    if let Some(rest) = text.strip_prefix('Z') {
        *text = rest;
        return Ok(0);
    }
    let sign = if text.starts_with('-') { -1 } else { 1 };
    *text = text.strip_prefix(['+', '-']).ok_or(missing)?;
    let hours: i64 = take_digits(text, 2).ok_or(missing)?;
    *text = text.strip_prefix(':').ok_or(missing)?;
    let minutes: i64 = take_digits(text, 2).ok_or(missing)?;
    match (hours, minutes) {
        (25.., _) => Err(TimeError::OutOfRange("time zone offset hour")),
        (_, 61..) => Err(TimeError::OutOfRange("time zone offset minute")),
        _ => Ok(sign * (hours * 3600 + minutes * 60)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc3339_times_are_parsed_like_go() {
        for (text, expected) in [
            ("2006-01-02T15:04:05Z", "2006-01-02T15:04:05.000000Z"),
            ("2006-01-02T15:04:05.5Z", "2006-01-02T15:04:05.500000Z"),
            ("2006-01-02T15:04:05,25Z", "2006-01-02T15:04:05.250000Z"),
            ("2006-01-02T15:04:05.123456789999Z", "2006-01-02T15:04:05.123456Z"),
            ("2006-01-02T15:04:05+02:00", "2006-01-02T13:04:05.000000Z"),
            ("2006-01-02T15:04:05-00:30", "2006-01-02T15:34:05.000000Z"),
            ("2006-01-02T5:04:05Z", "2006-01-02T05:04:05.000000Z"),
            ("2006-01-01T00:00:00+24:00", "2005-12-31T00:00:00.000000Z"),
            ("2024-02-29T00:00:00Z", "2024-02-29T00:00:00.000000Z"),
            ("0001-01-01T00:00:00Z", "0001-01-01T00:00:00.000000Z"),
        ] {
            assert_eq!(parse(text).map(micro_time).as_deref(), Some(expected), "{text}");
        }
        for text in [
            "",
            "2006-01-02",
            "2006-01-02T15:04:05",
            "2006-01-02 15:04:05Z",
            "2006-01-02t15:04:05Z",
            "2006-01-02T15:04:05z",
            "2006-1-2T15:04:05Z",
            "2006-01-02T24:00:00Z",
            "2006-01-02T15:60:00Z",
            "2006-12-31T23:59:60Z",
            "2023-02-29T00:00:00Z",
            "2006-01-02T15:04:05.Z",
            "2006-01-02T15:04:05+0200",
            "2006-01-02T15:04:05+02",
            "2006-01-02T15:04:05+25:00",
            "2006-01-02T15:04:05+00:61",
            "2006-01-02T15:04:05ZZ",
            "+2006-01-02T15:04:05Z",
            "12006-01-02T15:04:05Z",
            "2006-01-02T15:04:05Z[UTC]",
            "2006-01-02T15:04:٥Z",
            "2006-01-02T15:04:05 Z",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn micro_times_have_six_digits() {
        assert_eq!(
            parse_micro("2006-01-02T15:04:05.000001Z").map(micro_time).as_deref(),
            Some("2006-01-02T15:04:05.000001Z")
        );
        for text in ["2006-01-02T15:04:05Z", "2006-01-02T15:04:05.1Z", "2006-01-02T15:04:05.0000001Z"] {
            assert_eq!(parse_micro(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_written_in_whole_seconds() {
        assert_eq!(parse("2006-01-02T15:04:05.999Z").map(time).as_deref(), Some("2006-01-02T15:04:05Z"));
    }
}
