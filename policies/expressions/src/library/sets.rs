//! Set functions on lists.

use crate::cost::CallCost::Pairs;
use crate::error::EvalError;
use crate::list::List;
use crate::value::Value;

use super::{Function, Library};

/// Functions since 1.30.
pub(super) static LIBRARY: Library = Library {
    since: 30,
    functions: &[
        Function::new(&["sets.contains(list(A), list(A)) -> bool"], Pairs(1), |a| {
            let (left, right) = two_lists(a)?;
            contains_all(left, right).map(Value::Bool)
        }),
        Function::new(&["sets.equivalent(list(A), list(A)) -> bool"], Pairs(2), |a| {
            let (left, right) = two_lists(a)?;
            Ok(Value::Bool(contains_all(left, right)? && contains_all(right, left)?))
        }),
        Function::new(&["sets.intersects(list(A), list(A)) -> bool"], Pairs(1), |a| {
            let (left, right) = two_lists(a)?;
            for item in left.iter() {
                if right.contains(&item?)? {
                    return Ok(Value::Bool(true));
                }
            }
            Ok(Value::Bool(false))
        }),
    ],
};

fn two_lists<'v, 'a>(arguments: &'v [Value<'a>]) -> Result<(&'v List<'a>, &'v List<'a>), EvalError> {
    match arguments {
        [Value::List(left), Value::List(right)] => Ok((left, right)),
        _ => Err(EvalError::NoOverload),
    }
}

/// Whether every element of `right` is in `left`.
fn contains_all<'a>(left: &List<'a>, right: &List<'a>) -> Result<bool, EvalError> {
    for item in right.iter() {
        if !left.contains(&item?)? {
            return Ok(false);
        }
    }
    Ok(true)
}
