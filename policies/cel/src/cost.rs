//! Units of cost: counted while an expression runs, halted at a limit.
//!
//! # Invariants
//! INVARIANT (deterministic cost): what is charged depends on the expression and its values alone. A
//! comparison costs at least 1, a list literal 40, a map literal 30, a name and each link behind it 1,
//! text 1 per ten characters that are looked at; libraries say in their tables what they cost.
//! INVARIANT (cost covers work): what a unit pays for takes a bounded time, whatever the data. So, beyond
//! what the reference charges, the depth of what is compared, texts that are only measured, and results
//! that are longer than the arguments are charged too; on small values that makes no difference.

use crate::error::EvalError;
use crate::estimate::{Estimate, Known};
use crate::types::Type;
use crate::value::Value;

/// Cost of a list literal.
pub(crate) const LIST_LITERAL: u64 = 40;
/// Cost of a map literal.
pub(crate) const MAP_LITERAL: u64 = 30;
/// Cost of the list that a comprehension makes for one element.
pub(crate) const LIST_STEP: u64 = 10;

/// A budget of cost units and what was used of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    used: u64,
    limit: u64,
}

impl Cost {
    /// A budget of `limit` units.
    pub fn limit(limit: u64) -> Cost {
        Cost { used: 0, limit }
    }

    /// The units that were used.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// The units that are left.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// Counts `units`; a sum over several expressions is kept by charging what each of them used.
    ///
    /// # Errors
    /// [`EvalError::CostLimit`] when the budget is used up.
    #[inline]
    pub fn charge(&mut self, units: u64) -> Result<(), EvalError> {
        self.used = self.used.saturating_add(units);
        if self.used > self.limit { Err(EvalError::CostLimit) } else { Ok(()) }
    }
}

/// How the cost of a call follows from its arguments (`size` as of [`Value::size`]). It is charged before
/// the function does its work.
#[derive(Clone, Copy)]
pub(crate) enum CallCost {
    /// Always so many units.
    Fixed(u64),
    /// The text of the first argument is read so many times.
    Text(u64),
    /// The text of the second argument is read.
    Second,
    /// The shorter of two values is read.
    Shorter,
    /// Each character of one text against each of the other.
    Contains,
    /// Everything in the first argument is read.
    Traversal,
    /// Each element of one list against each of the other, so many times.
    Pairs(u64),
    /// A value that is handed on costs one unit, and more the more text it holds.
    Handing,
    /// A rule of its own, for values and for what is known of them before.
    Own(for<'v> fn(&[Value<'v>]) -> u64, for<'b> fn(&[Known<'b>]) -> Estimate),
}

