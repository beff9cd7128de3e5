//! Operators, membership tests, sizes and types.

use std::cmp::Ordering;

use crate::cost::CallCost::{Fixed, Operator as Priced, PassValue};
use crate::cost::{OperatorCost, ResultSize};
use crate::error::EvalError;
use crate::types::Type;
use crate::value::{Text, Value};

use super::arithmetic::{self, Operator};
use super::{Function, Library};

/// Declares the overloads of an order operator. Comparison of numbers of different types exists since 1.29.
macro_rules! order_overloads {
    ($name:literal) => {
        &[
            concat!($name, "(bool, bool) -> bool"),
            concat!($name, "(int, int) -> bool"),
            concat!($name, "(int, uint) -> bool"),
            concat!($name, "(int, double) -> bool"),
            concat!($name, "(uint, uint) -> bool"),
            concat!($name, "(uint, int) -> bool"),
            concat!($name, "(uint, double) -> bool"),
            concat!($name, "(double, double) -> bool"),
            concat!($name, "(double, int) -> bool"),
            concat!($name, "(double, uint) -> bool"),
            concat!($name, "(string, string) -> bool"),
            concat!($name, "(bytes, bytes) -> bool"),
            concat!($name, "(timestamp, timestamp) -> bool"),
            concat!($name, "(duration, duration) -> bool"),
        ]
    };
}

/// Functions of all releases.
pub(super) static LIBRARY: Library = Library {
    since: 0,
    functions: &[
        Function::new(&["_==_(A, A) -> bool"], Priced(OperatorCost::Equality), |a| match a {
            [left, right] => Ok(Value::Bool(left.equals(right))),
            _ => Err(EvalError::NoOverload),
        }),
        Function::new(&["_!=_(A, A) -> bool"], Priced(OperatorCost::Inequality), |a| match a {
            [left, right] => Ok(Value::Bool(!left.equals(right))),
            _ => Err(EvalError::NoOverload),
        }),
        Function::new(order_overloads!("_<_"), Priced(OperatorCost::Order), |a| {
            compare_with(a, |o| o == Ordering::Less)
        }),
        Function::new(order_overloads!("_<=_"), Priced(OperatorCost::Order), |a| {
            compare_with(a, |o| o != Ordering::Greater)
        }),
        Function::new(order_overloads!("_>_"), Priced(OperatorCost::Order), |a| {
            compare_with(a, |o| o == Ordering::Greater)
        }),
        Function::new(order_overloads!("_>=_"), Priced(OperatorCost::Order), |a| {
            compare_with(a, |o| o != Ordering::Less)
        }),
        Function::new(
            &[
                "_+_(int, int) -> int",
                "_+_(uint, uint) -> uint",
                "_+_(double, double) -> double",
                "_+_(string, string) -> string",
                "_+_(bytes, bytes) -> bytes",
                "_+_(list(A), list(A)) -> list(A)",
                "_+_(timestamp, duration) -> timestamp",
                "_+_(duration, timestamp) -> timestamp",
                "_+_(duration, duration) -> duration",
            ],
            Priced(OperatorCost::Add),
            add,
        )
        .with_result_size(ResultSize::Custom(
            "sum of sizes of texts and lists",
            |a, overload| match (a, overload.parameter(0)) {
                ([left, right], Type::String | Type::Bytes | Type::List(_)) => {
                    Some(left.size() + right.size())
                }
                _ => None,
            },
        )),
        Function::new(
            &[
                "_-_(int, int) -> int",
                "_-_(uint, uint) -> uint",
                "_-_(double, double) -> double",
                "_-_(timestamp, timestamp) -> duration",
                "_-_(timestamp, duration) -> timestamp",
                "_-_(duration, duration) -> duration",
            ],
            Fixed(1),
            subtract,
        ),
        Function::new(
            &["_*_(int, int) -> int", "_*_(uint, uint) -> uint", "_*_(double, double) -> double"],
            Fixed(1),
            |a| arithmetic(Operator::Multiply, a),
        ),
        Function::new(
            &["_/_(int, int) -> int", "_/_(uint, uint) -> uint", "_/_(double, double) -> double"],
            Fixed(1),
            |a| arithmetic(Operator::Divide, a),
        ),
        Function::new(&["_%_(int, int) -> int", "_%_(uint, uint) -> uint"], Fixed(1), |a| {
            arithmetic(Operator::Modulo, a)
        }),
        Function::new(&["-_(int) -> int", "-_(double) -> double"], Fixed(1), |a| match a {
            [Value::Int(i)] => {
                i.checked_neg().map(Value::Int).ok_or_else(|| EvalError::failed("integer overflow"))
            }
            [Value::Double(d)] => Ok(Value::Double(-d)),
            _ => Err(EvalError::NoOverload),
        }),
        Function::new(&["!_(bool) -> bool"], Fixed(1), |a| match a {
            [Value::Bool(b)] => Ok(Value::Bool(!b)),
            _ => Err(EvalError::NoOverload),
        }),
        Function::new(
            &["@in(A, list(A)) -> bool", "@in(A, map(A, B)) -> bool"],
            Priced(OperatorCost::In),
            |a| match a {
                [value, Value::List(list)] => list.contains(value).map(Value::Bool),
                [key, Value::Map(map)] => Ok(Value::Bool(map.value(key)?.is_some())),
                _ => Err(EvalError::NoOverload),
            },
        ),
        Function::new(
            &[
                "size(string) -> int",
                "size(bytes) -> int",
                "size(list(A)) -> int",
                "size(map(A, B)) -> int",
                ".string.size() -> int",
                ".bytes.size() -> int",
                ".list(A).size() -> int",
                ".map(A, B).size() -> int",
            ],
            PassValue,
            |a| match a {
                [v @ (Value::String(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_))] => {
                    Ok(Value::Int(i64::try_from(v.size()).unwrap_or(i64::MAX)))
                }
                _ => Err(EvalError::NoOverload),
            },
        ),
        Function::new(&["type(A) -> type(A)"], Fixed(1), |a| match a {
            [v] => Ok(Value::Type(Text::Shared(v.type_name().into()))),
            _ => Err(EvalError::NoOverload),
        }),
        Function::new(&["dyn(A) -> dyn"], Fixed(1), |a| match a {
            [v] => Ok(v.clone()),
            _ => Err(EvalError::NoOverload),
        }),
    ],
};

