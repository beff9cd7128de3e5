//! The reasons why the reference does not parse a time.
//!
//! # Contract
//!
//! [`describe`] returns the message of the Go package `time` for a text that is no time. It reads the text element by
//! element, as that package does: the first element without its text is the reason.

use apimachinery::field::quote;
use jiff::civil::Date;

/// Layout of times, as Go writes it.
const LAYOUT: &str = "2006-01-02T15:04:05Z07:00";
/// Layout of times with microseconds.
const MICRO_LAYOUT: &str = "2006-01-02T15:04:05.000000Z07:00";

/// Elements of the date and the time of day: the separator before the element, its text in the layout, its name, and its
/// least and greatest values.
const ELEMENTS: [(&str, &str, &str, u32, u32); 5] = [
    ("-", "01", "month", 1, 12),
    ("-", "02", "day", 0, 99),
    ("T", "15", "hour", 0, 23),
    (":", "04", "minute", 0, 59),
    (":", "05", "second", 0, 59),
];

/// The reason at one element.
enum Reason<'t> {
    /// The rest of the text does not begin with the element of the layout.
    Missing { element: &'static str, rest: &'t str },
    /// A message about a value.
    Other(String),
}

impl<'t> Reason<'t> {
    fn missing(element: &'static str, rest: &'t str) -> Self {
        Reason::Missing { element, rest }
    }

    fn out_of_range(name: &str) -> Self {
        Reason::Other(format!("{name} out of range"))
    }
}

/// Returns the message for a text that is no time, with six digits of a second if `micro`.
pub(crate) fn describe(text: &str, micro: bool) -> String {
    let quoted = quote(text);
    match read(text, micro) {
        Err(Reason::Missing { element, rest }) => {
            let layout = if micro { MICRO_LAYOUT } else { LAYOUT };
            format!("parsing time {quoted} as \"{layout}\": cannot parse {} as \"{element}\"", quote(rest))
        }
        Err(Reason::Other(message)) => format!("parsing time {quoted}: {message}"),
        // Every element is valid. Our parser rejects such a text only for a year outside its range.
        Ok(()) => format!("parsing time {quoted}: year out of range"),
    }
}

fn read(text: &str, micro: bool) -> Result<(), Reason<'_>> {
    let mut rest = text;
    let year = take_digits(&mut rest, 4).ok_or(Reason::missing("2006", text))?;
    let (mut month, mut day) = (0, 0);
    for (separator, element, name, min, max) in ELEMENTS {
        let after = rest.strip_prefix(separator).ok_or(Reason::missing(separator, rest))?;
        rest = after;
        // An hour may have one digit.
        let value = match take_digits(&mut rest, 2) {
            None if name == "hour" => take_digits(&mut rest, 1),
            value => value,
        };
        let value = value.ok_or(Reason::missing(element, after))?;
        if !(min..=max).contains(&value) {
            return Err(Reason::out_of_range(name));
        }
        match name {
            "month" => month = value,
            "day" => day = value,
            _ => {}
        }
    }
    if micro {
        rest = fraction(rest)?;
    } else if let Some(fraction) = rest.strip_prefix(['.', ',']) {
        let after = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
        rest = if after.len() < fraction.len() { after } else { rest };
    }
    let end = zone(rest)?;
    if !end.is_empty() {
        return Err(Reason::Other(format!("extra text: {}", quote(end))));
    }
    match days(year, month) {
        Some(days) if (1..=days).contains(&day) => Ok(()),
        _ => Err(Reason::out_of_range("day")),
    }
}

/// Takes a number with this many digits from the beginning of a text.
fn take_digits(text: &mut &str, count: usize) -> Option<u32> {
    let (digits, rest) = text.split_at_checked(count)?;
    let value = digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())??;
    *text = rest;
    Some(value)
}

/// Reads a dot or comma with six digits, and returns the text behind it.
fn fraction(text: &str) -> Result<&str, Reason<'_>> {
    let missing = || Reason::missing(".000000", text);
    let mut rest = text.strip_prefix(['.', ',']).ok_or_else(missing)?;
    take_digits(&mut rest, 6).ok_or_else(missing)?;
    Ok(rest)
}

/// Reads `Z` or an offset, and returns the text behind it.
fn zone(text: &str) -> Result<&str, Reason<'_>> {
    if let Some(rest) = text.strip_prefix('Z') {
        return Ok(rest);
    }
    let missing = || Reason::missing("Z07:00", text);
    let mut rest = text.strip_prefix(['+', '-']).ok_or_else(missing)?;
    let hour = take_digits(&mut rest, 2).ok_or_else(missing)?;
    rest = rest.strip_prefix(':').ok_or_else(missing)?;
    let minute = take_digits(&mut rest, 2).ok_or_else(missing)?;
    match (hour, minute) {
        (25.., _) => Err(Reason::out_of_range("time zone offset hour")),
        (_, 61..) => Err(Reason::out_of_range("time zone offset minute")),
        _ => Ok(rest),
    }
}

/// Number of days of a month; None for a year outside the calendar.
fn days(year: u32, month: u32) -> Option<u32> {
    let first = Date::new(i16::try_from(year).ok()?, i8::try_from(month).ok()?, 1).ok()?;
    u32::try_from(first.days_in_month()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_time_has_reason_of_go() {
        for (text, reason) in [
            ("", r#" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "2006""#),
            ("notatime", r#" as "2006-01-02T15:04:05Z07:00": cannot parse "notatime" as "2006""#),
            ("2020-01-01", r#" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "T""#),
            ("2020-1-01T", r#" as "2006-01-02T15:04:05Z07:00": cannot parse "1-01T" as "01""#),
            ("2020-13-01T00:00:00Z", ": month out of range"),
            ("2020-01-01T24:00:00Z", ": hour out of range"),
            ("2020-02-30T00:00:00Z", ": day out of range"),
            ("2023-02-29T00:00:00Z", ": day out of range"),
            ("2024-02-29T00:00:00Zx", r#": extra text: "x""#),
            ("2020-01-01T00:00:00", r#" as "2006-01-02T15:04:05Z07:00": cannot parse "" as "Z07:00""#),
            ("2020-01-01T00:00:00.5+25:00", ": time zone offset hour out of range"),
            ("2020-01-01T00:00:00Zx", r#": extra text: "x""#),
        ] {
            assert_eq!(describe(text, false), format!("parsing time {text:?}{reason}"));
        }
        assert_eq!(
            describe("2020-01-01T00:00:00Z", true),
            "parsing time \"2020-01-01T00:00:00Z\" as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse \"Z\" as \
             \".000000\""
        );
    }
}
