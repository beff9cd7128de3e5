//! Strategic merge patch: a merge patch with typed list merging.
//!
//! # Contract
//!
//! [`apply`] merges a patch into an object of a type. Maps merge by key, and null removes a key. Lists that
//! the schema marks merge by their merge key or by value; other lists are replaced. Supported directives:
//! `$patch` (`replace`, `delete`) in maps and items, `$deleteFromPrimitiveList/<field>`,
//! `$setElementOrder/<field>`, `$retainKeys`. The result contains no directive.
//!
//! # Reference
//!
//! Order of a merged list: items of the patch in the order of the patch, other items in their stored order.
//! Where the stored list has a patch item and another item, their relative order stays. A new item comes
//! before the remaining others. Values of another JSON type replace the stored ones; the schema then
//! validates them.

use std::collections::{HashMap, HashSet};

use apimachinery::field::shorten;
use apimachinery::object::{Map, Value};
use schema::merge::{Merge, Patch};

use crate::json_patch::value_count;
use crate::work::{Work, WorkExceeded};

type Fields = Map<String, Value>;

/// Maximum values of items that a patch merges again, because several of its items have one key.
///
/// Merging an item copies its lists. Without this limit a small patch merges a large item thousands of times.
const WORK_MAX: usize = 1_000_000;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER_OF: &str = "$setElementOrder/";

/// The reason why a patch fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Contradictory directives: 400.
    #[error("{0}")]
    Malformed(String),
    /// Values that cannot merge: 422.
    #[error("{0}")]
    Rejected(String),
    /// An item without the merge key of its list, or an unknown directive. The reference responds with 500.
    #[error("{0}")]
    Unmergeable(String),
}

impl From<WorkExceeded> for Error {
    fn from(_: WorkExceeded) -> Self {
        Error::Rejected(format!("items with one key may merge at most {WORK_MAX} values again"))
    }
}

type Result<T, E = Error> = std::result::Result<T, E>;

/// Applies a patch to an object.
///
/// # Errors
///
/// See [`Error`].
pub fn apply(merge: &Merge, object: Fields, patch: &Fields) -> Result<Fields> {
    maps(Some(merge), object, patch, &mut Work(WORK_MAX))
}

/// The type and the patch strategy of a field. An undeclared field has no type.
fn field<'s>(ty: Option<&'s Merge>, name: &str) -> (Option<&'s Merge>, Patch) {
    match ty {
        Some(Merge::Struct(r)) => match r.resolve().and_then(|ty| ty.field(name)) {
            Some(field) => (Some(&field.ty), field.patch.clone()),
            None => (None, Patch::default()),
        },
        Some(Merge::Map { values, .. }) => (Some(values), Patch::default()),
        _ => (None, Patch::default()),
    }
}

fn maps(ty: Option<&Merge>, mut original: Fields, patch: &Fields, work: &mut Work) -> Result<Fields> {
    match patch.get(DIRECTIVE) {
        None => {}
        Some(Value::String(what)) if what == "replace" => original.clear(),
        Some(Value::String(what)) if what == "delete" => return Ok(Fields::new()),
        Some(Value::String(what)) if what == "merge" => {}
        Some(other) => return Err(unknown_directive(other)),
    }
    retain_keys(&mut original, patch)?;
    for (name, order) in patch {
        if let Some(list) = name.strip_prefix(ORDER_OF) {
            ordered(ty, &mut original, patch, (list, order), work)?;
        }
    }
    for (name, value) in patch {
        if name == DIRECTIVE || name == RETAIN_KEYS || name.starts_with(ORDER_OF) {
            continue;
        }
        if let Some(list) = name.strip_prefix(DELETE_FROM) {
            delete_from(&mut original, list, value)?;
            continue;
        }
        if patch.contains_key(&format!("{ORDER_OF}{name}")) && value.is_array() {
            continue;
        }
        if value.is_null() {
            original.remove(name);
            continue;
        }
        let (ty, how) = field(ty, name);
        let merged = values(ty, &how, original.remove(name), value, work)?;
        original.insert(name.clone(), merged);
    }
    Ok(original)
}

