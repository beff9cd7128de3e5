//! Timestamps and durations: text forms, arithmetic and calendar fields.
//!
//! # Contract
//! A [`Timestamp`] is between 0001-01-01T00:00:00Z and 9999-12-31T23:59:59.999999999Z. Operations with
//! results outside this range are errors. Durations are 64-bit nanoseconds.

use std::fmt;

use jiff::SignedDuration;
use jiff::civil::{Date, DateTime, date};

use crate::error::EvalError;
use crate::zones;

const NANOS_PER_SECOND: i128 = 1_000_000_000;
/// First second of the timestamp range, since 1970.
const FIRST_SECOND: i64 = -62_135_596_800;
/// Last second of the timestamp range, since 1970.
const LAST_SECOND: i64 = 253_402_300_799;
/// Maximum length of a duration text in bytes; a longer text is an error.
const MAX_DURATION_BYTES: usize = 256;

/// A point in time with nanosecond precision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970, rounded down.
    seconds: i64,
    nanos: u32,
}

impl Timestamp {
    /// Timestamp from seconds and nanoseconds since 1970.
    /// `None` outside the timestamp range, or if `nanos` is a second or more.
    pub fn new(seconds: i64, nanos: u32) -> Option<Timestamp> {
        ((FIRST_SECOND..=LAST_SECOND).contains(&seconds) && i128::from(nanos) < NANOS_PER_SECOND)
            .then_some(Timestamp { seconds, nanos })
    }

    /// Whole seconds since 1970, rounded down.
    pub fn seconds(self) -> i64 {
        self.seconds
    }

    fn nanoseconds(self) -> i128 {
        i128::from(self.seconds) * NANOS_PER_SECOND + i128::from(self.nanos)
    }

    fn from_nanoseconds(nanos: i128) -> Result<Timestamp, EvalError> {
        let seconds = i64::try_from(nanos.div_euclid(NANOS_PER_SECOND)).ok();
        let rest = u32::try_from(nanos.rem_euclid(NANOS_PER_SECOND)).unwrap_or_default();
        seconds.and_then(|seconds| Timestamp::new(seconds, rest)).ok_or_else(overflow_error)
    }

    /// Adds nanoseconds.
    pub(crate) fn plus(self, nanos: i64) -> Result<Timestamp, EvalError> {
        Timestamp::from_nanoseconds(self.nanoseconds() + i128::from(nanos))
    }

    /// Nanoseconds since `earlier`.
    pub(crate) fn since(self, earlier: Timestamp) -> Result<i64, EvalError> {
        i64::try_from(self.nanoseconds() - earlier.nanoseconds())
            .map_err(|_| EvalError::failed("duration overflow"))
    }

    /// Date and time of day in a time zone; in UTC without a zone.
    pub(crate) fn in_zone(self, zone: Option<&str>) -> Result<DateTime, EvalError> {
        let offset = match zone {
            None => 0,
            Some(zone) => zones::offset(zone, self.seconds)?,
        };
        self.civil_time(i64::from(offset)).ok_or_else(overflow_error)
    }

    /// Date and time of day at an offset from UTC in seconds; None if the year is out of range.
    fn civil_time(self, offset: i64) -> Option<DateTime> {
        let nanos = i32::try_from(self.nanos).ok()?;
        EPOCH.checked_add(SignedDuration::new(self.seconds + offset, nanos)).ok()
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.civil_time(0) {
            Some(utc) => write!(f, "{utc}Z"),
            None => write!(f, "{}s", self.seconds),
        }
    }
}

static EPOCH: DateTime = date(1970, 1, 1).at(0, 0, 0, 0);

fn overflow_error() -> EvalError {
    EvalError::failed("timestamp overflow")
}

/// Parses an RFC 3339 timestamp with capital `T` and `Z`, seconds and an offset.
pub(crate) fn parse_timestamp(text: &str) -> Result<Timestamp, EvalError> {
    rfc_3339(text).ok_or_else(|| EvalError::failed(format!("invalid timestamp `{text}`")))
}

/// Parses a field of format `date` or `date-time`. Lower-case `t` and `z` are allowed.
pub(crate) fn parse_field(text: &str) -> Result<Timestamp, EvalError> {
    let invalid_date = || EvalError::failed(format!("invalid date `{text}`"));
    if text.len() == 10 {
        let day: Date = text.parse().map_err(|_| invalid_date())?;
        return from_civil_time(day.at(0, 0, 0, 0), 0, 0).ok_or_else(invalid_date);
    }
    rfc_3339(&text.to_ascii_uppercase()).ok_or_else(invalid_date)
}