impl CallCost {
    /// The cost of a call with these arguments.
    #[inline]
    pub(crate) fn of(self, arguments: &[Value<'_>]) -> u64 {
        let size = |i: usize| arguments.get(i).map_or(0, Value::size);
        match self {
            CallCost::Fixed(units) => units,
            CallCost::Text(times) => reading(size(0) * times),
            CallCost::Second => reading(size(1)),
            CallCost::Shorter => match arguments {
                [left, right] => comparing(left, right),
                _ => 1,
            },
            CallCost::Contains => reading(size(0)).saturating_mul(reading(size(1))),
            CallCost::Traversal => arguments.first().map_or(0, traversal),
            CallCost::Pairs(times) => {
                let pairs = size(0).saturating_mul(size(1)).saturating_mul(times);
                // Elements that hold others take longer than the unit of a pair.
                let contents = arguments.first().map_or(0, |list| list.contents(u64::MAX));
                let deep = reading(contents.saturating_mul(size(1)).saturating_mul(times));
                pairs.max(deep).saturating_add(1)
            }
            CallCost::Handing => arguments.first().map_or(1, |value| handing(value.text_bytes())),
            CallCost::Own(rule, _) => rule(arguments),
        }
    }

    /// The bounds of the cost of a call with such arguments.
    pub(crate) fn estimate(self, arguments: &[Known<'_>]) -> Estimate {
        let size = |i: usize| arguments.get(i).map_or(Estimate::NOTHING, |known| known.size);
        match self {
            CallCost::Fixed(units) => Estimate::exactly(units),
            CallCost::Text(times) => size(0).map(|size| reading(size.saturating_mul(times))),
            CallCost::Second => size(1).map(reading),
            CallCost::Shorter => {
                let (left, right) = (size(0), size(1));
                Estimate { min: 1, max: reading(left.max.min(right.max)).max(1) }
            }
            CallCost::Contains => size(0).map(reading).times(size(1).map(reading)),
            CallCost::Traversal => arguments.first().map_or(Estimate::NOTHING, |known| match &known.ty {
                Type::String | Type::Bytes => size(0).map(reading),
                _ => {
                    let element = known.element();
                    let text = !element.is_scalar();
                    let each = if text { element.size.map(reading) } else { Estimate::NOTHING };
                    let units = size(0).times(each + Estimate::exactly(1));
                    Estimate { min: 0, max: units.max }
                }
            }),
            CallCost::Pairs(times) => {
                size(0).times(size(1)).times(Estimate::exactly(times)) + Estimate::exactly(1)
            }
            CallCost::Handing => Estimate::exactly(1),
            CallCost::Own(_, estimate) => estimate(arguments),
        }
    }
}

/// How the size of a result follows from what is known of the arguments.
#[derive(Clone, Copy)]
pub(crate) enum ResultSize {
    /// It does not.
    Unknown,
    /// At most the first argument's.
    First,
    /// A rule of its own.
    Own(for<'b> fn(&[Known<'b>], Type) -> Known<'b>),
}

/// Reading so many characters: one unit for ten.
pub(crate) fn reading(characters: u64) -> u64 {
    characters.div_ceil(10)
}

/// A regular expression of `pattern` characters over `text` characters. An empty text still costs.
pub(crate) fn regex(text: u64, pattern: u64) -> u64 {
    reading(text.saturating_add(1)).saturating_mul(pattern.div_ceil(4))
}

/// Copying or measuring so many bytes of text: one unit, and more from a kilobyte on.
pub(crate) fn handing(bytes: u64) -> u64 {
    (bytes / 1_024).max(1)
}

/// Taking a value out of the data: bytes are decoded, which the unit of the link pays for as long as they
/// are few.
pub(crate) fn unpacking(value: &Value<'_>) -> u64 {
    match value {
        Value::Bytes(bytes) => bytes.len() as u64 / 64,
        _ => 0,
    }
}

/// Comparing two values: the shorter is read, with all that is in it.
#[inline]
fn comparing(left: &Value<'_>, right: &Value<'_>) -> u64 {
    match (left, right) {
        (Value::Int(_), _) | (_, Value::Int(_)) => 1,
        (Value::String(a), Value::String(b)) => {
            let (a, b) = (a.as_str(), b.as_str());
            let (short, long) = if a.len() <= b.len() { (a, b) } else { (b, a) };
            let shorter = crate::value::char_count(short);
            // The characters of the other are counted only when that may make a difference.
            let other =
                if long.len() as u64 / 4 >= shorter { shorter } else { crate::value::char_count(long) };
            reading(shorter.min(other)).max(1)
        }
        (Value::List(_) | Value::Map(_), Value::List(_) | Value::Map(_)) => {
            let flat = left.size().min(right.size());
            reading(flat.max(contents_of_smaller(left, right))).max(1)
        }
        (Value::Opaque(_), _) | (_, Value::Opaque(_)) => 1,
        _ => reading(left.size().min(right.size())).max(1),
    }
}

/// How much there is in the smaller of two values, without walking far through the larger.
fn contents_of_smaller(left: &Value<'_>, right: &Value<'_>) -> u64 {
    if left.size() != right.size() {
        return 0;
    }
    let mut at_most = 64;
    loop {
        let smaller = left.contents(at_most).min(right.contents(at_most));
        if smaller < at_most {
            return smaller;
        }
        at_most *= 4;
    }
}

/// Reading everything in a value.
fn traversal(value: &Value<'_>) -> u64 {
    match value {
        Value::String(_) | Value::Bytes(_) => value.size() / 10,
        Value::List(list) => {
            let elements: u64 = list.iter().filter_map(Result::ok).map(|v| traversal(&v)).sum();
            elements.max(value.size())
        }
        Value::Map(map) => {
            let entries = map.entries().unwrap_or_default();
            entries.iter().map(|(k, v)| traversal(k) + traversal(v)).sum()
        }
        _ => 1,
    }
}
