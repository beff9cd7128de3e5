//! Evaluates a program on values and charges its cost.
//!
//! # Invariants
//! INVARIANT (budget is final): [`EvalError::CostLimit`] ends the evaluation; no operator absorbs it.
//! INVARIANT (bounded values): no created value has a weight above [`MAX_WEIGHT`], whatever the cost limit
//! is.

mod access;
mod comprehension;

use std::sync::Arc;

use crate::cost::{Cost, LIST_LITERAL, MAP_LITERAL, MESSAGE_LITERAL};
use crate::error::EvalError;
use crate::library::Function;
use crate::map::MapBuilder;
use crate::program::{Node, Program};
use crate::types::Type;
use crate::value::Value;

/// Maximum [`Value::weight`] of a created value; a heavier value is an error.
///
/// Without the limit, an expression could create a huge value cheaply from shared parts, and its traversal
/// would be slow.
const MAX_WEIGHT: u64 = 4_000_000;

type Outcome<'a> = Result<Value<'a>, EvalError>;

/// An object whose fields are computed on access.
pub trait LazyFields<'a> {
    /// Value of a field; None if there is no such field.
    fn field(&self, name: &str) -> Option<Result<Value<'a>, EvalError>>;
    /// Whether there is a field.
    fn has(&self, name: &str) -> bool;
}

/// Slot of the variable with lazy fields, and the fields.
type LazySlot<'a, 'c> = (usize, &'c dyn LazyFields<'a>);

impl Program {
    /// Evaluates the expression. Access to a variable without a value is an error.
    ///
    /// # Errors
    /// [`EvalError::CostLimit`] if `cost` is exceeded; any other error of the expression.
    pub fn evaluate<'a>(
        &'a self,
        variables: &[(&str, Value<'a>)],
        cost: &mut Cost,
    ) -> Result<Value<'a>, EvalError> {
        self.run(variables, None, cost)
    }

