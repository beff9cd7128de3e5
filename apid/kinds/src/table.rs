//! Columns and cells of Table representations (requirements D-TBL), which clients print.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use apimachinery::time;
use serde_json::{Value, json};

pub(crate) mod cell;
pub(crate) mod workload;

/// Columns of a kind's Table representation.
pub struct Table {
    /// The columns.
    pub columns: &'static [Column],
    /// Computes the cells of an object, one per column.
    pub cells: fn(&Object, &dyn Clock) -> Vec<Value>,
}

/// One column definition (requirements D-TBL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Title, such as `Name`.
    pub name: &'static str,
    /// Type: `string`, `integer`, `date` or `boolean`.
    pub kind: &'static str,
    /// Format: `name` for the first column, else `""`.
    pub format: &'static str,
    /// Description for clients. The wording is not that of kube-apiserver.
    pub description: &'static str,
    /// Priority: clients always show columns with priority 0, and columns with priority 1 only with `-o
    /// wide`.
    pub priority: u8,
}

impl Column {
    /// A string column that clients always show.
    pub(crate) const fn text(name: &'static str, description: &'static str) -> Self {
        Column { name, kind: "string", format: "", description, priority: 0 }
    }

    /// A string column for `-o wide`.
    pub(crate) const fn wide(name: &'static str, description: &'static str) -> Self {
        Column { priority: 1, ..Column::text(name, description) }
    }

    /// An integer column.
    pub(crate) const fn integer(name: &'static str, description: &'static str) -> Self {
        Column { kind: "integer", ..Column::text(name, description) }
    }

    /// A boolean column.
    pub(crate) const fn boolean(name: &'static str, description: &'static str) -> Self {
        Column { kind: "boolean", ..Column::text(name, description) }
    }
}

/// First column of almost every table.
pub(crate) const NAME: Column = Column {
    format: "name",
    ..Column::text("Name", "Name of the object, unique in its namespace for its kind.")
};

/// Column with the time since creation.
pub(crate) const AGE: Column = Column::text("Age", "Time since the object was created.");

/// Table of kinds without their own columns.
pub static DEFAULT: Table = Table {
    columns: &[
        NAME,
        Column { kind: "date", ..Column::text("Created At", "Time at which the object was created.") },
    ],
    cells: |object, _clock| vec![json!(object.name()), json!(object.meta_str("creationTimestamp"))],
};

/// Age of an object.
pub(crate) fn age(object: &Object, clock: &dyn Clock) -> Value {
    Value::String(since(object.meta_str("creationTimestamp"), clock))
}

/// Time since a timestamp; `<unknown>` without a timestamp.
pub(crate) fn since(timestamp: &str, clock: &dyn Clock) -> String {
    match time::parse(timestamp) {
        Some(then) => short_duration(clock.now().as_second() - then.as_second()),
        None => "<unknown>".to_owned(),
    }
}

/// Time between two timestamps; `""` unless both are present.
pub(crate) fn between(start: &str, end: &str) -> String {
    match (time::parse(start), time::parse(end)) {
        (Some(start), Some(end)) => short_duration(end.as_second() - start.as_second()),
        _ => String::new(),
    }
}

/// Duration in seconds with two or three significant figures.
/// Examples: `95s`, `4m10s`, `45m`, `5h12m`, `30h`, `3d4h`, `20d`, `3y25d`. One second in the future is clock
/// skew and counts as zero.
pub(crate) fn short_duration(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let pair = |major: i64, unit: &str, minor: i64, minor_unit: &str| {
        if minor == 0 { format!("{major}{unit}") } else { format!("{major}{unit}{minor}{minor_unit}") }
    };
    match seconds {
        i64::MIN..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => pair(minutes, "m", seconds % 60, "s"),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => pair(hours, "h", minutes % 60, "m"),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => pair(days, "d", hours % 24, "h"),
        _ if days < 2 * 365 => format!("{days}d"),
        _ if days < 8 * 365 => pair(days / 365, "y", days % 365, "d"),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_durations_have_two_or_three_figures() {
        for (seconds, text) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (250, "4m10s"),
            (600, "10m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (18_720, "5h12m"),
            (28_800, "8h"),
            (172_799, "47h"),
            (172_800, "2d"),
            (273_600, "3d4h"),
            (691_200, "8d"),
            (63_072_000, "2y"),
            (96_768_000, "3y25d"),
            (252_288_000, "8y"),
        ] {
            assert_eq!(short_duration(seconds), text, "{seconds} s");
        }
    }
}
