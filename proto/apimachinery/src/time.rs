//! Times as API objects write them: RFC 3339 in UTC, whole seconds (`Time`) or six digits (`MicroTime`).

use jiff::Timestamp;

/// `2006-01-02T15:04:05Z`.
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// `2006-01-02T15:04:05.000000Z`.
pub fn micro_time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

/// Parses RFC 3339 with any offset.
pub fn parse(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}
