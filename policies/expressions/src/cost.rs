//! Cost units: evaluation counts them and stops at a limit.
//!
//! # Invariants
//! INVARIANT (deterministic cost): the cost depends only on the expression and its values. A comparison costs
//! at least 1, a list literal 40, a map literal 30. An identifier and each following link cost 1. Text costs
//! 1 per ten processed characters. The library tables define the cost of their functions.
//! INVARIANT (cost covers work): the time per cost unit is bounded, whatever the data. In addition to the
//! costs of kube-apiserver, evaluation charges nested values of comparisons, texts whose length it computes,
//! and results that are longer than the arguments. Small values cost the same as in kube-apiserver.

use crate::error::EvalError;
use crate::types::Type;
use crate::value::Value;
use crate::value_facts::{Estimate, ValueFacts};

/// Cost of a list literal.
pub(crate) const LIST_LITERAL: u64 = 40;
/// Cost of a map literal.
pub(crate) const MAP_LITERAL: u64 = 30;
/// Cost of a message literal.
pub(crate) const MESSAGE_LITERAL: u64 = 40;
/// Cost of the list that a comprehension such as `map` creates at first and again for each element.
pub(crate) const LIST_STEP: u64 = 10;

/// A cost limit and the used units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    used: u64,
    limit: u64,
}

impl Cost {
    /// Creates a limit of `limit` units.
    pub fn limit(limit: u64) -> Cost {
        Cost { used: 0, limit }
    }

    /// Used units.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Charges `units`.
    ///
    /// To limit the sum of several expressions, charge the used units of each to a common `Cost`.
    ///
    /// # Errors
    /// [`EvalError::CostLimit`] if the limit is exceeded.
    #[inline]
    pub fn charge(&mut self, units: u64) -> Result<(), EvalError> {
        self.used = self.used.saturating_add(units);
        if self.used > self.limit { Err(EvalError::CostLimit) } else { Ok(()) }
    }
}

/// Cost rule of a call. `size` means [`Value::size`]. The charge precedes the work of the function.
#[derive(Clone, Copy)]
pub(crate) enum CallCost {
    /// A constant cost.
    Fixed(u64),
    /// Cost of reading the text of the first argument this many times.
    Text(u64),
    /// Cost of reading the text of the second argument.
    Second,
    /// Cost of comparing two values: that of reading the shorter one.
    Shorter,
    /// Product of the costs of reading both texts.
    Contains,
    /// Cost of reading all contents of the first argument.
    Traversal,
    /// Product of the lengths of both lists and of this factor, plus one. Nested elements cost more.
    Pairs(u64),
    /// Cost of copying or measuring the text of the first argument: one unit for each full KiB, at least one.
    PassValue,
    /// Custom rules: one for the values of a call, one for the estimate.
    Custom(for<'v> fn(&[Value<'v>]) -> u64, for<'b> fn(&[ValueFacts<'b>]) -> Estimate),
}

