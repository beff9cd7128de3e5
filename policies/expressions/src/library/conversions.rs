//! Conversions between basic types.

use crate::cost::CallCost::{Fixed, Operator as Priced};
use crate::cost::{OperatorCost, ResultSize};
use crate::error::EvalError;
use crate::numbers;
use crate::time;
use crate::types::Type;
use crate::value::Value;
use crate::value_facts::Estimate;

use super::{Function, Library};

/// Functions of all releases.
pub(super) static LIBRARY: Library = Library {
    since: 0,
    functions: &[
        Function::new(
            &[
                "int(int) -> int",
                "int(uint) -> int",
                "int(double) -> int",
                "int(string) -> int",
                "int(timestamp) -> int",
                "int(duration) -> int",
            ],
            Fixed(1),
            |a| match a {
                [Value::Int(i)] => Ok(Value::Int(*i)),
                [Value::Uint(u)] => {
                    i64::try_from(*u).map(Value::Int).map_err(|_| EvalError::failed("integer overflow"))
                }
                [Value::Double(d)] => numbers::double_to_int(*d).map(Value::Int),
                [Value::String(s)] => s.as_str().parse().map(Value::Int).map_err(|_| conversion_error("int")),
                [Value::Timestamp(t)] => Ok(Value::Int(t.seconds())),
                [Value::Duration(d)] => Ok(Value::Int(*d)),
                _ => Err(EvalError::NoOverload),
            },
        ),
        Function::new(
            &["uint(uint) -> uint", "uint(int) -> uint", "uint(double) -> uint", "uint(string) -> uint"],
            Fixed(1),
            |a| match a {
                [Value::Uint(u)] => Ok(Value::Uint(*u)),
                [Value::Int(i)] => u64::try_from(*i)
                    .map(Value::Uint)
                    .map_err(|_| EvalError::failed("unsigned integer overflow")),
                [Value::Double(d)] => numbers::double_to_uint(*d).map(Value::Uint),
                [Value::String(s)] => {
                    let digits = Some(s.as_str()).filter(|text| !text.starts_with('+'));
                    let number = digits.and_then(|text| text.parse().ok());
                    number.map(Value::Uint).ok_or_else(|| conversion_error("uint"))
                }
                _ => Err(EvalError::NoOverload),
            },
        ),
        Function::new(
            &[
                "double(double) -> double",
                "double(int) -> double",
                "double(uint) -> double",
                "double(string) -> double",
            ],
            Fixed(1),
            |a| match a {
                [Value::Double(d)] => Ok(Value::Double(*d)),
                #[expect(clippy::cast_precision_loss, reason = "the conversion rounds to the nearest value")]
                [Value::Int(i)] => Ok(Value::Double(*i as f64)),
                #[expect(clippy::cast_precision_loss, reason = "the conversion rounds to the nearest value")]
                [Value::Uint(u)] => Ok(Value::Double(*u as f64)),
                [Value::String(s)] => numbers::parse_double(s.as_str())
                    .map(Value::Double)
                    .ok_or_else(|| conversion_error("double")),
                _ => Err(EvalError::NoOverload),
            },
        ),
        Function::new(
            &[
                "string(string) -> string",
                "string(bool) -> string",
                "string(int) -> string",
                "string(uint) -> string",
                "string(double) -> string",
                "string(bytes) -> string",
                "string(timestamp) -> string",
                "string(duration) -> string",
            ],
            Priced(OperatorCost::TextConversion),
            |a| match a {
                [Value::String(s)] => Ok(Value::String(s.clone())),
                [Value::Bool(b)] => Ok(Value::text(b.to_string())),
                [Value::Int(i)] => Ok(Value::text(i.to_string())),
                [Value::Uint(u)] => Ok(Value::text(u.to_string())),
                [Value::Double(d)] => Ok(Value::text(general_text(*d))),
                [Value::Bytes(b)] => match std::str::from_utf8(b) {
                    Ok(text) => Ok(Value::text(text)),
                    Err(_) => Err(EvalError::failed("invalid UTF-8 in bytes, cannot convert to string")),
                },
                [Value::Timestamp(t)] => Ok(Value::text(t.to_string())),
                [Value::Duration(d)] => Ok(Value::text(time::format_duration(*d))),
                _ => Err(EvalError::NoOverload),
            },
        )
        // A character has at most four bytes.
        .with_result_size(ResultSize::Custom("size/4 to size of bytes", |a, overload| {
            match (a, overload.parameter(0)) {
                ([bytes], Type::Bytes) => Some(Estimate { min: bytes.size().min / 4, max: bytes.size().max }),
                _ => None,
            }
        })),
        Function::new(
            &["bytes(bytes) -> bytes", "bytes(string) -> bytes"],
            Priced(OperatorCost::TextConversion),
            |a| match a {
                [Value::Bytes(b)] => Ok(Value::Bytes(b.clone())),
                [Value::String(s)] => Ok(Value::Bytes(s.as_str().as_bytes().into())),
                _ => Err(EvalError::NoOverload),
            },
        )
        // A character has at most four bytes.
        .with_result_size(ResultSize::Custom("size to 4 x size of a text", |a, overload| {
            match (a, overload.parameter(0)) {
                // As in cel-go, the product of an unlimited size wraps around.
                ([text], Type::String) => {
                    Some(Estimate { min: text.size().min, max: text.size().max.wrapping_mul(4) })
                }
                _ => None,
            }
        })),
        Function::new(&["bool(bool) -> bool", "bool(string) -> bool"], Fixed(1), |a| match a {
            [Value::Bool(b)] => Ok(Value::Bool(*b)),
            [Value::String(s)] => match s.as_str() {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(Value::Bool(true)),
                "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(Value::Bool(false)),
                _ => Err(conversion_error("bool")),
            },
            _ => Err(EvalError::NoOverload),
        }),
    ],
};

fn conversion_error(ty: &str) -> EvalError {
    EvalError::failed(format!("type conversion error from 'string' to '{ty}'"))
}

/// Returns the shortest text that parses to the same number. Numbers below 1e-4 and from 1e21 on have an
/// exponent.
pub fn double_text(d: f64) -> String {
    shortest_text(d, 21)
}

/// Returns the shortest text that parses to the same number. Numbers below 1e-4 and from 1e6 on have an
/// exponent.
pub fn general_text(d: f64) -> String {
    shortest_text(d, 6)
}

fn shortest_text(d: f64, first_exponent: i32) -> String {
    if d.is_nan() {
        return "NaN".to_owned();
    }
    if d.is_infinite() {
        return if d > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{d:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if d != 0.0 && !(-4..first_exponent).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    format!("{d}")
}
