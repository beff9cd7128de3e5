//! Evaluates a program on values and charges its cost.
//!
//! # Invariants
//! INVARIANT (budget is final): [`EvalError::CostLimit`] ends the evaluation; no operator absorbs it.
//! INVARIANT (bounded values): no created value has a weight above [`MAX_WEIGHT`], and no text is longer than
//! [`MAX_TEXT_BYTES`], whatever the cost limit is.

mod access;
mod comprehension;

use std::sync::Arc;

use crate::cost::{Cost, MAP_LITERAL, MESSAGE_LITERAL, key_work};
use crate::error::EvalError;
use crate::map::MapBuilder;
use crate::program::{Call, Node, Program};
use crate::types::Type;
use crate::value::Value;

/// Maximum [`Value::weight`] of a created value; a heavier value is an error.
///
/// Without the limit, an expression could create a huge value cheaply from shared parts, and its traversal
/// would be slow.
const MAX_WEIGHT: u64 = 4_000_000;

/// Maximum length of a text in bytes; a longer text is an error. The data of a request is far shorter.
pub(crate) const MAX_TEXT_BYTES: usize = 64 << 20;

/// Constants of a list for which a membership test costs one unit. A test with fewer constants is free, as in
/// kube-apiserver.
const CONSTANTS_PER_UNIT: u64 = 256;

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
        let list_literal_cost = self.list_literal_cost;
        Evaluator { variables: &self.variables, slots, lazy, list_literal_cost, cost }.evaluate(&self.root)
    }
}

/// The state of one evaluation.
struct Evaluator<'a, 'c> {
    variables: &'a [(String, Type)],
    slots: Vec<Option<Value<'a>>>,
    lazy: Option<LazySlot<'a, 'c>>,
    list_literal_cost: u64,
    cost: &'c mut Cost,
}

