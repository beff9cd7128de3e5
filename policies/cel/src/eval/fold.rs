//! Evaluation of comprehensions, with the costs of their macro expansions.

use crate::cost::{LIST_STEP, access_cost};
use crate::error::EvalError;
use crate::map::MapBuilder;
use crate::program::{Fold, FoldKind};
use crate::value::Value;

use super::{Outcome, Run, truth};

/// Accumulator of a comprehension.
enum Accumulator<'a> {
    Truth(Result<bool, EvalError>),
    Count(u64),
    Items(Vec<Value<'a>>),
    Entries(MapBuilder<'a>),
}

impl<'a> Run<'a, '_> {
    pub(super) fn fold(&mut self, fold: &'a Fold) -> Outcome<'a> {
        let range = self.node(&fold.range)?;
        let mut accumulator = match fold.kind {
            FoldKind::All => Accumulator::Truth(Ok(true)),
            FoldKind::Exists => Accumulator::Truth(Ok(false)),
            FoldKind::ExistsOne => Accumulator::Count(0),
            FoldKind::List | FoldKind::Filter => {
                self.cost.charge(LIST_STEP)?;
                Accumulator::Items(Vec::new())
            }
            FoldKind::MapValues | FoldKind::MapEntries => {
                self.cost.charge(crate::cost::MAP_LITERAL)?;
                Accumulator::Entries(MapBuilder::default())
            }
        };
        match &range {
            Value::List(list) => {
                for (i, item) in list.iter().enumerate() {
                    let index = Value::Int(i64::try_from(i).unwrap_or(i64::MAX));
                    if !self.element(fold, index, item?, &mut accumulator)? {
                        break;
                    }
                }
            }
            Value::Map(map) if fold.second.is_some() => {
                for (key, value) in map.entries()? {
                    if !self.element(fold, key, value, &mut accumulator)? {
                        break;
                    }
                }
            }
            Value::Map(map) => {
                for key in map.keys() {
                    if !self.element(fold, Value::Null, key, &mut accumulator)? {
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
    fn bind(&mut self, fold: &Fold, key: Value<'a>, item: Value<'a>) {
        match fold.second {
            Some(second) => {
                self.set(fold.first, key);
                self.set(second, item);
            }
            None => self.set(fold.first, item),
        }
    }

    /// Processes one element; returns false once the result is decided.
    fn element(
        &mut self,
        fold: &'a Fold,
        key: Value<'a>,
        item: Value<'a>,
        accumulator: &mut Accumulator<'a>,
    ) -> Result<bool, EvalError> {
        self.cost.charge(access_cost(&item))?;
        if let Accumulator::Truth(result) = accumulator {
            self.cost.charge(if fold.kind == FoldKind::All { 2 } else { 3 })?;
            if matches!(result, Ok(value) if *value == (fold.kind == FoldKind::Exists)) {
                return Ok(false);
            }
        }
        if let Accumulator::Truth(result) = accumulator {
            self.bind(fold, key, item);
            self.cost.charge(1)?;
            let Some(condition) = &fold.condition else { return Ok(false) };
            let deciding = fold.kind == FoldKind::Exists;
            match truth(self.node(condition))? {
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
        self.bind(fold, key.clone(), item.clone());
        if let Some(condition) = &fold.condition {
            match self.node(condition)? {
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
                items.push(match &fold.transform {
                    Some(transform) => self.node(transform)?,
                    None => {
                        self.cost.charge(1)?;
                        item
                    }
                });
            }
            Accumulator::Entries(entries) => {
                self.cost.charge(2)?;
                let value = match &fold.transform {
                    Some(transform) => self.node(transform)?,
                    None => item,
                };
                match value {
                    Value::Map(map) if fold.kind == FoldKind::MapEntries => {
                        for (key, value) in map.entries()? {
                            entries.insert(key, value)?;
                        }
                    }
                    _ if fold.kind == FoldKind::MapEntries => return Err(EvalError::NoOverload),
                    value => entries.insert(key, value)?,
                }
            }
            Accumulator::Truth(_) => {}
        }
        Ok(true)
    }
}
