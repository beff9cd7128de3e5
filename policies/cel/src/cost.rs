//! Units of cost: counted while an expression runs, halted at a limit.
//!
//! # Invariants
//! INVARIANT (deterministic cost): what is charged depends on the expression and its values alone. A
//! comparison costs at least 1, a list literal 40, a map literal 30, a name and each link behind it 1,
//! text 1 per ten characters that are looked at; libraries say in their tables what they cost.

use crate::error::EvalError;
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
    pub fn charge(&mut self, units: u64) -> Result<(), EvalError> {
        self.used = self.used.saturating_add(units);
        if self.used > self.limit { Err(EvalError::CostLimit) } else { Ok(()) }
    }
}

/// How the cost of a call follows from its arguments (`size` as of [`Value::size`]).
#[derive(Clone, Copy)]
pub(crate) enum CallCost {
    /// Always so many units.
    Fixed(u64),
    /// The text of the first argument is read so many times.
    Text(u64),
    /// The text of the result is read so many times.
    Result(u64),
    /// The shorter of two values is read.
    Shorter,
    /// Each character of one text against each of the other.
    Contains,
    /// A regular expression (second) over a text (first).
    Regex,
    /// Everything in the first argument is read.
    Traversal,
    /// Each element of one list against each of the other, so many times.
    Pairs(u64),
    /// A rule of its own.
    Own(for<'v> fn(&[Value<'v>]) -> u64),
}

impl CallCost {
    /// The cost of a call with these arguments and this result.
    pub(crate) fn of<'v>(self, arguments: &[Value<'v>], result: Option<&Value<'v>>) -> u64 {
        let size = |i: usize| arguments.get(i).map_or(0, Value::size);
        match self {
            CallCost::Fixed(units) => units,
            CallCost::Text(times) => reading(size(0) * times),
            CallCost::Result(times) => reading(result.map_or(0, Value::size) * times),
            CallCost::Shorter => reading(size(0).min(size(1))).max(1),
            CallCost::Contains => reading(size(0)).saturating_mul(reading(size(1))),
            CallCost::Regex => regex(size(0), size(1)),
            CallCost::Traversal => arguments.first().map_or(0, traversal),
            CallCost::Pairs(times) => size(0).saturating_mul(size(1)).saturating_mul(times).saturating_add(1),
            CallCost::Own(rule) => rule(arguments),
        }
    }
}

/// Reading so many characters: one unit for ten.
pub(crate) fn reading(characters: u64) -> u64 {
    characters.div_ceil(10)
}

/// A regular expression of `pattern` characters over `text` characters. An empty text still costs.
pub(crate) fn regex(text: u64, pattern: u64) -> u64 {
    reading(text + 1).saturating_mul(pattern.div_ceil(4))
}

/// Reading everything in a value.
fn traversal(value: &Value<'_>) -> u64 {
    match value {
        Value::String(_) | Value::Bytes(_) => value.size() / 10,
        Value::List(list) => list.iter().filter_map(Result::ok).map(|v| traversal(&v)).sum(),
        Value::Map(map) => {
            let entries = map.entries().unwrap_or_default();
            entries.iter().map(|(k, v)| traversal(k) + traversal(v)).sum()
        }
        _ => 1,
    }
}

impl CallCost {
    /// Whether the cost is known only after the call.
    pub(crate) fn needs_result(self) -> bool {
        matches!(self, CallCost::Result(_))
    }
}
