//! Columns and cells of Table representations (requirements D-TBL), which clients print.

use apimachinery::clock::Clock;
use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::time;
use serde_json::Value;

use self::cell::PathReader as _;

pub(crate) mod cell;
pub(crate) mod workload;

/// Computes the cells of the columns with [`Source::Computed`], in the order of the columns.
pub type Cells = fn(&Object, &dyn Clock) -> Vec<Value>;

/// Source of the cells of a column. The paths are dotted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The function [`Cells`] of the kind.
    Computed,
    /// The time since the creation of the object.
    Age,
    /// A text; the second text replaces an absent or empty one.
    Text(&'static str, &'static str),
    /// A text or a number as text; the second text replaces an absent one.
    TextOrNumber(&'static str, &'static str),
    /// A number; 0 for an absent one.
    Number(&'static str),
    /// A boolean; false for an absent one.
    Flag(&'static str),
    /// The number of items of a list or of keys of a map.
    Length(&'static str),
    /// The roles that the labels of a node name.
    NodeRoles,
}

impl Source {
    /// The cell of an object, unless the kind computes it.
    pub(crate) fn cell(self, object: &Object, clock: &dyn Clock, names: &Names) -> Option<Value> {
        Some(match self {
            Source::Computed => return None,
            Source::Age => since(object.meta_str("creationTimestamp"), clock).into(),
            Source::Text(path, absent) => object.text_or(path, absent).into(),
            Source::TextOrNumber(path, absent) => object.text_or_number(path, absent).into(),
            Source::Number(path) => object.integer(path).into(),
            Source::Flag(path) => object.flag(path).into(),
            Source::Length(path) => match object.find(path) {
                Some(Value::Array(items)) => items.len().into(),
                Some(Value::Object(fields)) => fields.len().into(),
                _ => 0.into(),
            },
            Source::NodeRoles => cell::node_roles(object, names).into(),
        })
    }
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
    /// Source of the cells.
    pub source: Source,
}

impl Column {
    /// A string column that clients always show.
    pub const fn text(name: &'static str, description: &'static str) -> Self {
        Column { name, kind: "string", format: "", description, priority: 0, source: Source::Computed }
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

    /// This column with the texts at a path.
    pub const fn text_at(self, path: &'static str) -> Self {
        self.text_or(path, "")
    }

    /// This column with the texts at a path, or another text.
    pub(crate) const fn text_or(self, path: &'static str, absent: &'static str) -> Self {
        self.with_source(Source::Text(path, absent))
    }

    /// This column with a source of its cells.
    pub(crate) const fn with_source(self, source: Source) -> Self {
        Column { source, ..self }
    }
}

/// First column of almost every table.
pub const NAME: Column = Column {
    format: "name",
    ..Column::text("Name", "Name of the object, unique in its namespace for its kind.")
        .text_at("metadata.name")
};

/// Column with the time since creation.
pub(crate) const AGE: Column =
    Column::text("Age", "Time since the object was created.").with_source(Source::Age);

/// Columns of kinds without their own columns.
pub(crate) const DEFAULT: &[Column] = &[
    NAME,
    Column {
        kind: "date",
        ..Column::text("Created At", "Time at which the object was created.")
            .text_at("metadata.creationTimestamp")
    },
];

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
