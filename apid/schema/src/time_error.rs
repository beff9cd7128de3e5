//! The reasons why kube-apiserver does not parse a time.

use apimachinery::field::quote;
use apimachinery::time::TimeError;

/// Layout of times, as Go writes it.
const LAYOUT: &str = "2006-01-02T15:04:05Z07:00";
/// Layout of times with microseconds.
const MICRO_LAYOUT: &str = "2006-01-02T15:04:05.000000Z07:00";

/// Returns the message of the Go package `time` for a text that is no time. With `micro`, the layout in the
/// message has a fraction of six digits.
pub(crate) fn describe(text: &str, micro: bool, error: TimeError<'_>) -> String {
    let quoted = quote(text);
    match error {
        TimeError::Missing { .. } => {
            let layout = if micro { MICRO_LAYOUT } else { LAYOUT };
            format!("parsing time {quoted} as \"{layout}\": {error}")
        }
        _ => format!("parsing time {quoted}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::time;

    use super::*;

    fn message(text: &str, micro: bool) -> String {
        describe(text, micro, time::read(text, micro).unwrap_err())
    }

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
            ("2020-01-01T00:00:00.Z", r#" as "2006-01-02T15:04:05Z07:00": cannot parse ".Z" as "Z07:00""#),
            ("2020-01-01T5:61:00Z", ": minute out of range"),
            ("9999-12-31T23:59:59-24:00", ": year out of range"),
        ] {
            assert_eq!(message(text, false), format!("parsing time {text:?}{reason}"));
        }
        assert_eq!(
            message("2020-01-01T00:00:00Z", true),
            "parsing time \"2020-01-01T00:00:00Z\" as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse \"Z\" as \
             \".000000\""
        );
    }
}
