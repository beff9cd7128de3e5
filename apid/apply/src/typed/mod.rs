//! Typed operations on objects.
//!
//! # Contract
//!
//! - [`field_set`]: the paths of an object.
//! - [`compare`]: the added, modified and removed paths between two objects.
//! - [`merge`]: one object merged over another.
//! - [`remove`]: an object without some paths. [`restore_nulls`]: the nulls that an apply requests.
//! - [`check`]: the type check of an applied object. [`atomic_parts`]: its atomic parts, which replace the
//!   stored parts as a whole.
//!   [`drop_undeclared`]: the removal of fields that the type does not declare.
//!
//! These functions take the type of an object and its fields. Only [`restore_nulls`] and [`drop_undeclared`]
//! change an argument.
//!
//! # Invariants
//!
//! INVARIANT (atomic is a leaf): an atomic value has no paths below it, and is owned, compared and removed as
//! a whole.
//!
//! # Reference
//!
//! The values of the key fields identify an item of a keyed list. A missing key field has its default; a key
//! field without a default may be absent. Stored lists may hold several items with one key. The functions
//! treat them as one item, owned only as a whole. An applied list must not contain such items.

mod atomics;
mod check;
mod compare;
mod merge;
mod remove;

use apimachinery::object::{Map, Value};
use schema::merge::{Key, List, Merge};

pub use atomics::atomic_parts;
pub use check::{TypingError, check, drop_undeclared};
pub use compare::{Comparison, compare};
pub use merge::merge;
pub use remove::{remove, restore_nulls};

use crate::path::Element;
use crate::set::{Node, Set};

/// The fields of a JSON object.
pub type Fields = Map<String, Value>;

/// The structure of a value, as the functions of this module traverse it.
#[derive(Clone, Copy)]
enum Form<'s> {
    /// A scalar or an atomic value.
    Leaf,
    /// A value with fields or keys.
    Map,
    /// A list, with the type and the identity of its items.
    List(&'s Merge, ItemIdentity<'s>),
}

/// The rule that identifies list items: by value, or by key fields.
#[derive(Clone, Copy)]
enum ItemIdentity<'s> {
    Set,
    Keyed(&'s [Key]),
}

/// The structure of a value of a type. `value` matters only for a granular untyped type; None is a missing
/// value.
fn form<'s>(ty: &'s Merge, value: Option<&Value>) -> Form<'s> {
    match ty {
        Merge::Scalar(_) | Merge::Untyped { atomic: true } | Merge::Map { atomic: true, .. } => Form::Leaf,
        Merge::Untyped { atomic: false } => match value {
            Some(Value::Object(_)) => Form::Map,
            _ => Form::Leaf,
        },
        Merge::Struct(r) if r.is_atomic() => Form::Leaf,
        Merge::Struct(_) | Merge::Map { .. } => Form::Map,
        Merge::List { list: List::Atomic, .. } => Form::Leaf,
        Merge::List { items, list: List::Set } => Form::List(items, ItemIdentity::Set),
        Merge::List { items, list: List::Map(keys) } => Form::List(items, ItemIdentity::Keyed(keys)),
    }
}

/// The type of a field or of a map value, and whether the field is declared. None for an undeclared field of
/// a struct that forbids such fields, and for a scalar or a list.
fn child<'s>(ty: &'s Merge, name: &str) -> Option<(&'s Merge, bool)> {
    match ty {
        Merge::Struct(r) => {
            let ty = r.resolve()?;
            ty.field(name).map(|field| (&field.ty, true)).or_else(|| ty.rest().map(|rest| (rest, false)))
        }
        Merge::Map { values, .. } => Some((values, false)),
        Merge::Untyped { .. } => Some((ty, false)),
        Merge::Scalar(_) | Merge::List { .. } => None,
    }
}

/// The type of undeclared fields. The schema rejects such fields, so any atomic type suffices.
static UNDECLARED: Merge = Merge::Untyped { atomic: true };

/// As [`child`], but with the type [`UNDECLARED`] for undeclared fields.
fn child_or_any<'s>(ty: &'s Merge, name: &str) -> (&'s Merge, bool) {
    child(ty, name).unwrap_or((&UNDECLARED, false))
}

/// The path element of an item.
fn element(items: ItemIdentity<'_>, item: &Value) -> Element {
    match items {
        ItemIdentity::Set => Element::Value(Box::new(item.clone())),
        ItemIdentity::Keyed(keys) => {
            let mut key_values: Vec<(Box<str>, Value)> = Vec::with_capacity(keys.len());
            for key in keys {
                if let Some(value) = item.get(&key.name).or(key.default.as_ref()) {
                    key_values.push((key.name.as_str().into(), value.clone()));
                }
            }
            key_values.sort_by(|(a, _), (b, _)| a.cmp(b));
            Element::Key(key_values.into_boxed_slice())
        }
    }
}

