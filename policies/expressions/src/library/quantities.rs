//! Quantities such as `50m`, `1.5Gi` or `1e3`, with nano precision and 64-bit integer range.

use apimachinery::quantity::{self, QuantityError};

use crate::cost::CallCost::{Fixed, Text};
use crate::error::EvalError;
use crate::value::{Opaque, Value};

use super::{Function, Library, library_value, single_text};

/// Nanos in one unit.
const NANOS_PER_UNIT: i128 = 1_000_000_000;
/// Maximum quantity in nanos; larger values saturate.
const MAX_NANOS: i128 = i64::MAX as i128 * NANOS_PER_UNIT;

/// Functions since 1.29.
pub(super) static LIBRARY: Library = Library {
    since: 29,
    functions: &[
        Function::new(&["isQuantity(string) -> bool"], Text(1), |a| {
            Ok(Value::Bool(parse(single_text(a)?).is_ok()))
        }),
        Function::new(&["quantity(string) -> resource.Quantity"], Text(1), |a| {
            let quantity = parse(single_text(a)?).map_err(|error| EvalError::failed(error.to_string()))?;
            Ok(Value::opaque(quantity))
        }),
        Function::new(
            &["sign(resource.Quantity) -> int", ".resource.Quantity.sign() -> int"],
            Fixed(1),
            |a| Ok(Value::Int(i64::try_from(single_quantity(a)?.signum()).unwrap_or_default())),
        ),
        Function::new(&[".resource.Quantity.isInteger() -> bool"], Fixed(1), |a| {
            Ok(Value::Bool(single_quantity(a)? % NANOS_PER_UNIT == 0))
        }),
        Function::new(&[".resource.Quantity.asInteger() -> int"], Fixed(1), |a| {
            let nanos = single_quantity(a)?;
            let whole = i64::try_from(nanos / NANOS_PER_UNIT).ok().filter(|_| nanos % NANOS_PER_UNIT == 0);
            whole.map(Value::Int).ok_or_else(|| EvalError::failed("cannot convert value to integer"))
        }),
        Function::new(&[".resource.Quantity.asApproximateFloat() -> double"], Fixed(1), |a| {
            #[expect(clippy::cast_precision_loss, reason = "the result is approximate by definition")]
            Ok(Value::Double(single_quantity(a)? as f64 / NANOS_PER_UNIT as f64))
        }),
        Function::new(
            &[
                ".resource.Quantity.add(resource.Quantity) -> resource.Quantity",
                ".resource.Quantity.add(int) -> resource.Quantity",
            ],
            Fixed(1),
            |a| with_quantities(a, |p, q| Value::opaque(saturate(p + q))),
        ),
        Function::new(
            &[
                ".resource.Quantity.sub(resource.Quantity) -> resource.Quantity",
                ".resource.Quantity.sub(int) -> resource.Quantity",
            ],
            Fixed(1),
            |a| with_quantities(a, |p, q| Value::opaque(saturate(p - q))),
        ),
        Function::new(&[".resource.Quantity.isLessThan(resource.Quantity) -> bool"], Fixed(1), |a| {
            with_quantities(a, |p, q| Value::Bool(p < q))
        }),
        Function::new(&[".resource.Quantity.isGreaterThan(resource.Quantity) -> bool"], Fixed(1), |a| {
            with_quantities(a, |p, q| Value::Bool(p > q))
        }),
        Function::new(&[".resource.Quantity.compareTo(resource.Quantity) -> int"], Fixed(1), |a| {
            with_quantities(a, |p, q| Value::Int(p.cmp(&q) as i64))
        }),
    ],
};

/// A quantity in nanos.
struct Quantity(i128);

impl Opaque for Quantity {
    fn type_name(&self) -> &'static str {
        "resource.Quantity"
    }

    fn equals(&self, other: &dyn Opaque) -> bool {
        other.downcast::<Quantity>().is_some_and(|other| other.0 == self.0)
    }
}

fn saturate(nanos: i128) -> Quantity {
    Quantity(nanos.clamp(-MAX_NANOS, MAX_NANOS))
}

fn parse(text: &str) -> Result<Quantity, QuantityError> {
    quantity::nanos(text).map(|(nanos, _)| saturate(nanos))
}

/// Returns the nanos of the quantity that is the only argument.
fn single_quantity(arguments: &[Value<'_>]) -> Result<i128, EvalError> {
    library_value::<Quantity>(arguments).map(|quantity| quantity.0)
}

fn with_quantities<'a>(
    arguments: &[Value<'a>],
    f: fn(i128, i128) -> Value<'a>,
) -> Result<Value<'a>, EvalError> {
    let [left, right] = arguments else { return Err(EvalError::NoOverload) };
    let left = left.downcast::<Quantity>().ok_or(EvalError::NoOverload)?.0;
    let right = match right {
        Value::Int(i) => i128::from(*i) * NANOS_PER_UNIT,
        other => other.downcast::<Quantity>().ok_or(EvalError::NoOverload)?.0,
    };
    Ok(f(left, right))
}