fn rfc_3339(text: &str) -> Option<Timestamp> {
    let digits = |from: usize, to: usize| -> Option<i16> {
        let part = text.get(from..to)?;
        part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse().ok())?
    };
    let two_digits = |from: usize| i8::try_from(digits(from, from + 2)?).ok();
    let punctuation = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if punctuation.iter().any(|(at, expected)| text.as_bytes().get(*at) != Some(expected)) {
        return None;
    }
    let time = DateTime::new(
        digits(0, 4)?,
        two_digits(5)?,
        two_digits(8)?,
        two_digits(11)?,
        two_digits(14)?,
        two_digits(17)?,
        0,
    )
    .ok()?;
    let rest = text.get(19..)?;
    let (nanos, zone) = match rest.strip_prefix('.') {
        Some(rest) => {
            let end = rest.find(|c: char| !c.is_ascii_digit()).filter(|end| *end > 0)?;
            let nanos_digits = rest.get(..end.min(9))?;
            let scale = 10_u32.pow(9 - u32::try_from(nanos_digits.len()).ok()?);
            (nanos_digits.parse::<u32>().ok()? * scale, rest.get(end..)?)
        }
        None => (0, rest),
    };
    let offset = match zone {
        "Z" => 0,
        _ => {
            let sign = match zone.as_bytes() {
                [b'+', _, _, b':', _, _] => 1,
                [b'-', _, _, b':', _, _] => -1,
                _ => return None,
            };
            let number = |from: usize| zone.get(from..from + 2)?.parse::<u8>().ok();
            let (hours, minutes) = (i64::from(number(1)?), i64::from(number(4)?));
            (hours < 24 && minutes < 60).then_some(sign * (hours * 3_600 + minutes * 60))?
        }
    };
    from_civil_time(time, nanos, offset)
}

fn from_civil_time(time: DateTime, nanos: u32, offset: i64) -> Option<Timestamp> {
    Timestamp::new(time.duration_since(EPOCH).as_secs() - offset, nanos)
}

/// Parses a duration such as `1h30m`, `-1.5s` or `100ms` to nanoseconds.
pub(crate) fn parse_duration(text: &str) -> Result<i64, EvalError> {
    if text.len() > MAX_DURATION_BYTES {
        return Err(EvalError::failed("invalid duration: the text is too long"));
    }
    apimachinery::duration::parse_nanos(text)
        .map_err(|_| EvalError::failed(format!("invalid duration `{text}`")))
}

/// Formats a duration in seconds with the necessary decimals and the suffix `s`.
pub(crate) fn format_duration(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let (seconds, rest) = (nanos.unsigned_abs() / 1_000_000_000, nanos.unsigned_abs() % 1_000_000_000);
    if rest == 0 {
        return format!("{sign}{seconds}s");
    }
    let fraction = format!("{rest:09}");
    format!("{sign}{seconds}.{}s", fraction.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_and_formatted() {
        for (text, nanos) in [
            ("1h30m", Some(5_400 * 1_000_000_000)),
            ("-1.5s", Some(-1_500_000_000)),
            ("100ms", Some(100_000_000)),
            (".5s", Some(500_000_000)),
            ("0", Some(0)),
            ("1", None),
            ("", None),
            ("1x", None),
            ("1.2.3s", None),
            (".s", None),
            ("99999999999h", None),
        ] {
            assert_eq!(parse_duration(text).ok(), nanos, "{text}");
        }
        assert!(parse_duration(&"1s".repeat(200)).is_err());
        assert_eq!(format_duration(-1_500_000_000), "-1.5s");
        assert_eq!(format_duration(5_400_000_000_000), "5400s");
    }

    #[test]
    fn timestamps_are_parsed_as_rfc_3339() {
        for (text, expected) in [
            ("2021-01-01T00:00:00Z", Some("2021-01-01T00:00:00Z")),
            ("2021-01-01T00:00:00.123456789+05:30", Some("2020-12-31T18:30:00.123456789Z")),
            ("2021-01-01T00:00:00.5000000009Z", Some("2021-01-01T00:00:00.5Z")),
            ("9999-12-31T23:59:59.999999999Z", Some("9999-12-31T23:59:59.999999999Z")),
            ("0001-01-01T00:00:00Z", Some("0001-01-01T00:00:00Z")),
            ("0001-01-01T00:00:00+00:01", None),
            ("9999-12-31T23:59:59-00:01", None),
            ("0000-12-31T23:59:59Z", None),
            ("2021-01-01", None),
            ("2021-01-01 00:00:00Z", None),
            ("2021-01-01t00:00:00z", None),
            ("2021-01-01T00:00:00", None),
            ("2021-01-01T00:00:00.Z", None),
            ("2021-13-01T00:00:00Z", None),
            ("2021-02-29T00:00:00Z", None),
            ("2021-01-01T24:00:00Z", None),
            ("2021-01-01T00:00:60Z", None),
            ("2021-01-01T00:00:00Z[UTC]", None),
            ("2021-01-01T00:00:00+24:00", None),
            ("2021-01-01T00:00:00+0100", None),
            ("+021-01-01T00:00:00Z", None),
        ] {
            let parsed = parse_timestamp(text).ok().map(|time| time.to_string());
            assert_eq!(parsed.as_deref(), expected, "{text}");
        }
        assert_eq!(parse_field("2021-01-01t00:00:00z").unwrap(), parse_field("2021-01-01").unwrap());
    }
}
