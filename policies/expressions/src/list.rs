//! Lists: data lists with the list type of their schema, and lists that expressions create.
//!
//! Equality and concatenation follow the list type of the left operand. Set and map lists ignore the order of
//! elements. Concatenation of set lists is a union that keeps positions. Concatenation of map lists is a merge:
//! right elements replace left ones with equal keys, and elements with new keys are appended.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Map as JsonMap, Value as Json};

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
    /// A list of the data in JSON, and the type of its elements.
    Json(&'a [Json], &'a Type),
    Created(Arc<[Value<'a>]>),
    /// Concatenation of two lists without a copy.
    Joined(Arc<(List<'a>, List<'a>)>),
}

static ATOMIC: ListKind = ListKind::Atomic;
static DYN: Type = Type::Dyn;

impl<'a> List<'a> {
    /// A list of the data.
    pub(crate) fn json(items: &'a [Json], ty: &'a Type) -> List<'a> {
        match ty {
            Type::List(list) => List::new(Items::Json(items, &list.element), &list.kind, items.len() as u64),
            _ => List::new(Items::Json(items, &DYN), &ATOMIC, items.len() as u64),
        }
    }

    /// A list of values that an expression created.
    pub(crate) fn from_values(items: Vec<Value<'a>>) -> List<'a> {
        let weight = total_weight(items.iter());
        List::new(Items::Created(items.into()), &ATOMIC, weight)
    }

    fn new(items: Items<'a>, kind: &'a ListKind, weight: u64) -> List<'a> {
        List { items, kind, weight }
    }

    /// Number of nested values; see [`Value::weight`].
    pub(crate) fn weight(&self) -> u64 {
        self.weight
    }

    /// Number of all nested values; see [`Value::contents`].
    pub(crate) fn contents(&self, max: u64) -> u64 {
        match &self.items {
            Items::Json(items, _) => sum_to(max, items.iter(), contents),
            Items::Created(items) => sum_to(max, items.iter(), Value::contents),
            Items::Joined(parts) => {
                sum_to(max, [&parts.0, &parts.1].into_iter(), |part, max| part.contents(max))
            }
        }
    }

    /// Whether the list is part of the data.
    pub(crate) fn is_data(&self) -> bool {
        matches!(self.items, Items::Json(..))
    }

    /// Whether concatenation processes each element: the list is a set or map list.
    pub(crate) fn joins_elements(&self) -> bool {
        *self.kind != ListKind::Atomic
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match &self.items {
            Items::Json(items, _) => items.len(),
            Items::Created(items) => items.len(),
            Items::Joined(parts) => parts.0.len().saturating_add(parts.1.len()),
        }
    }

    /// Whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at `index`.
    pub fn at(&self, index: usize) -> Option<Result<Value<'a>, EvalError>> {
        match &self.items {
            Items::Json(items, ty) => items.get(index).map(|json| Value::of(json, ty)),
            Items::Created(items) => items.get(index).cloned().map(Ok),
            Items::Joined(parts) => match index.checked_sub(parts.0.len()) {
                None => parts.0.at(index),
                Some(index) => parts.1.at(index),
            },
        }
    }

    /// Elements in order.
    pub fn iter(&self) -> impl Iterator<Item = Result<Value<'a>, EvalError>> + '_ {
        (0..self.len()).filter_map(|i| self.at(i))
    }

    /// Elements in order; an error if an element does not conform to the schema.
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
        let in_order = || {
            (0..self.len()).all(|at| {
                self.are_scalars_equal(other, at).unwrap_or_else(
                    || matches!((self.at(at), other.at(at)), (Some(Ok(a)), Some(Ok(b))) if a.equals(&b)),
                )
            })
        };
        match self.kind {
            ListKind::Atomic => in_order(),
            // The order is irrelevant: the canonical bytes of the elements are compared.
            ListKind::Set | ListKind::Map(_) => match (self.canonical(), other.canonical()) {
                (Some(mine), Some(theirs)) => {
                    let theirs: HashSet<Vec<u8>> = theirs.into_iter().collect();
                    mine.iter().all(|item| theirs.contains(item))
                }
                _ => in_order(),
            },
        }
    }

    /// Whether the elements at an index are equal, if both are JSON integers, booleans, or strings without a format.
    ///
    /// This comparison needs no conversion to [`Value`]. None means the general comparison must decide.
    fn are_scalars_equal(&self, other: &List<'a>, at: usize) -> Option<bool> {
        let (Items::Json(mine, ty), Items::Json(theirs, other_ty)) = (&self.items, &other.items) else {
            return None;
        };
        are_scalars_equal((mine.get(at)?, ty), (theirs.get(at)?, other_ty))
    }

    /// Canonical bytes of the elements, if all elements have them.
    fn canonical(&self) -> Option<Vec<Vec<u8>>> {
        self.iter().map(|item| item.ok()?.canonical()).collect()
    }

    pub(crate) fn concat(&self, other: &List<'a>) -> Result<List<'a>, EvalError> {
        if *self.kind == ListKind::Atomic {
            let weight = self.weight.saturating_add(other.weight);
            return Ok(List::new(Items::Joined(Arc::new((self.clone(), other.clone()))), self.kind, weight));
        }
        let identity = |item: &Value<'a>| match self.kind {
            ListKind::Map(keys) => key_values(item, keys),
            _ => item.canonical(),
        };
        let mut items = self.to_vec()?;
        let mut index_by_identity: HashMap<Vec<u8>, usize> = HashMap::new();
        for (at, item) in items.iter().enumerate() {
            if let Some(identity) = identity(item) {
                index_by_identity.entry(identity).or_insert(at);
            }
        }
        for right in other.iter() {
            let right = right?;
            let identity = identity(&right);
            match identity.as_ref().and_then(|identity| index_by_identity.get(identity)) {
                // In a set this changes nothing, because the elements are equal.
                Some(at) => {
                    if let Some(left) = items.get_mut(*at) {
                        *left = right;
                    }
                }
                None => {
                    if let Some(identity) = identity {
                        index_by_identity.insert(identity, items.len());
                    }
                    items.push(right);
                }
            }
        }
        let weight = total_weight(items.iter());
        Ok(List::new(Items::Created(items.into()), self.kind, weight))
    }
}

