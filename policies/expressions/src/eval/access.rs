//! Evaluation of selection chains, indexes and presence tests.

use std::sync::Arc;

use crate::cost::access_cost;
use crate::error::EvalError;
use crate::program::{Node, Step, StepTarget};
use crate::value::Value;

use super::{Evaluator, Outcome};

impl<'a> Evaluator<'a, '_> {
    /// Returns the value at the end of a chain.
    ///
    /// Charges the links, and a root that is not a variable; the caller charges the unit of the chain itself.
    pub(super) fn evaluate_chain(&mut self, root: &'a Node, steps: &'a [Step]) -> Outcome<'a> {
        let (mut value, steps) = match (root, steps.split_first()) {
            (Node::Slot(slot), Some((first, rest))) if self.is_lazy(*slot) => (self.lazy_step(first)?, rest),
            (Node::Slot(slot), _) => (self.read_slot(*slot)?, steps),
            (other, _) => (self.evaluate(other)?, steps),
        };
        for step in steps {
            value = self.follow_step(&value, step)?;
            self.cost.charge(access_cost(&value))?;
        }
        Ok(value)
    }

    fn is_lazy(&self, slot: usize) -> bool {
        self.lazy.is_some_and(|(lazy, _)| lazy == slot)
    }

    /// Follows the first link from the variable with lazy fields, which computes the field.
    fn lazy_step(&mut self, step: &'a Step) -> Outcome<'a> {
        let StepTarget::Field(name) = &step.target else { return Err(EvalError::NoOverload) };
        self.cost.charge(1)?;
        let found = self.lazy.and_then(|(_, fields)| fields.field(name)).transpose()?;
        link_value(found, step.is_optional, || no_such_key_error(name))
    }

    /// Evaluates `has()`: the test is free, and each preceding link costs one unit.
    pub(super) fn evaluate_has(&mut self, root: &'a Node, steps: &'a [Step], field: &str) -> Outcome<'a> {
        if let (Node::Slot(slot), [], Some((lazy, fields))) = (root, steps, self.lazy)
            && *slot == lazy
        {
            return Ok(Value::Bool(fields.has(field)));
        }
        let value = self.evaluate_chain(root, steps)?;
        let operand = match &value {
            Value::Optional(None) => return Ok(Value::Bool(false)),
            Value::Optional(Some(inner)) => inner.as_ref(),
            value => value,
        };
        match operand {
            Value::Map(map) => Ok(Value::Bool(map.field(field).is_some())),
            _ => Err(no_such_key_error(field)),
        }
    }

    fn follow_step(&mut self, value: &Value<'a>, step: &'a Step) -> Outcome<'a> {
        // Links after an optional link apply to the inner value, if present, and stay optional.
        let is_optional = step.is_optional || matches!(value, Value::Optional(_));
        let operand = match value {
            Value::Optional(inner) => inner.as_deref(),
            value => Some(value),
        };
        match &step.target {
            StepTarget::Field(name) => {
                self.cost.charge(1)?;
                let found = match operand {
                    None => None,
                    Some(Value::Map(map)) => map.field(name).transpose()?,
                    Some(_) => return Err(no_such_key_error(name)),
                };
                link_value(found, is_optional, || no_such_key_error(name))
            }
            StepTarget::Index(index) => {
                let index = self.evaluate_index(index)?;
                let found = operand.map_or(Ok(None), |operand| element_at(operand, &index))?;
                link_value(found, is_optional, || missing_key_error(value, &index))
            }
        }
    }

    /// Value of an index. The link costs one unit, unless the index is a variable or a chain, which costs a
    /// unit itself.
    fn evaluate_index(&mut self, index: &'a Node) -> Outcome<'a> {
        if !matches!(index, Node::Slot(_) | Node::Chain { .. }) {
            self.cost.charge(1)?;
        }
        self.evaluate(index)
    }
}

/// The value of a link: an optional link has a value even if it selects nothing.
fn link_value<'a>(
    found: Option<Value<'a>>,
    is_optional: bool,
    missing: impl FnOnce() -> EvalError,
) -> Outcome<'a> {
    match is_optional {
        true => Ok(Value::Optional(found.map(Arc::new))),
        false => found.ok_or_else(missing),
    }
}

/// Element of a list or value of a map at an index; None if there is none.
fn element_at<'a>(value: &Value<'a>, index: &Value<'a>) -> Result<Option<Value<'a>>, EvalError> {
    match value {
        Value::List(list) => {
            let index = match index {
                Value::Int(i) => usize::try_from(*i).ok(),
                Value::Uint(u) => usize::try_from(*u).ok(),
                Value::Double(d) => match crate::numbers::double_to_int(*d)? {
                    #[expect(clippy::cast_precision_loss, clippy::float_cmp, reason = "whole numbers only")]
                    i if i as f64 == *d => usize::try_from(i).ok(),
                    _ => return Err(EvalError::NoOverload),
                },
                _ => return Err(EvalError::NoOverload),
            };
            index.and_then(|i| list.at(i)).transpose()
        }
        Value::Map(map) => map.value(index),
        _ => Err(EvalError::NoOverload),
    }
}

fn missing_key_error(value: &Value<'_>, index: &Value<'_>) -> EvalError {
    match (value, index) {
        (Value::List(_), index) => EvalError::failed(format!("index out of bounds: {index:?}")),
        (_, Value::String(key)) => no_such_key_error(key.as_str()),
        (_, key) => EvalError::failed(format!("no such key: {key:?}")),
    }
}

fn no_such_key_error(name: &str) -> EvalError {
    EvalError::failed(format!("no such key: {name}"))
}
