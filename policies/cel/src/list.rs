//! Lists: of the data, with the meaning that the schema gives them, and those that expressions make.
//!
//! Equality and concatenation follow the left operand: sets and maps ignore the order of elements; the
//! concatenation of sets is a union that keeps positions, that of maps a merge in which right values
//! overwrite matching keys and new keys are appended.

use std::sync::Arc;

use serde_json::Value as Json;

use crate::error::EvalError;
use crate::types::{ListKind, Type};
use crate::value::Value;

/// A list.
#[derive(Clone)]
pub struct List<'a> {
    items: Items<'a>,
    kind: &'a ListKind,
    weight: u64,
}

#[derive(Clone)]
enum Items<'a> {
    Json(&'a [Json], &'a Type),
    Made(Arc<[Value<'a>]>),
    /// A sequence behind another, neither copied.
    Joined(Arc<(List<'a>, List<'a>)>),
}

static ATOMIC: ListKind = ListKind::Atomic;
static DYN: Type = Type::Dyn;

impl<'a> List<'a> {
    pub(crate) fn json(items: &'a [Json], ty: &'a Type) -> List<'a> {
        match ty {
            Type::List(list) => List::of(Items::Json(items, &list.element), &list.kind, items.len() as u64),
            _ => List::of(Items::Json(items, &DYN), &ATOMIC, items.len() as u64),
        }
    }

    pub(crate) fn made(items: Vec<Value<'a>>) -> List<'a> {
        let weight = weigh(items.iter());
        List::of(Items::Made(items.into()), &ATOMIC, weight)
    }

    fn of(items: Items<'a>, kind: &'a ListKind, weight: u64) -> List<'a> {
        List { items, kind, weight }
    }

    /// How many values there are in it, each as often as it occurs.
    pub(crate) fn weight(&self) -> u64 {
        self.weight
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match &self.items {
            Items::Json(items, _) => items.len(),
            Items::Made(items) => items.len(),
            Items::Joined(parts) => parts.0.len().saturating_add(parts.1.len()),
        }
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at `index`.
    pub fn at(&self, index: usize) -> Option<Result<Value<'a>, EvalError>> {
        match &self.items {
            Items::Json(items, ty) => items.get(index).map(|json| Value::of(json, ty)),
            Items::Made(items) => items.get(index).cloned().map(Ok),
            Items::Joined(parts) => match index.checked_sub(parts.0.len()) {
                None => parts.0.at(index),
                Some(index) => parts.1.at(index),
            },
        }
    }

    /// The elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Result<Value<'a>, EvalError>> + '_ {
        (0..self.len()).filter_map(|i| self.at(i))
    }

    /// The elements, when all can be read as the schema says.
    pub(crate) fn to_vec(&self) -> Result<Vec<Value<'a>>, EvalError> {
        self.iter().collect()
    }

    /// Whether an element equals `value`.
    pub(crate) fn contains(&self, value: &Value<'a>) -> Result<bool, EvalError> {
        for item in self.iter() {
            if item?.equals(value) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) fn equals(&self, other: &List<'a>) -> bool {
        if self.len() != other.len() {
            return false;
        }
        let (Ok(mine), Ok(theirs)) = (self.to_vec(), other.to_vec()) else { return false };
        match self.kind {
            ListKind::Atomic => mine.iter().zip(&theirs).all(|(a, b)| a.equals(b)),
            ListKind::Set | ListKind::Map(_) => mine.iter().all(|a| theirs.iter().any(|b| a.equals(b))),
        }
    }

    pub(crate) fn concat(&self, other: &List<'a>) -> Result<List<'a>, EvalError> {
        if *self.kind == ListKind::Atomic {
            let weight = self.weight.saturating_add(other.weight);
            return Ok(List::of(Items::Joined(Arc::new((self.clone(), other.clone()))), self.kind, weight));
        }
        let mut items = self.to_vec()?;
        for right in other.iter() {
            let right = right?;
            match self.kind {
                ListKind::Atomic => items.push(right),
                ListKind::Set => {
                    if !items.iter().any(|left| left.equals(&right)) {
                        items.push(right);
                    }
                }
                ListKind::Map(keys) => match items.iter_mut().find(|left| same_keys(left, &right, keys)) {
                    Some(left) => *left = right,
                    None => items.push(right),
                },
            }
        }
        let weight = weigh(items.iter());
        Ok(List::of(Items::Made(items.into()), self.kind, weight))
    }
}

/// The weight of a value that holds these.
pub(crate) fn weigh<'v, 'a: 'v>(values: impl Iterator<Item = &'v Value<'a>>) -> u64 {
    values.fold(1, |sum, value| sum.saturating_add(value.weight()))
}

fn same_keys<'a>(left: &Value<'a>, right: &Value<'a>, keys: &[String]) -> bool {
    let (Value::Map(left), Value::Map(right)) = (left, right) else { return false };
    keys.iter().all(|key| match (left.field(key), right.field(key)) {
        (Some(Ok(a)), Some(Ok(b))) => a.equals(&b),
        (None, None) => true,
        _ => false,
    })
}
