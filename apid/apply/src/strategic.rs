//! Strategic merge patch: a merge patch that merges lists by the rules of the schema.
//!
//! # Contract
//!
//! [`apply`] merges a patch into an object of a type. Maps merge by key, and null removes a key. Lists that
//! the schema marks merge by their merge key or by value; other lists are replaced. Supported directives:
//! `$patch` (`merge`, `replace`, `delete` in maps; `replace`, `delete` in items),
//! `$deleteFromPrimitiveList/<field>`, `$setElementOrder/<field>`, `$retainKeys`.
//!
//! Where the object has no value, or the directive `replace` discards the stored one, the value of the patch is
//! taken as sent. Lists then keep items with equal keys. Directives inside such a value have no effect. The
//! schema reports those that remain as unknown fields.
//!
//! # Reference
//!
//! Order of a merged list: items that the patch contains in the order of the patch, all other items in their
//! stored order. A stored item that the patch lacks comes before the first patch item that follows it in the
//! stored list. Without such a patch item it comes last. Patch items that the stored list lacks do not count
//! for this rule. Values of another JSON type replace the stored ones; the schema then validates them. All of
//! this is the behaviour of kube-apiserver, and the errors have the texts of kube-apiserver, which clients
//! match.

use std::collections::{HashMap, HashSet};

use apimachinery::field::{format_go_fields, format_go_value, shorten};
use apimachinery::object::Value;
use schema::merge::{Merge, Patch};

use crate::typed::Fields;
use crate::work::{Work, WorkExceeded, value_count};

/// Maximum number of stored values that a patch merges again, because several of its items have the same key.
///
/// Merging an item copies its lists. Without this limit a small patch merges a large item thousands of times.
const WORK_MAX: usize = 1_000_000;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_FROM: &str = "$deleteFromPrimitiveList/";
const ORDER_OF: &str = "$setElementOrder/";

/// Types of Go in messages.
const LIST_TYPE: &str = "[]interface {}";
const MAP_TYPE: &str = "map[string]interface {}";

/// The reason why a patch fails.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A malformed directive, or directives that contradict the patch: 400.
    #[error("{0}")]
    Malformed(String),
    /// A list of lists, which cannot merge: 422.
    #[error("{0}")]
    Rejected(String),
    /// The patch exceeds a limit: 413.
    #[error("{0}")]
    TooLarge(String),
    /// An item without the merge key of its list, an unknown directive, or a value of another type: 500.
    #[error("{0}")]
    Unmergeable(String),
}

impl From<WorkExceeded> for Error {
    fn from(_: WorkExceeded) -> Self {
        Error::TooLarge(format!(
            "several items of the patch have the same merge key: at most {WORK_MAX} values may merge again"
        ))
    }
}

type Result<T, E = Error> = std::result::Result<T, E>;

