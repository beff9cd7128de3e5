//! Times and durations: their text forms and calendar fields.

use jiff::civil::Date;
use jiff::tz::{Offset, TimeZone};
use jiff::{Timestamp, Zoned};

use crate::error::EvalError;

const SECOND: i128 = 1_000_000_000;

/// A time in RFC 3339, years 1 to 9999.
pub(crate) fn parse_timestamp(text: &str) -> Result<Timestamp, EvalError> {
    let bad = || EvalError::failed(format!("invalid timestamp `{text}`"));
    // RFC 3339 wants the whole form, with `T` and an offset; more lenient forms are refused.
    let separator = text.as_bytes().get(10).copied();
    if !matches!(separator, Some(b'T' | b't')) || text.contains(['[', ',']) {
        return Err(bad());
    }
    let time: Timestamp = text.parse().map_err(|_| bad())?;
    in_range(time).ok_or_else(bad)
}

/// The time, when it is in the years that expressions know.
pub(crate) fn in_range(time: Timestamp) -> Option<Timestamp> {
    (-62_135_596_800..=253_402_300_799).contains(&time.as_second()).then_some(time)
}

/// A field of format `date` or `date-time`.
pub(crate) fn parse_field(text: &str) -> Result<Timestamp, EvalError> {
    if text.len() == 10 {
        let date: Date = text.parse().map_err(|_| EvalError::failed(format!("invalid date `{text}`")))?;
        let zoned = date.to_zoned(TimeZone::UTC).map_err(|_| EvalError::failed("timestamp overflow"))?;
        return Ok(zoned.timestamp());
    }
    parse_timestamp(text)
}

/// A duration such as `1h30m`, `-1.5s`, `100ms`, in nanoseconds.
pub(crate) fn parse_duration(text: &str) -> Result<i64, EvalError> {
    let bad = || EvalError::failed(format!("invalid duration `{text}`"));
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(bad());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(bad)?;
        let (number, after) = rest.split_at(end);
        let unit_end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit_end);
        let scale: i128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => SECOND,
            "m" => 60 * SECOND,
            "h" => 3_600 * SECOND,
            _ => return Err(bad()),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(bad());
        }
        let digits = |text: &str| -> Result<i128, EvalError> {
            if text.is_empty() { Ok(0) } else { text.parse::<i64>().map(i128::from).map_err(|_| bad()) }
        };
        total += digits(whole)? * scale;
        let kept = fraction.get(..fraction.len().min(18)).unwrap_or_default();
        let power = u32::try_from(kept.len()).unwrap_or(0);
        total += digits(kept)? * scale / 10_i128.pow(power);
        if total > 1 << 64 {
            return Err(bad());
        }
        rest = after;
    }
    i64::try_from(if negative { -total } else { total }).map_err(|_| bad())
}

/// The text of a duration: seconds with as many decimals as needed, and `s`.
pub(crate) fn format_duration(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let (seconds, rest) = (nanos.unsigned_abs() / 1_000_000_000, nanos.unsigned_abs() % 1_000_000_000);
    if rest == 0 {
        return format!("{sign}{seconds}s");
    }
    let fraction = format!("{rest:09}");
    format!("{sign}{seconds}.{}s", fraction.trim_end_matches('0'))
}

/// The time plus nanoseconds.
pub(crate) fn add(time: Timestamp, nanos: i64) -> Result<Timestamp, EvalError> {
    let sum = time.as_nanosecond() + i128::from(nanos);
    let time = Timestamp::from_nanosecond(sum).ok().and_then(in_range);
    time.ok_or_else(|| EvalError::failed("timestamp overflow"))
}

/// The nanoseconds between two times.
pub(crate) fn between(later: Timestamp, earlier: Timestamp) -> Result<i64, EvalError> {
    i64::try_from(later.as_nanosecond() - earlier.as_nanosecond())
        .map_err(|_| EvalError::failed("duration overflow"))
}

/// The time on the clocks of a zone: `UTC`, or an offset such as `+05:30` or `-8:00`.
pub(crate) fn in_zone(time: Timestamp, zone: Option<&str>) -> Result<Zoned, EvalError> {
    let zone = match zone {
        None | Some("UTC" | "") => TimeZone::UTC,
        Some(name) => match parse_offset(name) {
            Some(offset) => TimeZone::fixed(offset),
            None => {
                TimeZone::get(name).map_err(|_| EvalError::failed(format!("unknown time zone {name}")))?
            }
        },
    };
    Ok(time.to_zoned(zone))
}

fn parse_offset(text: &str) -> Option<Offset> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let (hours, minutes) = digits.split_once(':')?;
    let (hours, minutes): (i32, i32) = (hours.parse().ok()?, minutes.parse().ok()?);
    Offset::from_seconds(sign * (hours * 3_600 + minutes * 60)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
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
        assert_eq!(format_duration(-1_500_000_000), "-1.5s");
        assert_eq!(format_duration(5_400_000_000_000), "5400s");
    }

    #[test]
    fn timestamps_are_rfc_3339() {
        for (text, good) in [
            ("2021-01-01T00:00:00Z", true),
            ("2021-01-01T00:00:00.123456789+05:30", true),
            ("9999-12-30T00:00:00Z", true),
            ("2021-01-01", false),
            ("2021-01-01 00:00:00Z", false),
            ("2021-01-01T00:00:00", false),
            ("2021-13-01T00:00:00Z", false),
            ("2021-01-01T00:00:00Z[UTC]", false),
        ] {
            assert_eq!(parse_timestamp(text).is_ok(), good, "{text}");
        }
    }
}