    /// Evaluates the expression with an object variable whose fields are computed on access.
    /// `cost` is charged for the access only; the implementation of [`LazyFields`] charges the computation.
    ///
    /// # Errors
    /// See [`Program::evaluate`]; also the errors of computed fields.
    pub fn evaluate_with_lazy<'a>(
        &'a self,
        variables: &[(&str, Value<'a>)],
        lazy: (&str, &dyn LazyFields<'a>),
        cost: &mut Cost,
    ) -> Result<Value<'a>, EvalError> {
        let (name, fields) = lazy;
        let slot = self.variables.iter().position(|(declared, _)| declared == name);
        self.run(variables, slot.map(|slot| (slot, fields)), cost)
    }

    fn run<'a>(
        &'a self,
        variables: &[(&str, Value<'a>)],
        lazy: Option<LazySlot<'a, '_>>,
        cost: &mut Cost,
    ) -> Result<Value<'a>, EvalError> {
        let mut slots = vec![None; self.slots];
        for (name, value) in variables {
            let slot = self.variables.iter().position(|(declared, _)| declared == name);
            if let Some(entry) = slot.and_then(|slot| slots.get_mut(slot)) {
                *entry = Some(value.clone());
            }
        }
        Evaluator { variables: &self.variables, slots, lazy, cost }.evaluate(&self.root)
    }
}

/// The state of one evaluation.
struct Evaluator<'a, 'c> {
    variables: &'a [(String, Type)],
    slots: Vec<Option<Value<'a>>>,
    lazy: Option<LazySlot<'a, 'c>>,
    cost: &'c mut Cost,
}

impl<'a> Evaluator<'a, '_> {
    /// Evaluates a node, and limits the size of its value.
    fn evaluate(&mut self, node: &'a Node) -> Outcome<'a> {
        let outcome = self.evaluate_unlimited(node);
        if let Ok(value @ (Value::List(_) | Value::Map(_) | Value::Optional(_))) = &outcome
            && value.weight() > MAX_WEIGHT
        {
            return Err(EvalError::failed("the value is too large"));
        }
        outcome
    }

    fn evaluate_unlimited(&mut self, node: &'a Node) -> Outcome<'a> {
        match node {
            Node::Const(value) => Ok(value.clone()),
            Node::Slot(slot) => {
                self.cost.charge(1)?;
                self.read_slot(*slot)
            }
            Node::Chain { root, steps, .. } => {
                self.cost.charge(1)?;
                self.evaluate_chain(root, steps)
            }
            Node::Has { root, steps, field } => self.evaluate_has(root, steps, field),
            Node::Call { functions, arguments, .. } => self.evaluate_call(functions, arguments),
            Node::And(operands) => self.evaluate_logic(&operands.0, &operands.1, false),
            Node::Or(operands) => self.evaluate_logic(&operands.0, &operands.1, true),
            Node::Conditional(parts) => match self.evaluate(&parts.0)? {
                Value::Bool(true) => self.evaluate(&parts.1),
                Value::Bool(false) => self.evaluate(&parts.2),
                _ => Err(EvalError::NoOverload),
            },
            Node::OrElse { operand, unwrap } => {
                let Value::Optional(inner) = self.evaluate(&operand.0)? else {
                    return Err(EvalError::NoOverload);
                };
                self.cost.charge(1)?;
                match inner {
                    Some(value) if *unwrap => Ok(value.as_ref().clone()),
                    Some(value) => Ok(Value::Optional(Some(value))),
                    None => self.evaluate(&operand.1),
                }
            }
            Node::List(elements) => {
                self.cost.charge(LIST_LITERAL)?;
                let mut items = Vec::with_capacity(elements.len());
                for (element, optional) in elements {
                    match (self.evaluate(element)?, *optional) {
                        (value, false) => items.push(value),
                        (Value::Optional(inner), true) => items.extend(inner.map(|v| v.as_ref().clone())),
                        _ => return Err(EvalError::NoOverload),
                    }
                }
                Ok(Value::list(items))
            }
            Node::Map { message, entries } => self.evaluate_map(message.as_deref(), entries),
            Node::Comprehension(comprehension) => self.evaluate_comprehension(comprehension),
            Node::OptionalMap { operand, slot, body, flat } => {
                let Value::Optional(inner) = self.evaluate(operand)? else {
                    return Err(EvalError::NoOverload);
                };
                // The costs of the macro expansion, which tests `hasValue()` and then reads the value.
                self.cost.charge(1)?;
                let Some(value) = inner else {
                    self.cost.charge(1)?;
                    return Ok(Value::Optional(None));
                };
                self.cost.charge(12)?;
                self.write_slot(*slot, value.as_ref().clone());
                let result = self.evaluate(body)?;
                if *flat { Ok(result) } else { Ok(Value::Optional(Some(Arc::new(result)))) }
            }
        }
    }

    fn read_slot(&self, slot: usize) -> Outcome<'a> {
        match self.slots.get(slot) {
            Some(Some(value)) => Ok(value.clone()),
            _ => {
                let name = self.variables.get(slot).map_or("", |(name, _)| name.as_str());
                Err(EvalError::failed(format!("no such attribute(s): {name}")))
            }
        }
    }

    fn write_slot(&mut self, slot: usize, value: Value<'a>) {
        if let Some(entry) = self.slots.get_mut(slot) {
            *entry = Some(value);
        }
    }

    /// Evaluates `&&` (decided by false) and `||` (decided by true).
    /// If the right operand decides the result, an error of the left operand is ignored.
    fn evaluate_logic(&mut self, left: &'a Node, right: &'a Node, deciding: bool) -> Outcome<'a> {
        let left = condition_value(self.evaluate(left))?;
        if matches!(left, Ok(value) if value == deciding) {
            return Ok(Value::Bool(deciding));
        }
        let right = condition_value(self.evaluate(right))?;
        match (left, right) {
            (_, Ok(value)) if value == deciding => Ok(Value::Bool(deciding)),
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(_), Ok(_)) => Ok(Value::Bool(!deciding)),
        }
    }

    fn evaluate_call(&mut self, functions: &'a [&'static Function], arguments: &'a [Node]) -> Outcome<'a> {
        match arguments {
            [one] => {
                let values = [self.evaluate(one)?];
                self.apply(functions, &values)
            }
            [one, two] => {
                let values = [self.evaluate(one)?, self.evaluate(two)?];
                self.apply(functions, &values)
            }
            more => {
                let mut values = Vec::with_capacity(more.len());
                for argument in more {
                    values.push(self.evaluate(argument)?);
                }
                self.apply(functions, &values)
            }
        }
    }

    /// Calls the first function that has an overload for the types of the values.
    fn apply(&mut self, functions: &'a [&'static Function], values: &[Value<'a>]) -> Outcome<'a> {
        for function in functions {
            let before = *self.cost;
            self.cost.charge(function.cost.units(values))?;
            let outcome = (function.body)(values);
            if !matches!(outcome, Err(EvalError::NoOverload)) {
                return outcome;
            }
            *self.cost = before;
        }
        Err(EvalError::NoOverload)
    }

    fn evaluate_map(&mut self, message: Option<&'a str>, entries: &'a [(Node, Node, bool)]) -> Outcome<'a> {
        self.cost.charge(if message.is_some() { MESSAGE_LITERAL } else { MAP_LITERAL })?;
        let mut builder = MapBuilder::default();
        for (key, value, optional) in entries {
            let key = self.evaluate(key)?;
            let value = match (self.evaluate(value)?, *optional) {
                (value, false) => value,
                (Value::Optional(Some(inner)), true) => inner.as_ref().clone(),
                (Value::Optional(None), true) => continue,
                _ => return Err(EvalError::NoOverload),
            };
            builder.insert(key, value)?;
        }
        Ok(Value::Map(builder.finish_as(message)))
    }
}