/// Applies a patch to an object.
///
/// # Errors
///
/// See [`Error`].
pub fn apply(merge: &Merge, object: Fields, patch: &Fields) -> Result<Fields> {
    merge_maps(Some(merge), object, patch, &mut Work(WORK_MAX))
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

fn merge_maps(ty: Option<&Merge>, mut original: Fields, patch: &Fields, work: &mut Work) -> Result<Fields> {
    match patch.get(DIRECTIVE) {
        None => {}
        Some(Value::String(directive)) if directive == "replace" => {
            let mut replacement = patch.clone();
            replacement.remove(DIRECTIVE);
            return Ok(replacement);
        }
        Some(Value::String(directive)) if directive == "delete" => return Ok(Fields::new()),
        Some(Value::String(directive)) if directive == "merge" => {}
        Some(other) => return Err(unknown_directive(other, patch)),
    }
    check_directive_names(patch)?;
    retain_keys(&mut original, patch)?;
    for (name, order) in patch {
        if let Some(list) = name.strip_prefix(ORDER_OF) {
            merge_ordered_list(ty, &mut original, patch, (list, order), work)?;
        }
    }
    for (name, value) in patch {
        if name == DIRECTIVE || name == RETAIN_KEYS || name.starts_with(ORDER_OF) {
            continue;
        }
        if let Some(list) = name.strip_prefix(DELETE_FROM) {
            delete_values(&mut original, list, value);
            continue;
        }
        if patch.contains_key(&format!("{ORDER_OF}{name}")) && value.is_array() {
            continue;
        }
        if value.is_null() {
            original.remove(name);
            continue;
        }
        let (ty, strategy) = field(ty, name);
        if let Some(merged) = merge_values(ty, &strategy, original.remove(name), value, work)? {
            original.insert(name.clone(), merged);
        }
    }
    Ok(original)
}

/// Merges a value into the stored one; None when nothing is left.
///
/// Only two maps and two lists merge. Otherwise the value of the patch replaces the stored one.
fn merge_values(
    ty: Option<&Merge>,
    strategy: &Patch,
    original: Option<Value>,
    patch: &Value,
    work: &mut Work,
) -> Result<Option<Value>> {
    Ok(match (original, patch) {
        (Some(Value::Object(original)), Value::Object(patch)) if !strategy.replace => {
            Some(Value::Object(merge_maps(ty, original, patch, work)?))
        }
        (Some(Value::Array(original)), Value::Array(patch)) if strategy.merge => {
            Some(Value::Array(merge_lists(item_type(ty), strategy, original, patch, work)?))
        }
        (Some(Value::Object(_)), Value::Object(_)) | (Some(Value::Array(_)), Value::Array(_)) => {
            Some(patch.clone())
        }
        _ => new_value(patch),
    })
}

/// The value of a patch where the object has no value of this JSON type.
///
/// At all depths, null fields and maps with the directive `$patch` are removed. Lists keep items with equal keys.
/// Returns None for a map with the directive.
fn new_value(patch: &Value) -> Option<Value> {
    match patch {
        Value::Object(map) if map.contains_key(DIRECTIVE) => None,
        Value::Object(map) => {
            let fields = map.iter().filter(|(_, value)| !value.is_null());
            let fields = fields.filter_map(|(name, value)| Some((name.clone(), new_value(value)?)));
            Some(Value::Object(fields.collect()))
        }
        Value::Array(items) => Some(Value::Array(items.iter().filter_map(new_value).collect())),
        scalar => Some(scalar.clone()),
    }
}

fn item_type(ty: Option<&Merge>) -> Option<&Merge> {
    match ty {
        Some(Merge::List { items, .. }) => Some(items),
        _ => None,
    }
}

/// The error of an unknown value of the directive `$patch` in a map.
fn unknown_directive(value: &Value, map: &Fields) -> Error {
    let directive = match value {
        Value::String(text) => text.clone(),
        Value::Null => "%!s(<nil>)".to_owned(),
        Value::Bool(_) | Value::Number(_) => format!("%!s({}={value})", go_type(value)),
        Value::Array(_) | Value::Object(_) => format_go_value(value),
    };
    Error::Unmergeable(format!(
        "unknown patch type: {} in map: {}",
        shorten(&directive),
        format_go_fields(map)
    ))
}

/// The type of a decoded value in Go.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "%!s(<nil>)",
        Value::Bool(_) => "bool",
        Value::Number(number) if number.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => LIST_TYPE,
        Value::Object(_) => MAP_TYPE,
    }
}

fn type_error(expected: &str, found: &Value) -> Error {
    Error::Unmergeable(format!("expected a {expected}, but received a {}", go_type(found)))
}

/// Checks that the directives about a list name the list.
fn check_directive_names(patch: &Fields) -> Result<()> {
    for (directive, what) in [(ORDER_OF, "setElementOrder list"), (DELETE_FROM, "primitive list")] {
        let prefix = directive.trim_end_matches('/');
        if patch.keys().any(|name| name.starts_with(prefix) && !name.starts_with(directive)) {
            return Err(Error::Malformed(format!("invalid patch format of {what}")));
        }
    }
    Ok(())
}

/// The error of `$retainKeys` that is no list, or that lacks a key of the patch.
fn malformed_retain_keys() -> Error {
    Error::Malformed("invalid patch format of retainKeys".to_owned())
}

