//! Merging one object over another.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::object::Value;
use schema::merge::Merge;

use super::{Fields, Form, Items, child_or_any, form, is_empty, items};
use crate::path::Element;

/// Merges `over` into `under`: values, entries and items of `over` win, all others stay.
///
/// List items keep the order of `over`. Items that only `under` has stay between them, as near as possible to
/// their old position.
pub fn merge(ty: &Merge, under: &Fields, over: &Fields) -> Fields {
    maps(ty, under, over)
}

fn maps(ty: &Merge, under: &Fields, over: &Fields) -> Fields {
    let mut merged = Fields::new();
    for (name, value) in under {
        let value = match over.get(name) {
            None => Some(value.clone()),
            Some(over) => values(child_or_any(ty, name).0, Some(value), over),
        };
        if let Some(value) = value {
            merged.insert(name.clone(), value);
        }
    }
    for (name, value) in over {
        if !under.contains_key(name)
            && let Some(value) = values(child_or_any(ty, name).0, None, value)
        {
            merged.insert(name.clone(), value);
        }
    }
    merged
}

/// Merges two values; None when nothing is left.
fn values(ty: &Merge, under: Option<&Value>, over: &Value) -> Option<Value> {
    let empty = is_empty(under) && is_empty(Some(over));
    match (form(ty, Some(over)), over) {
        (Form::Leaf, _) => Some(over.clone()),
        _ if empty => Some(over.clone()),
        (Form::Map, _) => {
            let nothing = Fields::new();
            let under = under.and_then(Value::as_object).unwrap_or(&nothing);
            let merged = match over {
                Value::Object(over) => maps(ty, under, over),
                _ => under.clone(),
            };
            (!merged.is_empty()).then_some(Value::Object(merged))
        }
        (Form::List(of, how), _) => {
            let merged = lists(of, how, under, over);
            (!merged.is_empty()).then_some(Value::Array(merged))
        }
    }
}

fn lists(of: &Merge, how: Items<'_>, under: Option<&Value>, over: &Value) -> Vec<Value> {
    let under = items(how, under);
    let over = items(how, Some(over));
    // None marks several items with one key, which do not merge.
    let mut stored: BTreeMap<&Element, Option<&Value>> = BTreeMap::new();
    for (element, item) in &under {
        stored.entry(element).and_modify(|several| *several = None).or_insert(Some(item));
    }
    let wanted: BTreeSet<&Element> = over.iter().map(|(element, _)| element).collect();
    let item = |element: &Element, item: &Value| match stored.get(element).copied().flatten() {
        Some(under) => values(of, Some(under), item),
        None => values(of, None, item),
    };

    let mut shared = over.iter().map(|(element, _)| element).filter(|element| stored.contains_key(element));
    let mut next_shared = shared.next();
    let mut done: BTreeSet<&Element> = BTreeSet::new();
    let mut merged = Vec::with_capacity(under.len().max(over.len()));
    let (mut left, mut right) = (under.iter().peekable(), over.iter().peekable());
    loop {
        let (old, new) = (left.peek().copied(), right.peek().copied());
        match (old, new) {
            (None, None) => return merged,
            (Some((old, _)), Some((new, value))) if old == new => {
                merged.extend(item(new, value));
                done.insert(new);
                left.next();
                right.next();
                next_shared = shared.next();
            }
            // A shared item out of turn.
            (Some((old, _)), Some(_))
                if wanted.contains(old) && next_shared.is_some_and(|next| next != old) =>
            {
                left.next();
            }
            (Some((old, value)), _) if !wanted.contains(old) => {
                merged.push((*value).clone());
                left.next();
            }
            (old, new) => {
                if old.is_some_and(|(old, _)| done.contains(old)) {
                    left.next();
                }
                if let Some((new, value)) = new {
                    merged.extend(item(new, value));
                    done.insert(new);
                    right.next();
                    if next_shared == Some(new) {
                        next_shared = shared.next();
                    }
                }
            }
        }
    }
}