fn values(
    ty: Option<&Merge>,
    how: &Patch,
    original: Option<Value>,
    patch: &Value,
    work: &mut Work,
) -> Result<Value> {
    match (original, patch) {
        (Some(Value::Object(original)), Value::Object(patch)) if !how.replace => {
            Ok(Value::Object(maps(ty, original, patch, work)?))
        }
        (_, Value::Object(patch)) => Ok(Value::Object(maps(ty, Fields::new(), patch, work)?)),
        (Some(Value::Array(original)), Value::Array(patch)) if how.merge => {
            Ok(Value::Array(lists(item_type(ty), how, original, patch, work)?))
        }
        (_, Value::Array(patch)) if how.merge => {
            Ok(Value::Array(lists(item_type(ty), how, Vec::new(), patch, work)?))
        }
        (_, Value::Array(patch)) => Ok(Value::Array(patch.iter().map(without_nulls).collect())),
        (_, other) => Ok(other.clone()),
    }
}

/// Removes null fields from a value that replaces a list.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(name, value)| (name.clone(), without_nulls(value))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().map(without_nulls).collect()),
        other => other.clone(),
    }
}

fn item_type(ty: Option<&Merge>) -> Option<&Merge> {
    match ty {
        Some(Merge::List { items, .. }) => Some(items),
        _ => None,
    }
}

fn unknown_directive(value: &Value) -> Error {
    Error::Unmergeable(format!("unknown patch type found: {}", shorten(&value.to_string())))
}

/// Removes the keys that `$retainKeys` does not list.
fn retain_keys(original: &mut Fields, patch: &Fields) -> Result<()> {
    let Some(kept) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(kept) = kept else {
        return Err(Error::Malformed(format!("{RETAIN_KEYS} must be a list of keys")));
    };
    let kept: HashSet<&str> = kept.iter().filter_map(Value::as_str).collect();
    let is_kept = |name: &str| kept.contains(name);
    for (name, value) in patch {
        let is_directive = name.starts_with('$');
        if !value.is_null() && !is_directive && !is_kept(name) {
            let name = shorten(name);
            return Err(Error::Malformed(format!("`{name}` is set and not among the {RETAIN_KEYS}")));
        }
    }
    original.retain(|name, _| is_kept(name));
    Ok(())
}

fn delete_from(original: &mut Fields, list: &str, gone: &Value) -> Result<()> {
    let Value::Array(gone) = gone else {
        return Err(Error::Malformed(format!("{DELETE_FROM}{list} must be a list of values")));
    };
    if let Some(Value::Array(items)) = original.get_mut(list) {
        let gone: HashSet<&Value> = gone.iter().collect();
        items.retain(|item| !gone.contains(item));
    }
    Ok(())
}

/// Merges a list and orders its items.
fn ordered(
    ty: Option<&Merge>,
    original: &mut Fields,
    patch: &Fields,
    (name, order): (&str, &Value),
    work: &mut Work,
) -> Result<()> {
    let Value::Array(order) = order else {
        return Err(Error::Malformed(format!("{ORDER_OF}{name} must be a list")));
    };
    let (ty, how) = field(ty, name);
    let stored = match original.remove(name) {
        Some(Value::Array(stored)) => Some(stored),
        Some(other) => {
            original.insert(name.to_owned(), other);
            return Ok(());
        }
        None => None,
    };
    let wanted = match patch.get(name) {
        Some(Value::Array(wanted)) => Some(wanted),
        _ => None,
    };
    if stored.is_none() && wanted.is_none() {
        return Ok(());
    }
    let key = how.key.as_deref();
    if let Some(wanted) = wanted
        && !order.is_empty()
    {
        let mut places = order.iter();
        let named = wanted.iter().filter(|item| item.get(DIRECTIVE).is_none());
        for item in named {
            if !places.any(|place| is_same(key, place, item)) {
                return Err(Error::Malformed(format!(
                    "the order of `{name}` does not fit its items: an item that is set is missing or in another place"
                )));
            }
        }
    }
    let before = stored.clone().unwrap_or_default();
    let merged = match (stored, wanted) {
        (stored, Some(wanted)) if how.merge => {
            lists(item_type(ty), &how, stored.unwrap_or_default(), wanted, work)?
        }
        (_, Some(wanted)) => wanted.clone(),
        (stored, None) => stored.unwrap_or_default(),
    };
    original.insert(name.to_owned(), Value::Array(arrange(merged, order, &before, key)));
    Ok(())
}

/// The identity of an item: the value of its key, or the whole item; None without the key.
fn identity<'v>(key: Option<&str>, item: &'v Value) -> Option<&'v Value> {
    match key {
        Some(key) => item.get(key),
        None => Some(item),
    }
}

