//! Cost units: evaluation counts them and stops at a limit.
//!
//! # Invariants
//! INVARIANT (deterministic cost): the cost depends only on the expression and its values. A comparison costs
//! at least 1, a list literal 10, a map literal 30; literals of constants are free. An identifier and each following
//! link cost 1. Text costs 1 per ten processed characters. The library tables define the cost of their functions.
//! INVARIANT (cost covers work): the time per cost unit is bounded, whatever the data. In addition to the
//! costs of kube-apiserver, evaluation charges texts whose length it computes, and results that are longer than
//! the arguments. A second counter has the work that kube-apiserver does not count: nested values of
//! comparisons, keys, and the entries of maps. The larger counter decides. Small values cost the same as in
//! kube-apiserver.

use std::fmt;

use crate::error::EvalError;
use crate::types::{Overload, Type};
use crate::value::Value;
use crate::value_facts::{Estimate, ValueFacts};

/// Cost of a list literal.
pub(crate) const LIST_LITERAL: u64 = 10;
/// Cost of a map literal.
pub(crate) const MAP_LITERAL: u64 = 30;
/// Cost of a message literal.
pub(crate) const MESSAGE_LITERAL: u64 = 40;
/// A cost limit and the used units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// Units that kube-apiserver counts.
    charged: u64,
    /// Units of work that kube-apiserver does not count in full; compared with the limit separately.
    work: u64,
    limit: u64,
}

impl Cost {
    /// Creates a limit of `limit` units.
    pub fn limit(limit: u64) -> Cost {
        Cost { charged: 0, work: 0, limit }
    }

    /// Used units, for the budget of several expressions: those of kube-apiserver, or the units of work if they
    /// are more.
    pub fn used(&self) -> u64 {
        self.charged.max(self.work)
    }

    /// Units that kube-apiserver counts.
    pub fn charged(&self) -> u64 {
        self.charged
    }

    /// Charges `units`.
    ///
    /// To limit the sum of several expressions, charge the used units of each to a common `Cost`.
    ///
    /// # Errors
    /// [`EvalError::CostLimit`] if the limit is exceeded.
    #[inline]
    pub fn charge(&mut self, units: u64) -> Result<(), EvalError> {
        self.charged = self.charged.saturating_add(units);
        if self.charged > self.limit { Err(EvalError::CostLimit) } else { Ok(()) }
    }

    /// Charges units of work, which count only as far as they exceed the units of kube-apiserver.
    ///
    /// # Errors
    /// [`EvalError::CostLimit`] if the work alone exceeds the limit.
    #[inline]
    pub(crate) fn charge_work(&mut self, units: u64) -> Result<(), EvalError> {
        self.work = self.work.saturating_add(units);
        if self.work > self.limit { Err(EvalError::CostLimit) } else { Ok(()) }
    }
}

/// Cost rule of a call. `size` means [`Value::size`].
///
/// The charge precedes the work of the function. Rules of operators depend on the overload: a call whose
/// overload only evaluation determines costs one unit, as in kube-apiserver.
#[derive(Clone, Copy)]
pub(crate) enum CallCost {
    /// A constant cost.
    Fixed(u64),
    /// Cost of reading the text of the first argument this many times.
    Text(u64),
    /// Cost of reading all contents of the first argument.
    Traversal,
    /// Product of the lengths of both lists and of this factor, plus one.
    Pairs(u64),
    /// Cost of copying or measuring the text of the first argument: one unit for each full KiB, at least one.
    PassValue,
    /// The rule of an operator, by its overload.
    Operator(OperatorCost),
    /// A rule, and the work of a call that the rule does not cover.
    WithWork(&'static CallCost, for<'v> fn(&[Value<'v>]) -> u64),
    /// Custom rules with their description: one for the values of a call, one for the estimate.
    Custom(
        &'static str,
        for<'v> fn(&[Value<'v>], Option<&Overload>) -> u64,
        for<'b> fn(&[ValueFacts<'b>], &Overload) -> Estimate,
    ),
}

/// Cost rules of operators and of functions that cel-go's standard library prices by overload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperatorCost {
    /// Cost of comparing two values: that of reading the shorter one. Library values have short texts.
    Equality,
    /// As equality, with an estimate that ignores library types.
    Inequality,
    /// As equality for text and bytes, else one.
    Order,
    /// Cost of reading both texts, or one.
    Add,
    /// Number of elements of a list; one for a map.
    In,
    /// Cost of reading the argument of a conversion between text and bytes, or one.
    TextConversion,
    /// Cost of reading the first text, and in an estimate the second.
    Affix,
    /// Product of the costs of reading both texts.
    Contains,
}