/// Removes the keys that `$retainKeys` does not list.
fn retain_keys(original: &mut Fields, patch: &Fields) -> Result<()> {
    let Some(kept) = patch.get(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(kept) = kept else {
        return Err(malformed_retain_keys());
    };
    let kept: HashSet<&str> = kept.iter().filter_map(Value::as_str).collect();
    for (name, value) in patch {
        if !value.is_null() && !name.starts_with('$') && !kept.contains(name.as_str()) {
            return Err(malformed_retain_keys());
        }
    }
    original.retain(|name, _| kept.contains(name.as_str()));
    Ok(())
}

/// Removes the values of a `$deleteFromPrimitiveList` directive from a list. The directive with null removes the list.
///
/// As in kube-apiserver, the directive does nothing if its value or the field is no list.
fn delete_values(original: &mut Fields, list: &str, deleted: &Value) {
    match (original.get_mut(list), deleted) {
        (_, Value::Null) => drop(original.remove(list)),
        (Some(Value::Array(items)), Value::Array(deleted)) => {
            let deleted: HashSet<&Value> = deleted.iter().collect();
            items.retain(|item| !deleted.contains(item));
        }
        _ => {}
    }
}

/// Merges the list `name`, and orders its items by the directive `$setElementOrder/<name>`, whose value is
/// `order`.
fn merge_ordered_list(
    ty: Option<&Merge>,
    original: &mut Fields,
    patch: &Fields,
    (name, order): (&str, &Value),
    work: &mut Work,
) -> Result<()> {
    let Value::Array(order) = order else { return Err(type_error(LIST_TYPE, order)) };
    let (ty, strategy) = field(ty, name);
    let stored = match original.remove(name) {
        Some(Value::Array(stored)) => Some(stored),
        Some(other) => return Err(type_error(LIST_TYPE, &other)),
        None => None,
    };
    let patch_items = match patch.get(name) {
        Some(Value::Array(patch_items)) => Some(patch_items),
        Some(other) => return Err(type_error(LIST_TYPE, other)),
        None => None,
    };
    if stored.is_none() && patch_items.is_none() {
        return Ok(());
    }
    let key = strategy.key.as_deref();
    if let Some(patch_items) = patch_items {
        check_order(key, patch_items, order)?;
    }
    let before = stored.clone().unwrap_or_default();
    let merged = match (stored, patch_items) {
        (Some(stored), Some(patch_items)) if strategy.merge => {
            merge_lists(item_type(ty), &strategy, stored, patch_items, work)?
        }
        (Some(_), Some(patch_items)) => patch_items.clone(),
        (None, Some(patch_items)) => patch_items.iter().filter_map(new_value).collect(),
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

/// Checks that the items of a patch have the order of a directive `$setElementOrder`.
fn check_order(key: Option<&str>, patch_items: &[Value], order: &[Value]) -> Result<()> {
    if order.is_empty() {
        return Ok(());
    }
    let mut rest = order.iter();
    for item in patch_items.iter().filter(|item| item.get(DIRECTIVE).is_none()) {
        loop {
            let Some(ordered) = rest.next() else { return Err(order_mismatch(patch_items, order)) };
            if required_identity(key, item)? == required_identity(key, ordered)? {
                break;
            }
        }
    }
    Ok(())
}

fn order_mismatch(patch_items: &[Value], order: &[Value]) -> Error {
    let text = |items: &[Value]| format_go_value(&Value::Array(items.to_vec()));
    let directive = ORDER_OF.trim_end_matches('/');
    Error::Unmergeable(format!(
        "The order in patch list:\n{}\n doesn't match {directive} list:\n{}\n",
        text(patch_items),
        text(order)
    ))
}

/// As [`identity`], with an error for an item that has no key.
fn required_identity<'v>(key: Option<&str>, item: &'v Value) -> Result<&'v Value> {
    let Some(key) = key else { return Ok(item) };
    let Value::Object(fields) = item else { return Err(type_error(MAP_TYPE, item)) };
    fields.get(key).ok_or_else(|| missing_key_error(fields, key))
}

/// Checks that all items of two lists have the same type, and no lists. Returns whether the items are maps.
fn are_maps(original: &[Value], patch: &[Value]) -> Result<bool> {
    let mut items = original.iter().chain(patch);
    let Some(first) = items.next() else { return Ok(false) };
    if first.is_array() {
        return Err(Error::Rejected("lists of lists are not supported".to_owned()));
    }
    if items.any(|item| go_type(item) != go_type(first)) {
        let lists = Value::Array(vec![Value::Array(original.to_vec()), Value::Array(patch.to_vec())]);
        let text = format_go_value(&lists);
        return Err(Error::Unmergeable(format!("list element types are not identical: {text}")));
    }
    Ok(first.is_object())
}

fn merge_lists(
    ty: Option<&Merge>,
    strategy: &Patch,
    mut original: Vec<Value>,
    patch: &[Value],
    work: &mut Work,
) -> Result<Vec<Value>> {
    let are_maps = are_maps(&original, patch)?;
    let Some(key) = strategy.key.as_deref().filter(|_| are_maps) else {
        let mut seen: HashSet<&Value> = original.iter().collect();
        let new: Vec<Value> = patch.iter().filter(|item| seen.insert(item)).cloned().collect();
        let merged = original.iter().cloned().chain(new).collect();
        return Ok(arrange(merged, patch, &original, None));
    };
    let mut replace = false;
    let mut patch_items: Vec<&Value> = Vec::with_capacity(patch.len());
    let mut deleted: HashSet<&Value> = HashSet::new();
    for item in patch {
        let Value::Object(fields) = item else { continue };
        match fields.get(DIRECTIVE) {
            None => patch_items.push(item),
            Some(Value::String(directive)) if directive == "delete" => {
                deleted.insert(required_identity(Some(key), item)?);
            }
            Some(Value::String(directive)) if directive == "replace" => replace = true,
            Some(Value::String(directive)) if directive == "merge" => {
                let text = "merging lists cannot yet be specified in the patch";
                return Err(Error::Unmergeable(text.to_owned()));
            }
            Some(other) => return Err(unknown_directive(other, fields)),
        }
    }
    if replace {
        for item in &patch_items {
            required_identity(Some(key), item)?;
        }
        return Ok(patch_items.into_iter().cloned().collect());
    }
    original.retain(|stored| stored.get(key).is_none_or(|value| !deleted.contains(value)));
    let before = original;
    let mut merged = before.clone();
    let mut positions = positions(&before, Some(key));
    let mut seen: HashSet<&Value> = HashSet::with_capacity(patch_items.len());
    for item in patch_items.iter().copied() {
        let value = required_identity(Some(key), item)?;
        let Value::Object(fields) = item else { continue };
        let is_repeated = !seen.insert(value);
        let stored = positions.get(value).and_then(|at| merged.get_mut(*at));
        if is_repeated && let Some(stored) = &stored {
            work.spend(value_count(stored))?;
        }
        match stored {
            Some(Value::Object(stored)) => *stored = merge_maps(ty, std::mem::take(stored), fields, work)?,
            _ => {
                positions.insert(value, merged.len());
                // A new item enters the list as sent.
                merged.push(item.clone());
            }
        }
    }
    let order: Vec<Value> = patch_items.into_iter().cloned().collect();
    Ok(arrange(merged, &order, &before, Some(key)))
}

fn missing_key_error(map: &Fields, key: &str) -> Error {
    Error::Unmergeable(format!("map: {} does not contain declared merge key: {key}", format_go_fields(map)))
}

/// Orders merged items. Items in `order` have that order. Each other item comes before the first item of
/// `order` that follows it in the stored list `before`.
fn arrange(merged: Vec<Value>, order: &[Value], before: &[Value], key: Option<&str>) -> Vec<Value> {
    let (ordered, stored) = (positions(order, key), positions(before, key));
    let position = |list: &HashMap<&Value, usize>, item: &Value| list.get(identity(key, item)?).copied();
    let mut named: Vec<(usize, Value)> = Vec::new();
    let mut others: Vec<Value> = Vec::new();
    for item in merged {
        match position(&ordered, &item) {
            Some(at) => named.push((at, item)),
            None => others.push(item),
        }
    }
    named.sort_by_key(|(at, _)| *at);
    let mut arranged = Vec::with_capacity(named.len() + others.len());
    let mut others = others.into_iter().peekable();
    for (_, item) in named {
        let at = position(&stored, &item);
        while let Some(other) =
            others.next_if(|other| matches!((position(&stored, other), at), (Some(a), Some(b)) if a < b))
        {
            arranged.push(other);
        }
        arranged.push(item);
    }
    arranged.extend(others);
    arranged
}

/// The index of each item in a list; items with the same identity have the index of the first of them.
fn positions<'v>(list: &'v [Value], key: Option<&str>) -> HashMap<&'v Value, usize> {
    let mut positions = HashMap::with_capacity(list.len());
    for (at, item) in list.iter().enumerate() {
        if let Some(identity) = identity(key, item) {
            positions.entry(identity).or_insert(at);
        }
    }
    positions
}

#[cfg(test)]
mod tests;