/// Whether two items have the same identity.
fn is_same(key: Option<&str>, a: &Value, b: &Value) -> bool {
    identity(key, a).is_some_and(|value| identity(key, b) == Some(value))
}

fn lists(
    ty: Option<&Merge>,
    how: &Patch,
    mut original: Vec<Value>,
    patch: &[Value],
    work: &mut Work,
) -> Result<Vec<Value>> {
    let Some(key) = how.key.as_deref() else {
        if patch.iter().chain(&original).any(Value::is_array) {
            return Err(Error::Rejected("lists of lists are not supported".to_owned()));
        }
        let mut seen: HashSet<&Value> = original.iter().collect();
        let new: Vec<Value> = patch.iter().filter(|item| seen.insert(item)).cloned().collect();
        let merged = original.iter().cloned().chain(new).collect();
        return Ok(arrange(merged, patch, &original, None));
    };
    let mut replace = false;
    let mut wanted: Vec<&Value> = Vec::with_capacity(patch.len());
    let mut gone: HashSet<&Value> = HashSet::new();
    for item in patch {
        let Value::Object(fields) = item else {
            return Err(Error::Unmergeable(
                "the items of a list that merges by a key must be maps".to_owned(),
            ));
        };
        match fields.get(DIRECTIVE) {
            None => wanted.push(item),
            Some(Value::String(what)) if what == "delete" => {
                gone.insert(fields.get(key).ok_or_else(|| no_key(key))?);
            }
            Some(Value::String(what)) if what == "replace" => replace = true,
            Some(other) => return Err(unknown_directive(other)),
        }
    }
    original.retain(|stored| stored.get(key).is_none_or(|value| !gone.contains(value)));
    let before = if replace { Vec::new() } else { original };
    let mut merged = before.clone();
    let mut places: HashMap<&Value, usize> = HashMap::with_capacity(merged.len());
    for (at, item) in before.iter().enumerate() {
        if let Some(value) = item.get(key) {
            places.entry(value).or_insert(at);
        }
    }
    let mut seen: HashSet<&Value> = HashSet::with_capacity(wanted.len());
    for item in wanted.iter().copied() {
        let value = item.get(key).ok_or_else(|| no_key(key))?;
        let Value::Object(fields) = item else { continue };
        let is_repeated = !seen.insert(value);
        let stored = places.get(value).and_then(|at| merged.get_mut(*at));
        if is_repeated && let Some(stored) = &stored {
            work.spend(value_count(stored))?;
        }
        match stored {
            Some(Value::Object(stored)) => *stored = maps(ty, std::mem::take(stored), fields, work)?,
            _ => {
                places.insert(value, merged.len());
                merged.push(Value::Object(maps(ty, Fields::new(), fields, work)?));
            }
        }
    }
    let order: Vec<Value> = wanted.into_iter().cloned().collect();
    Ok(arrange(merged, &order, &before, Some(key)))
}

fn no_key(key: &str) -> Error {
    Error::Unmergeable(format!("an item does not contain declared merge key: {key}"))
}

/// Orders merged items: items in `order` follow it, and other items keep their position in `before` between
/// them.
fn arrange(merged: Vec<Value>, order: &[Value], before: &[Value], key: Option<&str>) -> Vec<Value> {
    let (wanted, stood) = (places(order, key), places(before, key));
    let place = |list: &HashMap<&Value, usize>, item: &Value| list.get(identity(key, item)?).copied();
    let mut named: Vec<(usize, Value)> = Vec::new();
    let mut others: Vec<Value> = Vec::new();
    for item in merged {
        match place(&wanted, &item) {
            Some(at) => named.push((at, item)),
            None => others.push(item),
        }
    }
    named.sort_by_key(|(at, _)| *at);
    let mut arranged = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, item) in named {
        let at = place(&stood, &item);
        while let Some(other) =
            others.next_if(|other| matches!((place(&stood, other), at), (Some(a), Some(b)) if a < b))
        {
            arranged.push(other);
        }
        arranged.push(item);
    }
    arranged.extend(others);
    arranged
}

/// The index of each item in a list; duplicates have the first index.
fn places<'v>(list: &'v [Value], key: Option<&str>) -> HashMap<&'v Value, usize> {
    let mut places = HashMap::with_capacity(list.len());
    for (at, item) in list.iter().enumerate() {
        if let Some(identity) = identity(key, item) {
            places.entry(identity).or_insert(at);
        }
    }
    places
}

#[cfg(test)]
mod tests;
