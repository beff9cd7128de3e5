//! Values of command-line flags in the format of Kubernetes programs, for clap's `value_parser`.
//!
//! Declare a switch that also accepts `--x=false` as `#[arg(long, num_args = 0..=1, require_equals = true,
//! default_missing_value = "true", value_parser = flags::boolean)]`, and a list with commas and repetition as
//! `#[arg(long, value_delimiter = ',')]`.

use std::time::Duration;

/// Parses a duration in Go format: `1h30m`, `5m0s`, `500ms`, `1.5h`, `0`. Negative values are rejected.
///
/// # Errors
///
/// The text is not a duration, or exceeds 64 bits of nanoseconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration: use a form like 1h30m, 5m0s or 500ms");
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return Err(wrong());
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (digits, after) = rest.split_at_checked(number).ok_or_else(wrong)?;
        let length = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at_checked(length).ok_or_else(wrong)?;
        let unit: u128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(wrong()),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if whole.len() + fraction.len() == 0 || fraction.contains('.') || whole.len() > 19 {
            return Err(wrong());
        }
        let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| wrong())? };
        // Digits beyond the fifteenth are below a nanosecond for every unit.
        let fraction = fraction.get(..15).unwrap_or(fraction);
        let scale = 10_u128.pow(u32::try_from(fraction.len()).map_err(|_| wrong())?);
        let part: u128 = if fraction.is_empty() { 0 } else { fraction.parse().map_err(|_| wrong())? };
        nanos += whole * unit + part * unit / scale;
        rest = after;
    }
    match i64::try_from(nanos) {
        Ok(nanos) => Ok(Duration::from_nanos(nanos.unsigned_abs())),
        Err(_) => Err(format!("`{text}` is longer than 292 years")),
    }
}

/// Formats a duration as Go prints it: `5m0s`, `1h0m0s`, `1.5s`, `500ms`, `0s`.
pub fn duration_text(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let decimal = |unit: u128| {
        let text = format!("{}.{:0width$}", nanos / unit, nanos % unit, width = unit.ilog10() as usize);
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    match nanos {
        0 => "0s".to_owned(),
        1..=999 => format!("{nanos}ns"),
        1_000..=999_999 => format!("{}µs", decimal(1_000)),
        1_000_000..=999_999_999 => format!("{}ms", decimal(1_000_000)),
        _ => {
            let (hours, minutes) = (duration.as_secs() / 3600, duration.as_secs() / 60 % 60);
            let below = Duration::new(duration.as_secs() % 60, duration.subsec_nanos()).as_nanos();
            let seconds = format!("{}.{:09}", below / 1_000_000_000, below % 1_000_000_000);
            let seconds = seconds.trim_end_matches('0').trim_end_matches('.');
            match (hours, minutes) {
                (0, 0) => format!("{seconds}s"),
                (0, minutes) => format!("{minutes}m{seconds}s"),
                (hours, minutes) => format!("{hours}h{minutes}m{seconds}s"),
            }
        }
    }
}

/// Parses a boolean as Go does.
///
/// # Errors
///
/// The text is not a boolean.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(format!("`{text}` is neither true nor false")),
    }
}

/// Parses `key=value` with a non-empty key.
///
/// # Errors
///
/// The text has no `=`, or no key before it.
pub fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not of the form key=value")),
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
            ("2562047h47m16.854775807s", i64::MAX as u64, "2562047h47m16.854775807s"),
        ] {
            let parsed = duration(text).unwrap();
            assert_eq!(parsed, Duration::from_nanos(nanos), "{text}");
            assert_eq!(duration_text(parsed), printed, "{text}");
        }
        for text in [
            "",
            "+",
            "5",
            "s",
            ".s",
            "1x",
            "1m5",
            "-1s",
            "1..5s",
            "1 s",
            "9999999999h",
            "99999999999999999999s",
            "1é",
        ] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn boolean_and_key_value_flags_are_parsed() {
        assert_eq!(boolean("T"), Ok(true));
        assert_eq!(boolean("False"), Ok(false));
        assert!(boolean("yes").is_err() && boolean("").is_err());
        assert_eq!(key_value("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(key_value("=b").is_err() && key_value("a").is_err());
    }
}