fn compare_with<'a>(arguments: &[Value<'a>], holds: fn(Ordering) -> bool) -> Result<Value<'a>, EvalError> {
    match arguments {
        [a, b] => Ok(Value::Bool(holds(a.compare(b)?))),
        _ => Err(EvalError::NoOverload),
    }
}

fn arithmetic<'a>(operator: Operator, arguments: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    match arguments {
        [a, b] => arithmetic::apply(operator, a, b).unwrap_or(Err(EvalError::NoOverload)),
        _ => Err(EvalError::NoOverload),
    }
}

fn add<'a>(arguments: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    match arguments {
        [Value::String(a), Value::String(b)] => Ok(Value::text([a.as_str(), b.as_str()].concat())),
        [Value::Bytes(a), Value::Bytes(b)] => Ok(Value::Bytes([a.as_ref(), b.as_ref()].concat().into())),
        [Value::List(a), Value::List(b)] => a.concat(b).map(Value::List),
        [Value::Timestamp(t), Value::Duration(d)] | [Value::Duration(d), Value::Timestamp(t)] => {
            t.plus(*d).map(Value::Timestamp)
        }
        [Value::Duration(a), Value::Duration(b)] => {
            a.checked_add(*b).map(Value::Duration).ok_or_else(|| EvalError::failed("integer overflow"))
        }
        _ => arithmetic(Operator::Add, arguments),
    }
}

fn subtract<'a>(arguments: &[Value<'a>]) -> Result<Value<'a>, EvalError> {
    match arguments {
        [Value::Timestamp(a), Value::Timestamp(b)] => a.since(*b).map(Value::Duration),
        [Value::Timestamp(t), Value::Duration(d)] => {
            let back = d.checked_neg().ok_or_else(|| EvalError::failed("integer overflow"))?;
            t.plus(back).map(Value::Timestamp)
        }
        [Value::Duration(a), Value::Duration(b)] => {
            a.checked_sub(*b).map(Value::Duration).ok_or_else(|| EvalError::failed("integer overflow"))
        }
        _ => arithmetic(Operator::Subtract, arguments),
    }
}
