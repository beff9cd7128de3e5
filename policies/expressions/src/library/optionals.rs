//! Optional values.

use std::sync::Arc;

use crate::cost::CallCost::Fixed;
use crate::error::EvalError;
use crate::value::Value;

use super::{Function, Library};

/// Functions since 1.29. The checker implements the macros `optMap`, `optFlatMap`, `or` and `orValue`.
pub(super) static LIBRARY: Library = Library {
    since: 29,
    functions: &[
        Function::new(&["optional.of(A) -> optional(A)"], Fixed(1), |a| match a {
            [value] => Ok(Value::Optional(Some(Arc::new(value.clone())))),
            _ => Err(EvalError::NoOverload),
        }),
        Function::new(&["optional.ofNonZeroValue(A) -> optional(A)"], Fixed(1), |a| match a {
            [value] => Ok(Value::Optional((!value.is_zero()).then(|| Arc::new(value.clone())))),
            _ => Err(EvalError::NoOverload),
        }),
        Function::new(&["optional.none() -> optional(A)"], Fixed(1), |a| match a {
            [] => Ok(Value::Optional(None)),
            _ => Err(EvalError::NoOverload),
        }),
        Function::new(&[".optional(A).hasValue() -> bool"], Fixed(1), |a| match a {
            [Value::Optional(inner)] => Ok(Value::Bool(inner.is_some())),
            _ => Err(EvalError::NoOverload),
        }),
        Function::new(&[".optional(A).value() -> A"], Fixed(1), |a| match a {
            [Value::Optional(Some(inner))] => Ok(inner.as_ref().clone()),
            [Value::Optional(None)] => Err(EvalError::failed("optional.none() dereference")),
            _ => Err(EvalError::NoOverload),
        }),
    ],
};
