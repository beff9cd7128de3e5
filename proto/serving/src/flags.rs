//! Values of command-line flags in the format of Kubernetes programs, for clap's `value_parser`.
//!
//! Declare a switch that also accepts `--x=false` as `#[arg(long, num_args = 0..=1, require_equals = true,
//! default_missing_value = "true", value_parser = flags::boolean)]`, and a list with commas and repetition as
//! `#[arg(long, value_delimiter = ',')]`.

use std::time::Duration;

pub use apimachinery::duration::format as duration_text;

use apimachinery::duration::DurationError;

/// The error of an invalid value of a flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagValueError {
    /// The value is not a duration.
    #[error("`{0}`: {1}")]
    Duration(String, DurationError),
    /// The value is not a boolean.
    #[error("`{0}` is neither true nor false")]
    Boolean(String),
    /// The value has no `=`, or no key before it.
    #[error("`{0}` is not of the form key=value")]
    KeyValue(String),
}

/// Parses a duration in Go format: `1h30m`, `5m0s`, `500ms`, `1.5h`, `0`. Negative values are rejected.
///
/// # Errors
///
/// The text is not a duration, or exceeds 64 bits of nanoseconds.
pub fn duration(text: &str) -> Result<Duration, FlagValueError> {
    apimachinery::duration::parse(text).map_err(|error| FlagValueError::Duration(text.to_owned(), error))
}

/// Parses a boolean as Go does.
///
/// # Errors
///
/// The text is not a boolean.
pub fn boolean(text: &str) -> Result<bool, FlagValueError> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(FlagValueError::Boolean(text.to_owned())),
    }
}

/// Parses `key=value` with a non-empty key.
///
/// # Errors
///
/// The text has no `=`, or no key before it.
pub fn key_value(text: &str) -> Result<(String, String), FlagValueError> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err(FlagValueError::KeyValue(text.to_owned())),
    }
}

/// Whether the entries of `--controllers` enable a controller, which can have several names.
///
/// As in kube-controller-manager, the first entry with one of `names` decides. Without such an entry, a controller
/// that is on by default is enabled if the list contains `*` or is empty. The flag with an empty value is a list of
/// one empty entry, which enables nothing.
pub fn is_controller_enabled(entries: &[String], names: &[&str], by_default: bool) -> bool {
    let words = || entries.iter().map(|entry| entry.trim());
    let decide = |word: &str| match word.strip_prefix('-') {
        Some(disabled) => names.contains(&disabled).then_some(false),
        None => names.contains(&word).then_some(true),
    };
    let decision = words().find_map(decide);
    decision.unwrap_or_else(|| by_default && (entries.is_empty() || words().any(|word| word == "*")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_flag_error_contains_value_and_form() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5_400)));
        for text in ["5", "-1s", "9999999999h"] {
            let error = duration(text).unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{text}`: ")), "{error}");
        }
        assert!(duration("5").unwrap_err().to_string().contains("use a form like 1h30m"));
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