impl CallCost {
    /// Cost of a call with these arguments, in units.
    #[inline]
    pub(crate) fn units(self, arguments: &[Value<'_>]) -> u64 {
        let size = |i: usize| arguments.get(i).map_or(0, Value::size);
        match self {
            CallCost::Fixed(units) => units,
            CallCost::Text(times) => read_cost(size(0) * times),
            CallCost::Second => read_cost(size(1)),
            CallCost::Shorter => match arguments {
                [left, right] => compare_cost(left, right),
                _ => 1,
            },
            CallCost::Contains => read_cost(size(0)).saturating_mul(read_cost(size(1))),
            CallCost::Traversal => arguments.first().map_or(0, traversal_cost),
            CallCost::Pairs(times) => {
                let pairs = size(0).saturating_mul(size(1)).saturating_mul(times);
                // The comparison of two nested elements takes more time than one unit per pair covers.
                let contents = arguments.first().map_or(0, |list| list.contents(u64::MAX));
                let deep = read_cost(contents.saturating_mul(size(1)).saturating_mul(times));
                pairs.max(deep).saturating_add(1)
            }
            CallCost::PassValue => arguments.first().map_or(1, |value| copy_cost(value.text_bytes())),
            CallCost::Custom(rule, _) => rule(arguments),
        }
    }

    /// Minimum and maximum cost of a call, from facts about its arguments.
    pub(crate) fn estimate(self, arguments: &[ValueFacts<'_>]) -> Estimate {
        let size = |i: usize| arguments.get(i).map_or(Estimate::ZERO, |facts| facts.size);
        match self {
            CallCost::Fixed(units) => Estimate::exactly(units),
            CallCost::Text(times) => size(0).map(|size| read_cost(size.saturating_mul(times))),
            CallCost::Second => size(1).map(read_cost),
            CallCost::Shorter => {
                let (left, right) = (size(0), size(1));
                Estimate { min: 1, max: read_cost(left.max.min(right.max)).max(1) }
            }
            CallCost::Contains => size(0).map(read_cost).times(size(1).map(read_cost)),
            CallCost::Traversal => arguments.first().map_or(Estimate::ZERO, |facts| match &facts.ty {
                Type::String | Type::Bytes => size(0).map(read_cost),
                _ => {
                    let element = facts.element();
                    let has_text = !element.is_scalar();
                    let each = if has_text { element.size.map(read_cost) } else { Estimate::ZERO };
                    let units = size(0).times(each + Estimate::exactly(1));
                    Estimate { min: 0, max: units.max }
                }
            }),
            CallCost::Pairs(times) => {
                size(0).times(size(1)).times(Estimate::exactly(times)) + Estimate::exactly(1)
            }
            CallCost::PassValue => Estimate::exactly(1),
            CallCost::Custom(_, estimate) => estimate(arguments),
        }
    }
}

/// Rule for the estimated size of a result.
#[derive(Clone, Copy)]
pub(crate) enum ResultSize {
    /// No estimate.
    Unknown,
    /// At most the size of the first argument.
    First,
    /// A custom rule.
    Custom(for<'b> fn(&[ValueFacts<'b>], Type) -> ValueFacts<'b>),
}

/// Cost of reading this many characters: one unit for ten characters or a part of ten.
pub(crate) fn read_cost(characters: u64) -> u64 {
    characters.div_ceil(10)
}

/// Cost of matching a regular expression of `pattern` characters with `text` characters.
/// An empty text also has a cost.
pub(crate) fn regex_cost(text: u64, pattern: u64) -> u64 {
    read_cost(text.saturating_add(1)).saturating_mul(pattern.div_ceil(4))
}

/// Cost of copying or measuring bytes of text: one unit for each full KiB, at least one.
pub(crate) fn copy_cost(bytes: u64) -> u64 {
    (bytes / 1_024).max(1)
}

/// Cost of taking a value out of the data, in addition to the unit of the link.
///
/// Only bytes have this cost, for their base64 decoding: one unit for each full 64 bytes.
pub(crate) fn access_cost(value: &Value<'_>) -> u64 {
    match value {
        Value::Bytes(bytes) => bytes.len() as u64 / 64,
        _ => 0,
    }
}

/// Cost of comparing two values: the cost of reading the shorter one, with its nested values if the sizes are
/// equal.
#[inline]
fn compare_cost(left: &Value<'_>, right: &Value<'_>) -> u64 {
    match (left, right) {
        (Value::Int(_), _) | (_, Value::Int(_)) => 1,
        (Value::String(a), Value::String(b)) => {
            let (a, b) = (a.as_str(), b.as_str());
            let (short, long) = if a.len() <= b.len() { (a, b) } else { (b, a) };
            let shorter = crate::value::char_count(short);
            // Counts the characters of the other value only if they can affect the result.
            let other =
                if long.len() as u64 / 4 >= shorter { shorter } else { crate::value::char_count(long) };
            read_cost(shorter.min(other)).max(1)
        }
        (Value::List(_) | Value::Map(_), Value::List(_) | Value::Map(_)) => {
            let flat = left.size().min(right.size());
            read_cost(flat.max(contents_of_smaller(left, right))).max(1)
        }
        (Value::Opaque(_), _) | (_, Value::Opaque(_)) => 1,
        _ => read_cost(left.size().min(right.size())).max(1),
    }
}

/// Number of nested values of the value with fewer nested values; 0 if the values differ in [`Value::size`].
///
/// The function raises a common limit of both counts, so that it does not walk through a much larger value.
fn contents_of_smaller(left: &Value<'_>, right: &Value<'_>) -> u64 {
    if left.size() != right.size() {
        return 0;
    }
    let mut max_contents = 64;
    loop {
        let smaller = left.contents(max_contents).min(right.contents(max_contents));
        if smaller < max_contents {
            return smaller;
        }
        max_contents *= 4;
    }
}

/// Cost of reading all contents of a value.
fn traversal_cost(value: &Value<'_>) -> u64 {
    match value {
        Value::String(_) | Value::Bytes(_) => value.size() / 10,
        Value::List(list) => {
            let elements: u64 = list.iter().filter_map(Result::ok).map(|v| traversal_cost(&v)).sum();
            elements.max(value.size())
        }
        Value::Map(map) => {
            let entries = map.entries().unwrap_or_default();
            entries.iter().map(|(k, v)| traversal_cost(k) + traversal_cost(v)).sum()
        }
        _ => 1,
    }
}
