//! Time formats of API objects: RFC 3339 in UTC, whole seconds (`Time`) or six digits (`MicroTime`).
//!
//! # Reference
//!
//! The parser accepts the same texts as Go's `time.Parse(time.RFC3339, …)`: any offset up to 24:60, a
//! fraction after a dot or a comma, an hour of one digit. It rejects leap seconds, lower-case `t` or `z`, and
//! years that do not have four digits.

use jiff::civil::DateTime;
use jiff::tz::Offset;
use jiff::{SignedDuration, Timestamp};

/// Formats a `Time`: `2006-01-02T15:04:05Z`.
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Formats a `MicroTime`: `2006-01-02T15:04:05.000000Z`.
pub fn micro_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Converts seconds and nanoseconds since 1970; None: the year is out of range.
pub fn from_unix(seconds: i64, nanos: i32) -> Option<Timestamp> {
    Timestamp::new(seconds, nanos).ok()
}

/// Parses a `Time`: RFC 3339 with any offset, with or without a fraction.
pub fn parse(text: &str) -> Option<Timestamp> {
    read(text, None)
}

/// Parses a `MicroTime`: RFC 3339 with any offset and a fraction of exactly six digits.
pub fn parse_micro(text: &str) -> Option<Timestamp> {
    read(text, Some(6))
}

fn read(text: &str, fraction_digits: Option<usize>) -> Option<Timestamp> {
    let mut rest = Reader(text);
    let year = rest.digits(4)?;
    rest.symbol("-")?;
    let month = rest.digits(2)?;
    rest.symbol("-")?;
    let day = rest.digits(2)?;
    rest.symbol("T")?;
    let hour = rest.digits(2).or_else(|| rest.digits(1))?;
    rest.symbol(":")?;
    let minute = rest.digits(2)?;
    rest.symbol(":")?;
    let second = rest.digits(2)?;
    let nanosecond = rest.fraction(fraction_digits)?;
    let offset = rest.offset()?;
    let small = |n: i32| i8::try_from(n).ok();
    let local = DateTime::new(
        i16::try_from(year).ok()?,
        small(month)?,
        small(day)?,
        small(hour)?,
        small(minute)?,
        small(second)?,
        nanosecond,
    )
    .ok()?;
    Offset::UTC.to_timestamp(local).ok()?.checked_sub(SignedDuration::from_secs(offset)).ok()
}

/// Text that has not been read.
struct Reader<'t>(&'t str);

impl Reader<'_> {
    /// Reads exactly `count` digits.
    fn digits(&mut self, count: usize) -> Option<i32> {
        let (digits, rest) = self.0.split_at_checked(count)?;
        if !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        self.0 = rest;
        digits.parse().ok()
    }

    fn symbol(&mut self, symbol: &str) -> Option<()> {
        self.0 = self.0.strip_prefix(symbol)?;
        Some(())
    }

    /// Reads the nanoseconds of a fraction. Without `required_count` any number of digits is accepted, and the
    /// fraction is optional.
    fn fraction(&mut self, required_count: Option<usize>) -> Option<i32> {
        let Some(after) = self.0.strip_prefix(['.', ',']) else {
            return required_count.is_none().then_some(0);
        };
        let count = after.bytes().take_while(u8::is_ascii_digit).count();
        if count == 0 || required_count.is_some_and(|required| required != count) {
            return None;
        }
        let (digits, rest) = after.split_at_checked(count)?;
        self.0 = rest;
        format!("{:0<9.9}", digits).parse().ok()
    }

    /// Reads the offset in seconds east of UTC, which must be the end of the text.
    fn offset(&mut self) -> Option<i64> {
        if self.0 == "Z" {
            return Some(0);
        }
        let sign = if self.0.starts_with('-') { -1 } else { 1 };
        self.0 = self.0.strip_prefix(['+', '-'])?;
        let hours = self.digits(2)?;
        self.symbol(":")?;
        let minutes = self.digits(2)?;
        (self.0.is_empty() && hours <= 24 && minutes <= 60)
            .then(|| sign * (i64::from(hours) * 3600 + i64::from(minutes) * 60))
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
