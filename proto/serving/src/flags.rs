//! Values of command-line flags in the format of Kubernetes programs, for clap's `value_parser`.
//!
//! Declare a switch that also accepts `--x=false` as `#[arg(long, num_args = 0..=1, require_equals = true,
//! default_missing_value = "true", value_parser = flags::boolean)]`, and a list with commas and repetition as
//! `#[arg(long, value_delimiter = ',')]`.

use std::time::Duration;

pub use apimachinery::duration::format as duration_text;

/// Parses a duration in Go format: `1h30m`, `5m0s`, `500ms`, `1.5h`, `0`. Negative values are rejected.
///
/// # Errors
///
/// The text is not a duration, or exceeds 64 bits of nanoseconds.
pub fn duration(text: &str) -> Result<Duration, String> {
    apimachinery::duration::parse(text).map_err(|error| format!("`{text}`: {error}"))
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
    fn duration_flag_error_contains_value_and_form() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5_400)));
        for text in ["5", "-1s", "9999999999h"] {
            assert!(duration(text).is_err_and(|error| error.starts_with(&format!("`{text}`: "))), "{text}");
        }
        assert!(duration("5").is_err_and(|error| error.contains("use a form like 1h30m")));
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
