//! Merging one object over another.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::object::Value;
use schema::merge::Merge;

use super::{Fields, Form, ItemIdentity, child_or_any, form, is_empty, items};
use crate::path::Element;

/// Merges `over` into `under`: values, entries and items of `over` win, all others stay.
///
/// List items keep the order of `over`. Items that only `under` has stay between them, as near as possible to
/// their old position.
pub fn merge(ty: &Merge, under: &Fields, over: &Fields) -> Fields {
    let mut merged = Fields::new();
    for (name, value) in under {
        let value = match over.get(name) {
            None => Some(value.clone()),
            Some(over) => merge_values(child_or_any(ty, name).0, Some(value), over),
        };
        if let Some(value) = value {
            merged.insert(name.clone(), value);
        }
    }
    for (name, value) in over {
        if !under.contains_key(name)
            && let Some(value) = merge_values(child_or_any(ty, name).0, None, value)
        {
            merged.insert(name.clone(), value);
        }
    }
    merged
}

/// Merges two values; None when nothing is left.
fn merge_values(ty: &Merge, under: Option<&Value>, over: &Value) -> Option<Value> {
    let empty = is_empty(under) && is_empty(Some(over));
    match (form(ty, Some(over)), over) {
        (Form::Leaf, _) => Some(over.clone()),
        _ if empty => Some(over.clone()),
        (Form::Map, _) => {
            let nothing = Fields::new();
            let under = under.and_then(Value::as_object).unwrap_or(&nothing);
            let merged = match over {
                Value::Object(over) => merge(ty, under, over),
                _ => under.clone(),
            };
            (!merged.is_empty()).then_some(Value::Object(merged))
        }
        (Form::List(item_type, identity), _) => {
            let merged = merge_lists(item_type, identity, under, over);
            (!merged.is_empty()).then_some(Value::Array(merged))
        }
    }
}

fn merge_lists(
    item_type: &Merge,
    identity: ItemIdentity<'_>,
    under: Option<&Value>,
    over: &Value,
) -> Vec<Value> {
    let under = items(identity, under);
    let over = items(identity, Some(over));
    // None marks several items with the same key: they do not merge.
    let mut under_items: BTreeMap<&Element, Option<&Value>> = BTreeMap::new();
    for (element, item) in &under {
        under_items.entry(element).and_modify(|several| *several = None).or_insert(Some(item));
    }
    let over_elements: BTreeSet<&Element> = over.iter().map(|(element, _)| element).collect();
    let merge_item = |element: &Element, item: &Value| {
        merge_values(item_type, under_items.get(element).copied().flatten(), item)
    };

    let mut shared =
        over.iter().map(|(element, _)| element).filter(|element| under_items.contains_key(element));
    let mut next_shared = shared.next();
    let mut merged_elements: BTreeSet<&Element> = BTreeSet::new();
    let mut merged = Vec::with_capacity(under.len().max(over.len()));
    let (mut left, mut right) = (under.iter().peekable(), over.iter().peekable());
    loop {
        let (old, new) = (left.peek().copied(), right.peek().copied());
        match (old, new) {
            (None, None) => return merged,
            (Some((old, _)), Some((new, value))) if old == new => {
                merged.extend(merge_item(new, value));
                merged_elements.insert(new);
                left.next();
                right.next();
                next_shared = shared.next();
            }
            // `over` has this item at a later position: the item is merged there.
            (Some((old, _)), Some(_))
                if over_elements.contains(old) && next_shared.is_some_and(|next| next != old) =>
            {
                left.next();
            }
            (Some((old, value)), _) if !over_elements.contains(old) => {
                merged.push((*value).clone());
                left.next();
            }
            (old, new) => {
                if old.is_some_and(|(old, _)| merged_elements.contains(old)) {
                    left.next();
                }
                if let Some((new, value)) = new {
                    merged.extend(merge_item(new, value));
                    merged_elements.insert(new);
                    right.next();
                    if next_shared == Some(new) {
                        next_shared = shared.next();
                    }
                }
            }
        }
    }
}
