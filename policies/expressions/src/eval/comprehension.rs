//! Evaluation of comprehensions, with the costs of their macro expansions.

use crate::cost::{LIST_LITERAL, access_cost, entries_work};
use crate::error::EvalError;
use crate::map::MapBuilder;
use crate::program::{Comprehension, ComprehensionKind, Node};
use crate::value::Value;

use super::{Evaluator, Outcome, condition_value};

/// Result of a comprehension so far.
enum Accumulator<'a> {
    Truth(Result<bool, EvalError>),
    Count(Result<u64, EvalError>),
    Items(Result<Vec<Value<'a>>, EvalError>),
    Entries(Result<MapBuilder<'a>, EvalError>),
}

impl Accumulator<'_> {
    /// Keeps the first error.
    fn fail(&mut self, error: EvalError) {
        match self {
            Accumulator::Truth(Ok(_)) => *self = Accumulator::Truth(Err(error)),
            Accumulator::Count(Ok(_)) => *self = Accumulator::Count(Err(error)),
            Accumulator::Items(Ok(_)) => *self = Accumulator::Items(Err(error)),
            Accumulator::Entries(Ok(_)) => *self = Accumulator::Entries(Err(error)),
            _ => {}
        }
    }
}

impl<'a> Evaluator<'a, '_> {
    pub(super) fn evaluate_comprehension(&mut self, comprehension: &'a Comprehension) -> Outcome<'a> {
        let range = self.evaluate(&comprehension.range)?;
        let mut accumulator = match comprehension.kind {
            ComprehensionKind::All => Accumulator::Truth(Ok(true)),
            ComprehensionKind::Exists => Accumulator::Truth(Ok(false)),
            ComprehensionKind::ExistsOne => Accumulator::Count(Ok(0)),
            ComprehensionKind::List | ComprehensionKind::Filter => Accumulator::Items(Ok(Vec::new())),
            ComprehensionKind::MapValues | ComprehensionKind::MapEntries => {
                Accumulator::Entries(Ok(MapBuilder::default()))
            }
        };
        match &range {
            Value::List(list) => {
                for (i, item) in list.iter().enumerate() {
                    let index = Value::Int(i64::try_from(i).unwrap_or(i64::MAX));
                    if !self.process_element(comprehension, index, item?, &mut accumulator)? {
                        break;
                    }
                }
            }
            Value::Map(map) if comprehension.second.is_some() => {
                self.cost.charge_work(entries_work(map.len()))?;
                for (key, value) in map.entries()? {
                    if !self.process_element(comprehension, key, value, &mut accumulator)? {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                self.cost.charge_work(entries_work(map.len()))?;
                for key in map.keys() {
                    if !self.process_element(comprehension, Value::Null, key, &mut accumulator)? {
                        break;
                    }
                }
            }
            other => return Err(range_error(other, comprehension.second.is_some())),
        }
        self.cost.charge(1)?;
        match accumulator {
            Accumulator::Truth(result) => result.map(Value::Bool),
            Accumulator::Count(count) => {
                self.cost.charge(1)?;
                Ok(Value::Bool(count? == 1))
            }
            Accumulator::Items(items) => Ok(Value::list(items?)),
            Accumulator::Entries(entries) => Ok(Value::Map(entries?.finish())),
        }
    }

    /// Assigns the variables of a comprehension for one element.
    fn bind(&mut self, comprehension: &Comprehension, key: Value<'a>, item: Value<'a>) {
        match comprehension.second {
            Some(second) => {
                self.write_slot(comprehension.first, key);
                self.write_slot(second, item);
            }
            None => self.write_slot(comprehension.first, item),
        }
    }

    /// Processes one element; returns false once the result is decided.
    fn process_element(
        &mut self,
        comprehension: &'a Comprehension,
        key: Value<'a>,
        item: Value<'a>,
        accumulator: &mut Accumulator<'a>,
    ) -> Result<bool, EvalError> {
        self.cost.charge(access_cost(&item))?;
        if let Accumulator::Truth(result) = accumulator {
            let deciding = comprehension.kind == ComprehensionKind::Exists;
            self.cost.charge(if deciding { 3 } else { 2 })?;
            if matches!(result, Ok(value) if *value == deciding) {
                return Ok(false);
            }
            self.bind(comprehension, key, item);
            self.cost.charge(1)?;
            let Some(condition) = &comprehension.condition else { return Ok(false) };
            match condition_value(self.evaluate(condition))? {
                Ok(value) if value == deciding => *result = Ok(deciding),
                Ok(_) => {}
                Err(error) => {
                    if result.is_ok() {
                        *result = Err(error);
                    }
                }
            }
            return Ok(true);
        }
        self.bind(comprehension, key.clone(), item.clone());
        if let Some(condition) = &comprehension.condition {
            match condition_value(self.evaluate(condition))? {
                Ok(true) => {}
                Ok(false) => return Ok(true),
                Err(error) => {
                    *accumulator = accumulator_with(error, comprehension.kind);
                    return Ok(true);
                }
            }
        }
        match self.element_value(comprehension, key, item, accumulator) {
            Ok(()) => {}
            Err(EvalError::CostLimit) => return Err(EvalError::CostLimit),
            Err(error) => accumulator.fail(error),
        }
        Ok(true)
    }

    /// Adds an element to the accumulator.
    fn element_value(
        &mut self,
        comprehension: &'a Comprehension,
        key: Value<'a>,
        item: Value<'a>,
        accumulator: &mut Accumulator<'a>,
    ) -> Result<(), EvalError> {
        match accumulator {
            Accumulator::Count(count) => {
                self.cost.charge(2)?;
                if let Ok(count) = count {
                    *count += 1;
                }
            }
            Accumulator::Items(items) => {
                self.cost.charge(2)?;
                let value = match &comprehension.transform {
                    Some(Node::Const(value) | Node::Folded { value, .. }) => value.clone(),
                    Some(transform) => {
                        self.cost.charge(LIST_LITERAL)?;
                        self.evaluate(transform)?
                    }
                    None => {
                        self.cost.charge(LIST_LITERAL + 1)?;
                        item
                    }
                };
                if let Ok(items) = items {
                    items.push(value);
                }
            }
            Accumulator::Entries(entries) => {
                self.cost.charge(1)?;
                let is_entries = comprehension.kind == ComprehensionKind::MapEntries;
                let failed = entries.is_err();
                // With three arguments, the call of the macro expansion ends at its first error.
                if failed && !is_entries {
                    return Ok(());
                }
                self.cost.charge(u64::from(!is_entries))?;
                let value = match &comprehension.transform {
                    Some(transform) => self.evaluate(transform),
                    None => Ok(item),
                };
                let value = if is_entries {
                    self.cost.charge(1)?;
                    value?
                } else {
                    let value = value?;
                    self.cost.charge(1)?;
                    value
                };
                let Ok(entries) = entries else { return Ok(()) };
                match value {
                    Value::Map(map) if is_entries => {
                        for (key, value) in map.entries()? {
                            entries.insert(key, value)?;
                        }
                    }
                    _ if is_entries => return Err(EvalError::NoOverload),
                    value => entries.insert(key, value)?,
                }
            }
            Accumulator::Truth(_) => {}
        }
        Ok(())
    }
}

/// The accumulator after a condition that is an error.
fn accumulator_with<'a>(error: EvalError, kind: ComprehensionKind) -> Accumulator<'a> {
    match kind {
        ComprehensionKind::All | ComprehensionKind::Exists => Accumulator::Truth(Err(error)),
        ComprehensionKind::ExistsOne => Accumulator::Count(Err(error)),
        ComprehensionKind::List | ComprehensionKind::Filter => Accumulator::Items(Err(error)),
        ComprehensionKind::MapValues | ComprehensionKind::MapEntries => Accumulator::Entries(Err(error)),
    }
}

/// The error of a range that is neither a list nor a map, with the words of cel-go.
fn range_error(value: &Value<'_>, has_two_variables: bool) -> EvalError {
    let ty = match value {
        Value::Null => "Null",
        Value::Bool(_) => "Bool",
        Value::Int(_) => "Int",
        Value::Uint(_) => "Uint",
        Value::Double(_) => "Double",
        Value::String(_) => "String",
        Value::Bytes(_) => "Bytes",
        Value::Timestamp(_) => "Timestamp",
        Value::Duration(_) => "Duration",
        Value::Optional(_) => "Optional",
        Value::Type(_) => "Type",
        Value::List(_) | Value::Map(_) | Value::Opaque(_) => "Val",
    };
    EvalError::failed(match has_two_variables {
        true => format!("unsupported comprehension range type: types.{ty}"),
        false => format!("got 'types.{ty}', expected iterable type"),
    })
}
