//! List functions: search, minimum, maximum, sum and order.

use std::cmp::Ordering;

use crate::cost::CallCost::Traversal;
use crate::error::EvalError;
use crate::list::List;
use crate::value::Value;

use super::arithmetic::{self, Operator};
use super::{Function, Library};

type Outcome<'a> = Result<Value<'a>, EvalError>;

/// Overloads of `isSorted` for a list of each ordered type.
static SORTED: &[&str] = &[
    ".list(int).isSorted() -> bool",
    ".list(uint).isSorted() -> bool",
    ".list(double).isSorted() -> bool",
    ".list(bool).isSorted() -> bool",
    ".list(duration).isSorted() -> bool",
    ".list(timestamp).isSorted() -> bool",
    ".list(string).isSorted() -> bool",
    ".list(bytes).isSorted() -> bool",
];

/// Declares an overload for a list of each ordered type that returns an element.
macro_rules! element_overloads {
    ($name:literal) => {
        &[
            concat!(".list(int).", $name, "() -> int"),
            concat!(".list(uint).", $name, "() -> uint"),
            concat!(".list(double).", $name, "() -> double"),
            concat!(".list(bool).", $name, "() -> bool"),
            concat!(".list(duration).", $name, "() -> duration"),
            concat!(".list(timestamp).", $name, "() -> timestamp"),
            concat!(".list(string).", $name, "() -> string"),
            concat!(".list(bytes).", $name, "() -> bytes"),
        ]
    };
}

/// Functions of all releases.
pub(super) static LIBRARY: Library = Library {
    since: 0,
    functions: &[
        Function::new(SORTED, Traversal, |a| {
            let mut previous: Option<Value<'_>> = None;
            for item in single_list(a)?.iter() {
                let item = item?;
                require_order(&item, previous.is_none())?;
                if let Some(previous) = &previous
                    && previous.compare(&item).is_ok_and(Ordering::is_gt)
                {
                    return Ok(Value::Bool(false));
                }
                previous = Some(item);
            }
            Ok(Value::Bool(true))
        }),
        Function::new(element_overloads!("min"), Traversal, |a| extreme(a, "min", Ordering::Less)),
        Function::new(element_overloads!("max"), Traversal, |a| extreme(a, "max", Ordering::Greater)),
        Function::new(
            &[
                ".list(int).sum() -> int",
                ".list(uint).sum() -> uint",
                ".list(double).sum() -> double",
                ".list(duration).sum() -> duration",
            ],
            Traversal,
            sum,
        ),
        Function::new(&[".list(A).indexOf(A) -> int"], Traversal, |a| match a {
            [Value::List(list), value] => {
                index_value(list.to_vec()?.iter().position(|item| item.equals(value)))
            }
            _ => Err(EvalError::NoOverload),
        }),
        Function::new(&[".list(A).lastIndexOf(A) -> int"], Traversal, |a| match a {
            [Value::List(list), value] => {
                index_value(list.to_vec()?.iter().rposition(|item| item.equals(value)))
            }
            _ => Err(EvalError::NoOverload),
        }),
    ],
};

/// Returns the only argument, which must be a list.
fn single_list<'v, 'a>(arguments: &'v [Value<'a>]) -> Result<&'v List<'a>, EvalError> {
    match arguments {
        [Value::List(list)] => Ok(list),
        _ => Err(EvalError::NoOverload),
    }
}

fn index_value<'a>(found: Option<usize>) -> Outcome<'a> {
    Ok(Value::Int(found.and_then(|at| i64::try_from(at).ok()).unwrap_or(-1)))
}

/// An error for a value without an order. The type of the first element decides about the overload.
fn require_order(item: &Value<'_>, is_first: bool) -> Result<(), EvalError> {
    match (item.is_ordered(), is_first) {
        (true, _) => Ok(()),
        (false, true) => Err(EvalError::NoOverload),
        (false, false) => Err(EvalError::failed("no such overload")),
    }
}

/// Returns the minimum or maximum of a list: the element whose comparison with each other element gives `better`.
/// As in kube-apiserver, a comparison that is an error keeps the earlier element.
fn extreme<'a>(arguments: &[Value<'a>], name: &str, better: Ordering) -> Outcome<'a> {
    let mut best: Option<Value<'a>> = None;
    for item in single_list(arguments)?.iter() {
        let item = item?;
        require_order(&item, best.is_none())?;
        let is_better = match &best {
            None => true,
            Some(best) => item.compare(best).is_ok_and(|order| order == better),
        };
        if is_better {
            best = Some(item);
        }
    }
    best.ok_or_else(|| EvalError::failed(format!("{name} called on empty list")))
}

fn sum<'a>(arguments: &[Value<'a>]) -> Outcome<'a> {
    let mut total: Option<Value<'a>> = None;
    for item in single_list(arguments)?.iter() {
        let item = item?;
        total = Some(match (total, item) {
            (None, item) if item.is_number() || matches!(item, Value::Duration(_)) => item,
            (None, _) => return Err(EvalError::NoOverload),
            (Some(Value::Duration(a)), Value::Duration(b)) => {
                Value::Duration(a.checked_add(b).ok_or_else(|| EvalError::failed("integer overflow"))?)
            }
            (Some(total), item) => {
                let no_overload = || Err(EvalError::failed("no such overload"));
                arithmetic::apply(Operator::Add, &total, &item).unwrap_or_else(no_overload)?
            }
        });
    }
    Ok(total.unwrap_or(Value::Int(0)))
}
