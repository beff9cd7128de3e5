//! Arithmetic on numbers of one type.

use crate::error::EvalError;
use crate::value::Value;

/// Arithmetic operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operator {
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Add,
}

/// Computes `a op b` for two numbers of one type; `None` for other values.
pub(crate) fn apply<'a>(op: Operator, a: &Value<'a>, b: &Value<'a>) -> Option<Result<Value<'a>, EvalError>> {
    let checked_int = |v: Option<i64>| v.map(Value::Int).ok_or_else(|| EvalError::failed("integer overflow"));
    let checked_uint =
        |v: Option<u64>| v.map(Value::Uint).ok_or_else(|| EvalError::failed("unsigned integer overflow"));
    let is_zero_divisor = matches!(b, Value::Int(0) | Value::Uint(0));
    if is_zero_divisor && std::mem::discriminant(a) == std::mem::discriminant(b) {
        match op {
            Operator::Divide => return Some(Err(EvalError::failed("division by zero"))),
            Operator::Modulo => return Some(Err(EvalError::failed("modulus by zero"))),
            _ => {}
        }
    }
    Some(match (a, b) {
        (Value::Int(a), Value::Int(b)) => checked_int(match op {
            Operator::Add => a.checked_add(*b),
            Operator::Subtract => a.checked_sub(*b),
            Operator::Multiply => a.checked_mul(*b),
            Operator::Divide => a.checked_div(*b),
            Operator::Modulo => a.checked_rem(*b),
        }),
        (Value::Uint(a), Value::Uint(b)) => checked_uint(match op {
            Operator::Add => a.checked_add(*b),
            Operator::Subtract => a.checked_sub(*b),
            Operator::Multiply => a.checked_mul(*b),
            Operator::Divide => a.checked_div(*b),
            Operator::Modulo => a.checked_rem(*b),
        }),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(match op {
            Operator::Add => a + b,
            Operator::Subtract => a - b,
            Operator::Multiply => a * b,
            Operator::Divide => a / b,
            Operator::Modulo => return None,
        })),
        _ => return None,
    })
}