impl CallCost {
    /// Cost of a call with these arguments, in units. `overload` is None if several overloads are candidates.
    #[inline]
    pub(crate) fn units(self, arguments: &[Value<'_>], overload: Option<&Overload>) -> u64 {
        let size = |i: usize| arguments.get(i).map_or(0, Value::size);
        match self {
            CallCost::Fixed(units) => units,
            CallCost::Text(times) => read_cost(size(0) * times),
            CallCost::Traversal => arguments.first().map_or(0, traversal_cost),
            CallCost::Pairs(times) => size(0).saturating_mul(size(1)).saturating_mul(times).saturating_add(1),
            CallCost::PassValue => arguments.first().map_or(1, |value| copy_cost(value.text_bytes())),
            CallCost::Operator(operator) => operator.units(arguments, overload),
            CallCost::WithWork(rule, _) => rule.units(arguments, overload),
            CallCost::Custom(_, rule, _) => rule(arguments, overload),
        }
    }

    /// Work of a call that [`CallCost::units`] does not cover: nested values that the function compares.
    #[inline]
    pub(crate) fn work(self, arguments: &[Value<'_>]) -> u64 {
        match (self, arguments) {
            (CallCost::Operator(OperatorCost::Equality | OperatorCost::Inequality), [left, right]) => {
                compare_work(left, right)
            }
            (CallCost::Operator(OperatorCost::In), [_, list @ Value::List(_)]) => nested_work(list),
            (CallCost::Operator(OperatorCost::In), [key, _]) => key_work(key),
            (CallCost::Pairs(times), [left, right]) if right.size() > 0 => {
                nested_work(left).saturating_mul(right.size()).saturating_mul(times)
            }
            (CallCost::Operator(OperatorCost::Add), [Value::List(left), Value::List(right)])
                if left.joins_elements() =>
            {
                // The concatenation of set and map lists processes every element.
                let contents = left.contents(u64::MAX).saturating_add(right.contents(u64::MAX));
                contents.saturating_mul(UNORDERED_WORK)
            }
            (CallCost::WithWork(_, work), _) => work(arguments),
            // Short texts are free, but their number takes time.
            (CallCost::Traversal, [Value::List(list), ..]) => list.len() as u64 / NESTED_PER_UNIT,
            _ => 0,
        }
    }

    /// Minimum and maximum cost of a call of an overload, from facts about its arguments.
    pub(crate) fn estimate(self, arguments: &[ValueFacts<'_>], overload: &Overload) -> Estimate {
        let size = |i: usize| arguments.get(i).map_or(Estimate::ZERO, ValueFacts::size);
        match self {
            CallCost::Fixed(units) => Estimate::exactly(units),
            CallCost::Text(1) => size(0).scaled(READ),
            #[expect(clippy::cast_precision_loss, reason = "the factor is small")]
            CallCost::Text(times) => size(0).scaled(times as f64 * READ),
            CallCost::Traversal => arguments.first().map_or(Estimate::ZERO, |facts| {
                let each = match facts.first_parameter() {
                    None => return facts.size().scaled(READ),
                    Some(Type::String | Type::Bytes) => Estimate::ONE + facts.element_size().scaled(READ),
                    Some(_) => Estimate::ONE,
                };
                facts.size().times(each)
            }),
            #[expect(clippy::cast_precision_loss, reason = "the factor is small")]
            CallCost::Pairs(times) => size(0).times(size(1)).scaled(times as f64) + Estimate::ONE,
            CallCost::PassValue => Estimate::ONE,
            CallCost::Operator(operator) => operator.estimate(arguments, overload),
            CallCost::WithWork(rule, _) => rule.estimate(arguments, overload),
            CallCost::Custom(.., estimate) => estimate(arguments, overload),
        }
    }
}

impl fmt::Display for CallCost {
    /// Describes the rule. Sizes are characters of texts, bytes, or elements.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CallCost::Fixed(units) => write!(f, "{units}"),
            CallCost::Text(1) => f.write_str("size/10"),
            CallCost::Text(times) => write!(f, "{times} x size/10"),
            CallCost::Traversal => f.write_str("elements, with size/10 of texts"),
            CallCost::Pairs(1) => f.write_str("1 + size x other size"),
            CallCost::Pairs(times) => write!(f, "1 + {times} x size x other size"),
            CallCost::PassValue => f.write_str("1"),
            CallCost::Operator(operator) => f.write_str(match operator {
                OperatorCost::Equality => "smaller size/10; 1 of library values",
                OperatorCost::Inequality => "smaller size/10",
                OperatorCost::Order => "smaller size/10 of texts, else 1",
                OperatorCost::Add => "sum of sizes/10 of texts, else 1",
                OperatorCost::In => "size of a list, 1 of a map",
                OperatorCost::TextConversion => "size/10 between text and bytes, else 1",
                OperatorCost::Affix => "size/10; estimate: size of the second text/10",
                OperatorCost::Contains => "size/10 x size of the second text/10",
            }),
            CallCost::WithWork(rule, _) => rule.fmt(f),
            CallCost::Custom(description, ..) => f.write_str(description),
        }
    }
}

impl fmt::Display for ResultSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ResultSize::Unknown => "-",
            ResultSize::First => "size",
            ResultSize::UpToFirst => "0 to size",
            ResultSize::Custom(description, _) => description,
        })
    }
}

