//! The values of flags, for clap's `value_parser`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use verbs::addresses::{ServiceRange, ServiceRangeError};

/// The reason why the value of a flag is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ValueError {
    #[error("not an IP address")]
    IpAddress,
    #[error("not a port (0 to 65535)")]
    Port,
    #[error("not a number of seconds")]
    Seconds,
    #[error("not a number of requests")]
    RequestCount,
    #[error("not a whole number above 0")]
    Count,
    #[error("not a size above 0")]
    TreeBytes,
    #[error("not a number of bytes")]
    ByteSize,
    #[error("too large")]
    TooLarge,
}

/// The ranges of `--service-cluster-ip-range`.
#[derive(Clone, Debug)]
pub(crate) struct ServiceRanges(pub(crate) Vec<ServiceRange>);

impl FromStr for ServiceRanges {
    type Err = ServiceRangeError;

    fn from_str(text: &str) -> Result<Self, ServiceRangeError> {
        ServiceRange::parse_list(text).map(ServiceRanges)
    }
}

impl fmt::Display for ServiceRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ranges: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        f.write_str(&ranges.join(","))
    }
}

pub(super) fn ip_address(text: &str) -> Result<IpAddr, ValueError> {
    text.parse().map_err(|_| ValueError::IpAddress)
}

pub(super) fn port(text: &str) -> Result<u16, ValueError> {
    text.parse().map_err(|_| ValueError::Port)
}

pub(super) fn seconds(text: &str) -> Result<Duration, ValueError> {
    text.parse().map(Duration::from_secs).map_err(|_| ValueError::Seconds)
}

pub(super) fn request_count(text: &str) -> Result<usize, ValueError> {
    text.parse().map_err(|_| ValueError::RequestCount)
}

pub(super) fn count(text: &str) -> Result<usize, ValueError> {
    text.parse().ok().filter(|count| *count > 0).ok_or(ValueError::Count)
}

pub(super) fn tree_bytes(text: &str) -> Result<usize, ValueError> {
    let size = byte_size(text).ok().and_then(|size| usize::try_from(size).ok());
    size.filter(|size| *size > 0).ok_or(ValueError::TreeBytes)
}

/// Parses a number of bytes: `1000`, `4K`, `16Mi`.
pub(crate) fn byte_size(text: &str) -> Result<u64, ValueError> {
    const UNITS: &[(&str, u64)] = &[
        ("Ki", 1 << 10),
        ("Mi", 1 << 20),
        ("Gi", 1 << 30),
        ("Ti", 1 << 40),
        ("K", 1_000),
        ("M", 1_000_000),
        ("G", 1_000_000_000),
        ("T", 1_000_000_000_000),
    ];
    let (number, unit) = UNITS
        .iter()
        .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))
        .unwrap_or((text, 1));
    let number: u64 = number.parse().map_err(|_| ValueError::ByteSize)?;
    number.checked_mul(unit).ok_or(ValueError::TooLarge)
}

/// Splits the values of a list flag at commas.
pub(crate) fn split_list(values: &[String]) -> Vec<String> {
    let items = values.iter().flat_map(|value| value.split(',')).map(str::trim);
    items.filter(|item| !item.is_empty()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_sizes_parse_with_units() {
        for (text, expected) in [
            ("7", Some(7)),
            ("2Ki", Some(2048)),
            ("3G", Some(3_000_000_000)),
            ("x", None),
            ("", None),
            ("99999999T", None),
        ] {
            assert_eq!(byte_size(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn list_values_are_split_and_trimmed() {
        let values = ["a, b", "", "c,"].map(str::to_owned);
        assert_eq!(split_list(&values), ["a", "b", "c"]);
    }
}
