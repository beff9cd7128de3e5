//! Evaluation of comprehensions, with the costs of their macro expansions.

use crate::cost::{LIST_STEP, access_cost};
use crate::error::EvalError;
use crate::map::MapBuilder;
use crate::program::{Comprehension, ComprehensionKind};
use crate::value::Value;

use super::{Evaluator, Outcome, condition_value};

/// Result of a comprehension so far.
enum Accumulator<'a> {
    Truth(Result<bool, EvalError>),
    Count(u64),
    Items(Vec<Value<'a>>),
    Entries(MapBuilder<'a>),
}

impl<'a> Evaluator<'a, '_> {
    pub(super) fn evaluate_comprehension(&mut self, comprehension: &'a Comprehension) -> Outcome<'a> {
        let range = self.evaluate(&comprehension.range)?;
        let mut accumulator = match comprehension.kind {
            ComprehensionKind::All => Accumulator::Truth(Ok(true)),
            ComprehensionKind::Exists => Accumulator::Truth(Ok(false)),
            ComprehensionKind::ExistsOne => Accumulator::Count(0),
            ComprehensionKind::List | ComprehensionKind::Filter => {
                self.cost.charge(LIST_STEP)?;
                Accumulator::Items(Vec::new())
            }
            ComprehensionKind::MapValues | ComprehensionKind::MapEntries => {
                self.cost.charge(crate::cost::MAP_LITERAL)?;
                Accumulator::Entries(MapBuilder::default())
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
                for (key, value) in map.entries()? {
                    if !self.process_element(comprehension, key, value, &mut accumulator)? {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                for key in map.keys() {
                    if !self.process_element(comprehension, Value::Null, key, &mut accumulator)? {
                        break;
                    }
                }
            }
            _ => return Err(EvalError::NoOverload),
        }
        self.cost.charge(1)?;
        match accumulator {
            Accumulator::Truth(result) => result.map(Value::Bool),
            Accumulator::Count(count) => {
                self.cost.charge(1)?;
                Ok(Value::Bool(count == 1))
            }
            Accumulator::Items(items) => Ok(Value::list(items)),
            Accumulator::Entries(entries) => Ok(Value::Map(entries.finish())),
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
            match self.evaluate(condition)? {
                Value::Bool(true) => {}
                Value::Bool(false) => {
                    self.cost.charge(1)?;
                    return Ok(true);
                }
                _ => return Err(EvalError::NoOverload),
            }
        }
        match accumulator {
            Accumulator::Count(count) => {
                self.cost.charge(2)?;
                *count += 1;
            }
            Accumulator::Items(items) => {
                self.cost.charge(LIST_STEP + 2)?;
                items.push(match &comprehension.transform {
                    Some(transform) => self.evaluate(transform)?,
                    None => {
                        self.cost.charge(1)?;
                        item
                    }
                });
            }
            Accumulator::Entries(entries) => {
                self.cost.charge(2)?;
                let value = match &comprehension.transform {
                    Some(transform) => self.evaluate(transform)?,
                    None => item,
                };
                match value {
                    Value::Map(map) if comprehension.kind == ComprehensionKind::MapEntries => {
                        for (key, value) in map.entries()? {
                            entries.insert(key, value)?;
                        }
                    }
                    _ if comprehension.kind == ComprehensionKind::MapEntries => {
                        return Err(EvalError::NoOverload);
                    }
                    value => entries.insert(key, value)?,
                }
            }
            Accumulator::Truth(_) => {}
        }
        Ok(true)
    }
}