impl<'a> Evaluator<'a, '_> {
    /// Evaluates a node, and limits the size of its value.
    fn evaluate(&mut self, node: &'a Node) -> Outcome<'a> {
        let outcome = self.evaluate_unlimited(node);
        let is_too_large = match &outcome {
            Ok(value @ (Value::List(_) | Value::Map(_) | Value::Optional(_))) => value.weight() > MAX_WEIGHT,
            Ok(Value::String(text)) => text.as_str().len() > MAX_TEXT_BYTES,
            _ => false,
        };
        if is_too_large { Err(too_large()) } else { outcome }
    }

    fn evaluate_unlimited(&mut self, node: &'a Node) -> Outcome<'a> {
        match node {
            Node::Const(value) | Node::TypeName(value, _) | Node::Folded { value, .. } => Ok(value.clone()),
            Node::Slot(slot) => {
                self.cost.charge(1)?;
                self.read_slot(*slot)
            }
            Node::Chain { root, steps } => {
                // A chain on a conditional belongs to its branches, which cost no unit of their own.
                if !matches!(**root, Node::Conditional(..)) {
                    self.cost.charge(1)?;
                }
                self.evaluate_chain(root, steps)
            }
            Node::Has { root, steps, field } => self.evaluate_has(root, steps, field),
            Node::Call(call) => self.evaluate_call(call),
            Node::And(operands) => self.evaluate_logic(&operands.0, &operands.1, false),
            Node::Or(operands) => self.evaluate_logic(&operands.0, &operands.1, true),
            Node::Conditional(parts, _) => match self.evaluate(&parts.0)? {
                Value::Bool(true) => self.evaluate_branch(&parts.1),
                Value::Bool(false) => self.evaluate_branch(&parts.2),
                _ => Err(EvalError::NoOverload),
            },
            Node::OrElse { operand, unwrap, .. } => {
                let Value::Optional(inner) = self.evaluate(&operand.0)? else {
                    return Err(EvalError::NoOverload);
                };
                match inner {
                    Some(value) if *unwrap => Ok(value.as_ref().clone()),
                    Some(value) => Ok(Value::Optional(Some(value))),
                    None => self.evaluate(&operand.1),
                }
            }
            Node::List(elements, _) => {
                self.cost.charge(self.list_literal_cost)?;
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
            Node::Map { message, entries, .. } => self.evaluate_map(message.as_deref(), entries),
            Node::Comprehension(comprehension) => self.evaluate_comprehension(comprehension),
            Node::OptionalMap { operand, slot, body, flat, is_used, .. } => {
                let before = self.cost.charged();
                let operand = self.evaluate(operand);
                let operand_cost = self.cost.charged() - before;
                // The costs of the macro expansion, which tests `hasValue()` and then reads the value, if the
                // body uses the variable.
                self.cost.charge(1)?;
                let Value::Optional(inner) = operand? else { return Err(EvalError::NoOverload) };
                let Some(value) = inner else {
                    self.cost.charge(1)?;
                    return Ok(Value::Optional(None));
                };
                if *is_used {
                    self.cost.charge(operand_cost + 1)?;
                }
                self.write_slot(*slot, value.as_ref().clone());
                let result = self.evaluate(body);
                if *flat {
                    return result;
                }
                self.cost.charge(1)?;
                Ok(Value::Optional(Some(Arc::new(result?))))
            }
        }
    }

    /// Evaluates a branch of a conditional. A variable costs nothing, and a chain only its links.
    fn evaluate_branch(&mut self, node: &'a Node) -> Outcome<'a> {
        match node {
            Node::Slot(slot) => self.read_slot(*slot),
            Node::Chain { root, steps } => self.evaluate_chain(root, steps),
            other => self.evaluate(other),
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

    fn evaluate_call(&mut self, call: &'a Call) -> Outcome<'a> {
        match call.arguments.as_slice() {
            [one] => {
                let one = self.evaluate(one);
                self.apply(call, [one])
            }
            [one, Node::Folded { value: Value::List(constants), .. }] if call.is_membership => {
                let value = self.evaluate(one)?;
                self.cost.charge(constants.len() as u64 / CONSTANTS_PER_UNIT)?;
                constants.contains(&value).map(Value::Bool)
            }
            // A match with a constant pattern ends at an error of the text, without a charge.
            [text, Node::Folded { value: pattern @ Value::Opaque(_), original }]
                if matches!(**original, Node::Const(_)) =>
            {
                let text = self.evaluate(text)?;
                self.call(call, &[text, pattern.clone()])
            }
            [one, two] => {
                let one = continue_after(self.evaluate(one))?;
                let two = self.evaluate(two);
                self.apply(call, [one, two])
            }
            more => {
                let mut values = Vec::with_capacity(more.len());
                for argument in more {
                    // With more than two arguments, the first error ends the call before its charge.
                    values.push(self.evaluate(argument)?);
                }
                self.call(call, &values)
            }
        }
    }

    /// Calls a function with up to two arguments. An argument that is an error counts as a value of size 1, and
    /// the first error is the result.
    fn apply<const N: usize>(&mut self, call: &'a Call, arguments: [Outcome<'a>; N]) -> Outcome<'a> {
        let mut error = None;
        let mut values = [const { Value::Null }; N];
        for (value, argument) in values.iter_mut().zip(arguments) {
            match argument {
                Ok(argument) => *value = argument,
                Err(EvalError::CostLimit) => return Err(EvalError::CostLimit),
                Err(other) => error = error.or(Some(other)),
            }
        }
        let Some(error) = error else { return self.call(call, &values) };
        let units = call.candidates.first().map_or(1, |(_, f)| f.cost.units(&values, call.overload()));
        self.cost.charge(units)?;
        Err(error)
    }

    /// Calls the first function that has an overload for the types of the values.
    fn call(&mut self, call: &'a Call, values: &[Value<'a>]) -> Outcome<'a> {
        let overload = call.overload();
        let mut previous = None;
        for (_, function) in &call.candidates {
            if previous.is_some_and(|previous| std::ptr::eq(previous, *function)) {
                continue;
            }
            previous = Some(*function);
            let before = *self.cost;
            self.cost.charge(function.cost.units(values, overload))?;
            self.cost.charge_work(function.cost.work(values))?;
            let mut work = 0;
            let outcome = function.body.run(values, &mut work);
            if !matches!(outcome, Err(EvalError::NoOverload)) {
                self.cost.charge_work(work)?;
                return outcome;
            }
            *self.cost = before;
        }
        let units = call.candidates.first().map_or(1, |(_, f)| f.cost.units(values, overload));
        self.cost.charge(units)?;
        Err(no_overload(call.name, values))
    }

    fn evaluate_map(&mut self, message: Option<&'a str>, entries: &'a [(Node, Node, bool)]) -> Outcome<'a> {
        self.cost.charge(if message.is_some() { MESSAGE_LITERAL } else { MAP_LITERAL })?;
        let mut builder = MapBuilder::default();
        for (key, value, optional) in entries {
            let key = self.evaluate(key)?;
            self.cost.charge_work(key_work(&key))?;
            let value = match (self.evaluate(value)?, *optional) {
                (value, false) => value,
                (Value::Optional(Some(inner)), true) => inner.as_ref().clone(),
                (Value::Optional(None), true) => continue,
                _ => return Err(EvalError::NoOverload),
            };
            builder.set(key, value);
        }
        Ok(Value::Map(builder.finish_as(message)))
    }
}

/// The error of a value that is too large.
pub(crate) fn too_large() -> EvalError {
    EvalError::failed("the value is too large")
}

/// Evaluates a call of a conversion with a constant.
pub(crate) fn apply_constant(call: &Call, value: Value<'static>) -> Result<Value<'static>, EvalError> {
    let values = [value];
    for (_, function) in &call.candidates {
        let outcome = function.body.run(&values, &mut 0);
        if !matches!(outcome, Err(EvalError::NoOverload)) {
            return outcome;
        }
    }
    Err(no_overload(call.name, &values))
}

/// Stops at an exceeded cost limit; returns any other outcome for later use.
fn continue_after(outcome: Outcome<'_>) -> Result<Outcome<'_>, EvalError> {
    match outcome {
        Err(EvalError::CostLimit) => Err(EvalError::CostLimit),
        outcome => Ok(outcome),
    }
}

/// The error of a call for whose values there is no overload, with the words of cel-go.
fn no_overload(name: &str, values: &[Value<'_>]) -> EvalError {
    let first = values.first();
    let is_supported = match name {
        "!_" | "-_" | "@in" | "startsWith" | "endsWith" | "contains" | "matches" | "find" | "findAll"
        | "containsIP" | "containsCIDR" => true,
        "_<_" | "_<=_" | "_>_" | "_>=_" => first.is_some_and(Value::is_ordered),
        "_+_" => first.is_some_and(|value| matches!(value, Value::List(_)) || value.is_summable()),
        "_-_" => first.is_some_and(|value| value.is_number() || value.is_time()),
        "_*_" | "_/_" => first.is_some_and(Value::is_number),
        "_%_" => matches!(first, Some(Value::Int(_) | Value::Uint(_))),
        "size" => false,
        _ => {
            let types: Vec<_> = values.iter().map(Value::type_name).collect();
            return EvalError::failed(format!("no such overload: {name}({})", types.join(", ")));
        }
    };
    if is_supported { EvalError::NoOverload } else { EvalError::failed(format!("no such overload: {name}")) }
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
