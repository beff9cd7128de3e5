//! Evaluation of selection chains, indexes and presence tests.

use std::sync::Arc;

use crate::cost::{access_cost, key_work};
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

    /// Evaluates `has()`. Each link costs one unit, also the tested one, and the variable nothing.
    pub(super) fn evaluate_has(&mut self, root: &'a Node, steps: &'a [Step], field: &str) -> Outcome<'a> {
        if let (Node::Slot(slot), [], Some((lazy, fields))) = (root, steps, self.lazy)
            && *slot == lazy
        {
            self.cost.charge(1)?;
            return Ok(Value::Bool(fields.has(field)));
        }
        let value = self.evaluate_chain(root, steps)?;
        let operand = match &value {
            Value::Optional(None) => return Ok(Value::Bool(false)),
            Value::Optional(Some(inner)) => inner.as_ref(),
            value => value,
        };
        self.cost.charge(1)?;
        match operand {
            Value::Map(map) => Ok(Value::Bool(map.field(field).is_some())),
            Value::List(_) => Err(unsupported_index_error("string")),
            _ => Ok(Value::Bool(false)),
        }
    }

    fn follow_step(&mut self, value: &Value<'a>, step: &'a Step) -> Outcome<'a> {
        // Links after an optional link apply to the inner value, if present, and stay optional.
        let is_optional = step.is_optional || matches!(value, Value::Optional(_));
        let operand = match value {
            Value::Optional(None) => return Ok(Value::Optional(None)),
            Value::Optional(Some(inner)) => inner.as_ref(),
            value => value,
        };
        match &step.target {
            StepTarget::Field(name) => {
                let found = match operand {
                    Value::Map(map) => map.field(name).transpose(),
                    Value::List(_) => Err(unsupported_index_error("string")),
                    _ => Ok(None),
                };
                self.charge_link(is_optional, &found)?;
                link_value(found?, is_optional, || no_such_key_error(name))
            }
            StepTarget::Index(index) => {
                let index = self.evaluate_index(index)?;
                self.cost.charge_work(key_work(&index))?;
                let found = element_at(operand, &index);
                self.charge_link(is_optional, &found)?;
                link_value(found?, is_optional, || missing_key_error(operand, &index))
            }
        }
    }

    /// Charges a link: one unit, except for an optional link that selects nothing.
    fn charge_link(
        &mut self,
        is_optional: bool,
        found: &Result<Option<Value<'a>>, EvalError>,
    ) -> Result<(), EvalError> {
        if is_optional && !matches!(found, Ok(Some(_))) { Ok(()) } else { self.cost.charge(1) }
    }

    /// Value of an index. An index that is a variable costs nothing beside the link, and a chain only its links.
    fn evaluate_index(&mut self, index: &'a Node) -> Outcome<'a> {
        self.evaluate_branch(index)
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
                Value::Double(d) => match crate::numbers::double_to_int(*d) {
                    #[expect(clippy::cast_precision_loss, clippy::float_cmp, reason = "whole numbers only")]
                    Ok(i) if i as f64 == *d => usize::try_from(i).ok(),
                    _ => return Err(EvalError::failed(format!("unsupported index value {d} in list"))),
                },
                other => return Err(unsupported_index_error(&other.type_name())),
            };
            index.and_then(|i| list.at(i)).transpose()
        }
        Value::Map(map) => map.value(index),
        _ => Ok(None),
    }
}

fn unsupported_index_error(ty: &str) -> EvalError {
    EvalError::failed(format!("unsupported index type '{ty}' in list"))
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