/// The items of a list with their path elements, in order, without nulls.
fn items<'v>(identity: ItemIdentity<'_>, list: Option<&'v Value>) -> Vec<(Element, &'v Value)> {
    let list = list.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    list.iter().filter(|item| !item.is_null()).map(|item| (element(identity, item), item)).collect()
}

/// Whether a value is null, an empty list or an empty map.
fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(_) => false,
    }
}

/// The paths of an object: leaves, list items and map entries, without the structs above them. An empty
/// struct is a leaf.
pub fn field_set(ty: &Merge, object: &Fields) -> Set {
    let mut set = Set::default();
    for (name, value) in object {
        let (child, declared) = child_or_any(ty, name);
        let mut node = node(child, value);
        node.member |= !declared || value.is_null() || value.as_object().is_some_and(Map::is_empty);
        set.add(Element::field(name), node);
    }
    set
}

/// The set node of a value: the paths of its leaves, items and entries.
fn node(ty: &Merge, value: &Value) -> Node {
    match form(ty, Some(value)) {
        Form::Leaf => Node::leaf(),
        Form::Map => {
            let below = value.as_object().map_or_else(Set::default, |fields| field_set(ty, fields));
            Node { member: false, below }
        }
        Form::List(item_type, identity) => {
            let mut sorted = items(identity, Some(value));
            sorted.sort_by(|(a, _), (b, _)| a.cmp(b));
            let mut below = Set::default();
            for same in sorted.chunk_by(|(a, _), (b, _)| a == b) {
                if let [(element, item)] = same {
                    let below_item = node(item_type, item).below;
                    below.add(element.clone(), Node { member: true, below: below_item });
                } else if let Some((element, _)) = same.first() {
                    below.add(element.clone(), Node::leaf());
                }
            }
            Node { member: false, below }
        }
    }
}

/// Adds the declared fields above the paths of a set. So a removal of all fields of a struct also removes the
/// struct itself.
pub fn with_declared_parents(ty: &Merge, set: &Set) -> Set {
    let mut all = Set::default();
    for (element, node) in set.nodes() {
        let (child, declared) = match (element, ty) {
            (Element::Field(name), _) => child_or_any(ty, name),
            (_, Merge::List { items, .. }) => (&**items, false),
            _ => (&UNDECLARED, false),
        };
        let member = node.member || (declared && !node.below.is_empty());
        all.add(element.clone(), Node { member, below: with_declared_parents(child, &node.below) });
    }
    all
}

/// Adapts a set to a type whose granular parts became atomic; None when nothing changes.
pub fn reconcile(ty: &Merge, set: &Set) -> Option<Set> {
    has_parts_of_atomic(ty, set).then(|| adapt_to_atomic_types(ty, set))
}

fn has_parts_of_atomic(ty: &Merge, set: &Set) -> bool {
    set.nodes().filter(|(_, node)| !node.below.is_empty()).any(|(element, node)| {
        part(ty, element).is_some_and(|part| is_atomic(part) || has_parts_of_atomic(part, &node.below))
    })
}

fn adapt_to_atomic_types(ty: &Merge, set: &Set) -> Set {
    let mut all = Set::default();
    for (element, node) in set.nodes() {
        let node = match part(ty, element) {
            Some(part) if is_atomic(part) && !node.below.is_empty() => Node::leaf(),
            Some(part) => Node { member: node.member, below: adapt_to_atomic_types(part, &node.below) },
            None => node.clone(),
        };
        all.add(element.clone(), node);
    }
    all
}

/// The type of the part at a path element; None if the type has no such part.
fn part<'s>(ty: &'s Merge, element: &Element) -> Option<&'s Merge> {
    match (element, ty) {
        (Element::Field(name), _) => child(ty, name).map(|(child, _)| child),
        (_, Merge::List { items, .. }) => Some(items),
        _ => None,
    }
}

/// Whether the type is an atomic struct, map or list.
fn is_atomic(ty: &Merge) -> bool {
    match ty {
        Merge::Struct(r) => r.is_atomic(),
        Merge::Map { atomic, .. } => *atomic,
        Merge::List { list, .. } => matches!(list, List::Atomic),
        Merge::Scalar(_) | Merge::Untyped { .. } => false,
    }
}

#[cfg(test)]
mod tests;
