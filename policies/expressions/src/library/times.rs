//! Timestamps and durations: constructors and calendar fields.

use crate::cost::CallCost::Fixed;
use crate::error::EvalError;
use crate::time::{self, CivilTime, Timestamp};
use crate::value::Value;

use super::{Function, Library};

/// Declares a function that returns a calendar field of a timestamp, in UTC or in a time zone.
macro_rules! getter {
    ($name:literal, $field:expr) => {
        Function::new(
            &[concat!(".timestamp.", $name, "() -> int"), concat!(".timestamp.", $name, "(string) -> int")],
            Fixed(1),
            |a| calendar_field(a, $field),
        )
    };
}

/// Declares a function like `getter`, which also exists for durations.
///
/// For a duration the function returns the number of whole units of `$unit` nanoseconds.
macro_rules! clock {
    ($name:literal, $unit:expr, $field:expr) => {
        Function::new(
            &[
                concat!(".timestamp.", $name, "() -> int"),
                concat!(".timestamp.", $name, "(string) -> int"),
                concat!(".duration.", $name, "() -> int"),
            ],
            Fixed(1),
            |a| match a {
                [Value::Duration(d)] => Ok(Value::Int(d / $unit)),
                _ => calendar_field(a, $field),
            },
        )
    };
}

/// Functions of all releases.
pub(super) static LIBRARY: Library = Library {
    since: 0,
    functions: &[
        Function::new(
            &[
                "timestamp(string) -> timestamp",
                "timestamp(timestamp) -> timestamp",
                "timestamp(int) -> timestamp",
            ],
            Fixed(1),
            |a| match a {
                [Value::String(s)] => time::parse_timestamp(s.as_str()).map(Value::Timestamp),
                [Value::Timestamp(t)] => Ok(Value::Timestamp(*t)),
                [Value::Int(seconds)] => Timestamp::new(*seconds, 0)
                    .map(Value::Timestamp)
                    .ok_or_else(|| EvalError::failed("timestamp overflow")),
                _ => Err(EvalError::NoOverload),
            },
        ),
        Function::new(
            &["duration(string) -> duration", "duration(duration) -> duration", "duration(int) -> duration"],
            Fixed(1),
            |a| match a {
                [Value::String(s)] => time::parse_duration(s.as_str()).map(Value::Duration),
                [Value::Duration(d)] => Ok(Value::Duration(*d)),
                // cel-go declares the overload without an implementation.
                [Value::Int(_)] => {
                    Err(EvalError::failed("type conversion error from 'int' to 'google.protobuf.Duration'"))
                }
                _ => Err(EvalError::NoOverload),
            },
        ),
        getter!("getFullYear", |t| t.year),
        getter!("getMonth", |t| t.month - 1),
        getter!("getDate", |t| t.day),
        getter!("getDayOfMonth", |t| t.day - 1),
        getter!("getDayOfWeek", |t| t.weekday),
        getter!("getDayOfYear", |t| t.day_of_year - 1),
        clock!("getHours", 3_600_000_000_000, |t| t.hour),
        clock!("getMinutes", 60_000_000_000, |t| t.minute),
        clock!("getSeconds", 1_000_000_000, |t| t.second),
        clock!("getMilliseconds", 1_000_000, |t| i64::from(t.nanos / 1_000_000)),
    ],
};

fn calendar_field<'a>(arguments: &[Value<'a>], field: fn(&CivilTime) -> i64) -> Result<Value<'a>, EvalError> {
    match arguments {
        [Value::Timestamp(t)] => Ok(Value::Int(field(&t.in_zone(None)?))),
        [Value::Timestamp(t), Value::String(zone)] => Ok(Value::Int(field(&t.in_zone(Some(zone.as_str()))?))),
        _ => Err(EvalError::NoOverload),
    }
}