/// Returns a boolean, or an error that a logical operator may ignore. The outer error is the exceeded cost
/// limit.
fn condition_value(outcome: Outcome<'_>) -> Result<Result<bool, EvalError>, EvalError> {
    match outcome {
        Ok(Value::Bool(value)) => Ok(Ok(value)),
        Ok(_) => Ok(Err(EvalError::NoOverload)),
        Err(EvalError::CostLimit) => Err(EvalError::CostLimit),
        Err(error) => Ok(Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Environment;

    struct Fields;

    impl<'a> LazyFields<'a> for Fields {
        fn field(&self, name: &str) -> Option<Result<Value<'a>, EvalError>> {
            match name {
                "one" => Some(Ok(Value::Int(1))),
                "bad" => Some(Err(EvalError::failed("no value"))),
                _ => None,
            }
        }

        fn has(&self, name: &str) -> bool {
            matches!(name, "one" | "bad")
        }
    }

    #[test]
    fn lazy_field_is_computed_on_access_only() {
        let fields = ["one", "bad", "absent"].map(|name| (name.to_owned(), Type::Int));
        let environment = Environment::new().variable("variables", Type::object("variables", fields));
        for (expression, expected) in [
            ("variables.one == 1", Ok(true)),
            ("has(variables.bad) && !has(variables.absent)", Ok(true)),
            ("variables.?one.orValue(2) == 1 && variables.?absent.orValue(2) == 2", Ok(true)),
            ("true || variables.bad == 1", Ok(true)),
            ("variables.bad == 1", Err("no value")),
            ("variables.absent == 1", Err("no such key: absent")),
        ] {
            let program = environment.compile(expression).unwrap();
            let outcome = program.evaluate_with_lazy(&[], ("variables", &Fields), &mut Cost::limit(100));
            let outcome = outcome.map(|value| matches!(value, Value::Bool(true)));
            assert_eq!(
                outcome.map_err(|error| error.to_string()),
                expected.map_err(str::to_owned),
                "{expression}"
            );
        }
        let mut cost = Cost::limit(100);
        let program = environment.compile("variables.one == 1").unwrap();
        program.evaluate_with_lazy(&[], ("variables", &Fields), &mut cost).unwrap();
        assert_eq!(cost.used(), 3);
    }
}
