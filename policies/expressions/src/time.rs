//! Timestamps and durations: text forms, arithmetic and calendar fields.
//!
//! # Contract
//! A [`Timestamp`] is between 0001-01-01T00:00:00Z and 9999-12-31T23:59:59.999999999Z. Operations with
//! results outside this range are errors. Durations are 64-bit nanoseconds.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

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

/// A point in time with nanosecond precision. Its text has the offset of the text that it was parsed from.
#[derive(Clone, Copy, Debug)]
pub struct Timestamp {
    /// Seconds since 1970, rounded down.
    seconds: i64,
    nanos: u32,
    /// Offset of the text from UTC in minutes; equal times with different offsets are equal.
    offset_minutes: i16,
}

impl PartialEq for Timestamp {
    fn eq(&self, other: &Timestamp) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Timestamp {}

impl PartialOrd for Timestamp {
    fn partial_cmp(&self, other: &Timestamp) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timestamp {
    fn cmp(&self, other: &Timestamp) -> Ordering {
        (self.seconds, self.nanos).cmp(&(other.seconds, other.nanos))
    }
}

impl Hash for Timestamp {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.seconds, self.nanos).hash(state);
    }
}

/// Fields of the calendar and of the clock at a point in time.
pub(crate) struct CivilTime {
    pub(crate) year: i64,
    /// From 1.
    pub(crate) month: i64,
    /// From 1.
    pub(crate) day: i64,
    /// From 1.
    pub(crate) day_of_year: i64,
    /// From 0, which is Sunday.
    pub(crate) weekday: i64,
    pub(crate) hour: i64,
    pub(crate) minute: i64,
    pub(crate) second: i64,
    pub(crate) nanos: u32,
}

impl Timestamp {
    /// Timestamp from seconds and nanoseconds since 1970.
    /// `None` outside the timestamp range, or if `nanos` is a second or more.
    pub fn new(seconds: i64, nanos: u32) -> Option<Timestamp> {
        ((FIRST_SECOND..=LAST_SECOND).contains(&seconds) && i128::from(nanos) < NANOS_PER_SECOND)
            .then_some(Timestamp { seconds, nanos, offset_minutes: 0 })
    }

    /// The canonical identity of the time, without its offset.
    pub(crate) fn canonical(self) -> String {
        format!("{}.{:09}", self.seconds, self.nanos)
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
        let sum = Timestamp::from_nanoseconds(self.nanoseconds() + i128::from(nanos))?;
        Ok(Timestamp { offset_minutes: self.offset_minutes, ..sum })
    }

    /// Nanoseconds since `earlier`.
    pub(crate) fn since(self, earlier: Timestamp) -> Result<i64, EvalError> {
        i64::try_from(self.nanoseconds() - earlier.nanoseconds())
            .map_err(|_| EvalError::failed("integer overflow"))
    }

    /// Date and time of day in a time zone; in UTC without a zone.
    pub(crate) fn in_zone(self, zone: Option<&str>) -> Result<CivilTime, EvalError> {
        let offset = match zone {
            None => 0,
            Some(zone) => zones::offset(zone, self.seconds)?,
        };
        Ok(self.civil_time(i64::from(offset)))
    }

    /// Date and time of day at an offset from UTC in seconds, in the Gregorian calendar of any year.
    fn civil_time(self, offset: i64) -> CivilTime {
        const DAY: i64 = 86_400;
        let local = self.seconds.saturating_add(offset);
        let (days, clock) = (local.div_euclid(DAY), local.rem_euclid(DAY));
        // Years that begin in March, in eras of 400 years, make the leap day the last day of a year.
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_since_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_since_march = (5 * day_since_march + 2) / 153;
        let month = if month_since_march < 10 { month_since_march + 3 } else { month_since_march - 9 };
        let year = era * 400 + year_of_era + i64::from(month < 3);
        let is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let day_of_year =
            if month < 3 { day_since_march - 305 } else { day_since_march + 60 + i64::from(is_leap) };
        CivilTime {
            year,
            month,
            day: day_since_march - (153 * month_since_march + 2) / 5 + 1,
            day_of_year,
            weekday: (days + 4).rem_euclid(7),
            hour: clock / 3_600,
            minute: clock / 60 % 60,
            second: clock % 60,
            nanos: self.nanos,
        }
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minutes = self.offset_minutes;
        let CivilTime { year, month, day, hour, minute, second, nanos, .. } =
            self.civil_time(i64::from(minutes) * 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")?;
        if nanos > 0 {
            let fraction = format!("{nanos:09}");
            write!(f, ".{}", fraction.trim_end_matches('0'))?;
        }
        if minutes == 0 {
            return f.write_str("Z");
        }
        let sign = if minutes < 0 { '-' } else { '+' };
        write!(f, "{sign}{:02}:{:02}", minutes.abs() / 60, minutes.abs() % 60)
    }
}

static EPOCH: DateTime = date(1970, 1, 1).at(0, 0, 0, 0);

fn overflow_error() -> EvalError {
    EvalError::failed("timestamp overflow")
}

/// Parses an RFC 3339 timestamp with capital `T` and `Z`, seconds and an offset.
pub(crate) fn parse_timestamp(text: &str) -> Result<Timestamp, EvalError> {
    rfc_3339(text).ok_or_else(|| {
        EvalError::failed("type conversion error from 'string' to 'google.protobuf.Timestamp'")
    })
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
    let time = Timestamp::new(time.duration_since(EPOCH).as_secs() - offset, nanos)?;
    Some(Timestamp { offset_minutes: i16::try_from(offset / 60).ok()?, ..time })
}

/// Parses a duration such as `1h30m`, `-1.5s` or `100ms` to nanoseconds.
pub(crate) fn parse_duration(text: &str) -> Result<i64, EvalError> {
    let failed = || EvalError::failed("type conversion error from 'string' to 'google.protobuf.Duration'");
    if text.len() > MAX_DURATION_BYTES {
        return Err(failed());
    }
    apimachinery::duration::parse_nanos(text).map_err(|_| failed())
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
            ("2021-01-01T00:00:00.123456789+05:30", Some("2021-01-01T00:00:00.123456789+05:30")),
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