/// Whether two parts of the data are equal, if both are JSON integers, booleans, or strings without a format.
pub(crate) fn are_scalars_equal(left: (&Json, &Type), right: (&Json, &Type)) -> Option<bool> {
    match (left.0, right.0) {
        (Json::Number(a), Json::Number(b)) => Some(a.as_i64()? == b.as_i64()?),
        (Json::Bool(a), Json::Bool(b)) => Some(a == b),
        (Json::String(a), Json::String(b)) => {
            (*left.1 == Type::String && *right.1 == Type::String).then(|| a == b)
        }
        _ => None,
    }
}

/// Weight of a created value with these parts.
pub(crate) fn total_weight<'v, 'a: 'v>(values: impl Iterator<Item = &'v Value<'a>>) -> u64 {
    values.fold(1, |sum, value| sum.saturating_add(value.weight()))
}

/// Canonical bytes of the values of an element for the keys of a map list.
fn key_values(item: &Value<'_>, keys: &[String]) -> Option<Vec<u8>> {
    let Value::Map(fields) = item else { return None };
    let mut out = Vec::new();
    for key in keys {
        match fields.field(key) {
            Some(value) => out.extend(value.ok()?.canonical()?),
            None => out.push(b'-'),
        }
    }
    Some(out)
}

/// Number of values in JSON, including the value itself. A text or a key counts one more for each 32 bytes.
///
/// The count stops at `max`.
pub(crate) fn contents(json: &Json, max: u64) -> u64 {
    match json {
        Json::String(text) => 1 + text.len() as u64 / 32,
        Json::Array(items) => sum_to(max, items.iter(), contents),
        Json::Object(fields) => fields_contents(fields, max),
        _ => 1,
    }
}

/// Number of values in a JSON object; see [`contents`].
pub(crate) fn fields_contents(fields: &JsonMap<String, Json>, max: u64) -> u64 {
    sum_to(max, fields.iter(), |(key, value), max| key.len() as u64 / 32 + contents(value, max))
}

/// Returns one plus the sum of the counts of the parts, and stops at `max`.
pub(crate) fn sum_to<T>(max: u64, parts: impl Iterator<Item = T>, count: impl Fn(T, u64) -> u64) -> u64 {
    let mut sum = 1;
    for part in parts {
        if sum >= max {
            break;
        }
        sum += count(part, max - sum);
    }
    sum
}