impl OperatorCost {
    fn units(self, arguments: &[Value<'_>], overload: Option<&Overload>) -> u64 {
        let size = |i: usize| arguments.get(i).map_or(0, Value::size);
        let parameter = overload.map(|overload| overload.parameter(0));
        let is_text = matches!(parameter, Some(Type::String | Type::Bytes));
        match (self, arguments) {
            (OperatorCost::Equality | OperatorCost::Inequality, [left, right]) => compare_cost(left, right),
            (OperatorCost::Order, [left, right]) if is_text => compare_cost(left, right),
            (OperatorCost::Add, [left, right]) if is_text => read_cost(left.size() + right.size()),
            // Evaluation covers the work of a long text even if the overload is unknown.
            (OperatorCost::Add, [left, right]) => copy_cost(left.text_bytes() + right.text_bytes()),
            (OperatorCost::In, [_, other]) => {
                let is_list = overload.is_some_and(|overload| matches!(overload.parameter(1), Type::List(_)));
                if is_list { other.size() } else { 1 }
            }
            (OperatorCost::TextConversion, [value]) if is_text => match (parameter, overload) {
                (Some(from), Some(overload)) if *from != overload.result => read_cost(value.size()),
                _ => 1,
            },
            (OperatorCost::Affix, _) => read_cost(size(0)),
            (OperatorCost::Contains, _) => read_cost(size(0)).saturating_mul(read_cost(size(1))),
            _ => 1,
        }
    }

    fn estimate(self, arguments: &[ValueFacts<'_>], overload: &Overload) -> Estimate {
        let size = |i: usize| arguments.get(i).map_or(Estimate::ZERO, ValueFacts::size);
        let is_text = matches!(overload.parameter(0), Type::String | Type::Bytes);
        let shorter = || {
            let max = size(0).max.min(size(1).max);
            Estimate { min: max.min(1), max }.scaled(READ)
        };
        match self {
            OperatorCost::Equality => library_equality(arguments).unwrap_or_else(shorter),
            OperatorCost::Inequality => shorter(),
            OperatorCost::Order if is_text => shorter(),
            OperatorCost::Add if is_text => (size(0) + size(1)).scaled(READ),
            OperatorCost::In if matches!(overload.parameter(1), Type::List(_)) => size(1).scaled(1.0),
            OperatorCost::TextConversion if is_text && *overload.parameter(0) != overload.result => {
                size(0).scaled(READ)
            }
            OperatorCost::Affix => size(1).scaled(READ),
            OperatorCost::Contains => size(0).scaled(READ).times(size(1).scaled(READ)),
            _ => Estimate::ONE,
        }
    }
}

/// Rule for the estimated size of a result.
#[derive(Clone, Copy)]
pub(crate) enum ResultSize {
    /// No estimate, except for types whose values all have size 1.
    Unknown,
    /// The size of the first argument.
    First,
    /// Any size up to that of the first argument.
    UpToFirst,
    /// A custom rule with its description.
    Custom(&'static str, for<'b> fn(&[ValueFacts<'b>], &Overload) -> Option<Estimate>),
}

impl ResultSize {
    /// Size of the result of an overload.
    pub(crate) fn estimate(self, arguments: &[ValueFacts<'_>], overload: &Overload) -> Option<Estimate> {
        let first = || arguments.first().map(ValueFacts::size);
        match self {
            ResultSize::Unknown => None,
            ResultSize::First => first(),
            ResultSize::UpToFirst => first().map(|size| Estimate { min: 0, max: size.max }),
            ResultSize::Custom(_, rule) => rule(arguments, overload),
        }
    }
}

/// Cost of reading one character in an estimate.
pub(crate) const READ: f64 = 0.1;

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
        (Value::Int(_), Value::Int(_)) => 1,
        (Value::String(a), Value::String(b)) => {
            let (a, b) = (a.as_str(), b.as_str());
            let (short, long) = if a.len() <= b.len() { (a, b) } else { (b, a) };
            let shorter = crate::value::char_count(short);
            // Counts the characters of the other value only if they can affect the result.
            let other =
                if long.len() as u64 / 4 >= shorter { shorter } else { crate::value::char_count(long) };
            read_cost(shorter.min(other))
        }
        (Value::List(_) | Value::Map(_), Value::List(_) | Value::Map(_)) => {
            read_cost(left.size().min(right.size()))
        }
        (Value::Opaque(_), _) | (_, Value::Opaque(_)) => 1,
        _ => read_cost(left.size().min(right.size())),
    }
}

/// Nested values whose comparison costs one unit of work.
const NESTED_PER_UNIT: u64 = 2;
/// Units of work of a nested value of a set or map list, whose elements have no order.
const UNORDERED_WORK: u64 = 4;

/// Work of comparing two values. Scalars and texts have none, as their cost covers the comparison.
#[inline]
fn compare_work(left: &Value<'_>, right: &Value<'_>) -> u64 {
    match (left, right) {
        (Value::List(list), Value::List(_)) if list.joins_elements() => {
            contents_of_smaller(left, right).saturating_mul(UNORDERED_WORK)
        }
        (Value::List(_), Value::List(_))
        | (Value::Map(_), Value::Map(_))
        | (Value::Optional(_), Value::Optional(_)) => contents_of_smaller(left, right) / NESTED_PER_UNIT,
        _ => 0,
    }
}

/// Work of comparing all nested values of a value.
fn nested_work(value: &Value<'_>) -> u64 {
    value.contents(u64::MAX) / NESTED_PER_UNIT
}

/// Work of finding a key of a map or adding it. Short texts, numbers and booleans have none.
#[inline]
pub(crate) fn key_work(key: &Value<'_>) -> u64 {
    match key {
        Value::String(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_) | Value::Optional(_) => {
            // A small map compares the key with each of its keys.
            key.contents(u64::MAX).saturating_sub(1).saturating_mul(2)
        }
        _ => 0,
    }
}

/// Work of copying the entries of a map before the first is processed.
pub(crate) fn entries_work(entries: usize) -> u64 {
    entries as u64 / NESTED_PER_UNIT
}

/// Estimate of the cost of `==` of two values of the same library type; None for other types.
fn library_equality(arguments: &[ValueFacts<'_>]) -> Option<Estimate> {
    let [left, right] = arguments else { return None };
    match left.ty {
        Type::Opaque(name) if left.ty == right.ty => Some(match (name, right.known_size()) {
            ("kubernetes.NamedFormat", _) => Estimate { min: 1, max: FORMAT_SIZE },
            ("kubernetes.URL", Some(size)) => Estimate { min: 1, max: size.max }.scaled(READ),
            _ => Estimate::ONE,
        }),
        _ => None,
    }
}

/// Estimated maximum cost of reading the text of a named format.
const FORMAT_SIZE: u64 = 7;

/// Element count of the smaller value, with nested elements. If the sizes differ, the smaller [`Value::size`].
///
/// The function raises a common limit of both counts, so that it does not walk through a much larger value.
fn contents_of_smaller(left: &Value<'_>, right: &Value<'_>) -> u64 {
    let (left_size, right_size) = (left.size(), right.size());
    if left_size != right_size {
        return left_size.min(right_size);
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
        Value::String(text) => text.as_str().len() as u64 / 10,
        Value::Bytes(bytes) => bytes.len() as u64 / 10,
        Value::List(list) => list.iter().filter_map(Result::ok).map(|v| traversal_cost(&v)).sum(),
        Value::Map(map) => {
            let entries = map.entries().unwrap_or_default();
            entries.iter().map(|(k, v)| traversal_cost(k) + traversal_cost(v)).sum()
        }
        _ => 1,
    }
}
