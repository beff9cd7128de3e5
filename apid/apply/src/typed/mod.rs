//! Walking objects with their types.
//!
//! # Contract
//!
//! [`field_set`]: the paths of an object. [`compare`]: what was added, modified and removed between two objects.
//! [`merge`]: one object laid over another. [`remove`]: an object without some paths. [`check`]: whether an applied
//! object fits its type. All take the fields of an object and its type; none changes what it is given.
//!
//! # Invariants
//!
//! INVARIANT (atomic is a leaf): below an atomic value there are no paths; it is taken, compared and removed as a whole.
//!
//! # Reference
//!
//! An item of a keyed list is told by the values of its keys, with their defaults when it does not have them; a key
//! without a default may be missing. Stored lists may hold several items of one key: those are treated as one, of which
//! only the whole can be owned. A list that is applied may not.

mod check;
mod compare;
mod merge;
mod remove;

use apimachinery::object::{Map, Value};
use schema::merge::{Key, List, Merge};

pub use check::{TypingError, check, drop_undeclared};
pub use compare::{Comparison, compare};
pub use merge::merge;
pub use remove::remove;

use crate::path::Element;
use crate::set::{Node, Set};

/// The fields of a JSON object.
pub type Fields = Map<String, Value>;

/// How a value is walked.
#[derive(Clone, Copy)]
enum Form<'s> {
    /// Not at all.
    Leaf,
    /// By its fields or keys.
    Map,
    /// By its items.
    List(&'s Merge, Items<'s>),
}

/// What tells items apart.
#[derive(Clone, Copy)]
enum Items<'s> {
    Set,
    Keyed(&'s [Key]),
}

/// How values of a type are walked; of what is not typed, the value tells. `None`: no value, or one that tells nothing.
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
        Merge::List { items, list: List::Set } => Form::List(items, Items::Set),
        Merge::List { items, list: List::Map(keys) } => Form::List(items, Items::Keyed(keys)),
    }
}

/// The type of a field or of a key's value, and whether it is a declared field.
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

/// What is not declared is a scalar or as good as one: it is nothing that the schema lets in.
static UNDECLARED: Merge = Merge::Untyped { atomic: true };

/// As [`child`], of whatever is there.
fn child_or_any<'s>(ty: &'s Merge, name: &str) -> (&'s Merge, bool) {
    child(ty, name).unwrap_or((&UNDECLARED, false))
}

/// What tells an item apart.
fn element(items: Items<'_>, item: &Value) -> Element {
    match items {
        Items::Set => Element::Value(Box::new(item.clone())),
        Items::Keyed(keys) => {
            let mut all: Vec<(Box<str>, Value)> = Vec::with_capacity(keys.len());
            for key in keys {
                if let Some(value) = item.get(&key.name).or(key.default.as_ref()) {
                    all.push((key.name.as_str().into(), value.clone()));
                }
            }
            all.sort_by(|(a, _), (b, _)| a.cmp(b));
            Element::Key(all.into_boxed_slice())
        }
    }
}

/// The items of a list by what tells them apart, in their order; those that are nothing are left out.
fn items<'v>(how: Items<'_>, list: Option<&'v Value>) -> Vec<(Element, &'v Value)> {
    let list = list.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    list.iter().filter(|item| !item.is_null()).map(|item| (element(how, item), item)).collect()
}

/// Whether there is nothing in it: null, or a list or a map without entries.
fn is_empty(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => true,
        Some(Value::Array(list)) => list.is_empty(),
        Some(Value::Object(map)) => map.is_empty(),
        Some(_) => false,
    }
}

/// The paths of an object: its leaves, items of lists, entries of maps; not the structs above them.
pub fn field_set(ty: &Merge, object: &Fields) -> Set {
    map_set(ty, object)
}

fn map_set(ty: &Merge, map: &Fields) -> Set {
    let mut set = Set::default();
    for (name, value) in map {
        let (child, declared) = child_or_any(ty, name);
        let mut node = node(child, value);
        node.member |= !declared || value.is_null() || value.as_object().is_some_and(Map::is_empty);
        set.add(Element::field(name), node);
    }
    set
}

fn node(ty: &Merge, value: &Value) -> Node {
    match form(ty, Some(value)) {
        Form::Leaf => Node::leaf(),
        Form::Map => {
            Node { member: false, below: value.as_object().map_or_else(Set::default, |m| map_set(ty, m)) }
        }
        Form::List(of, how) => {
            let mut sorted = items(how, Some(value));
            sorted.sort_by(|(a, _), (b, _)| a.cmp(b));
            let mut below = Set::default();
            for same in sorted.chunk_by(|(a, _), (b, _)| a == b) {
                if let [(element, item)] = same {
                    let below_item = node(of, item).below;
                    below.add(element.clone(), Node { member: true, below: below_item });
                } else if let Some((element, _)) = same.first() {
                    below.add(element.clone(), Node::leaf());
                }
            }
            Node { member: false, below }
        }
    }
}

/// The set with the declared fields above its paths, so that nothing is left of a struct of which all is removed.
pub fn with_named(ty: &Merge, set: &Set) -> Set {
    let mut all = Set::default();
    for (element, node) in set.nodes() {
        let (child, named) = match element {
            Element::Field(name) => child_or_any(ty, name),
            _ => match ty {
                Merge::List { items, .. } => (&**items, false),
                _ => (&UNDECLARED, false),
            },
        };
        let member = node.member || (named && !node.below.is_empty());
        all.add(element.clone(), Node { member, below: with_named(child, &node.below) });
    }
    all
}

/// The set as it is when parts of the type that it knows as granular have become atomic; None when none has.
pub fn reconcile(ty: &Merge, set: &Set) -> Option<Set> {
    has_parts_of_atomic(ty, set).then(|| reconciled(ty, set))
}

fn has_parts_of_atomic(ty: &Merge, set: &Set) -> bool {
    set.nodes().filter(|(_, node)| !node.below.is_empty()).any(|(element, node)| {
        part(ty, element).is_some_and(|part| is_atomic(part) || has_parts_of_atomic(part, &node.below))
    })
}

fn reconciled(ty: &Merge, set: &Set) -> Set {
    let mut all = Set::default();
    for (element, node) in set.nodes() {
        let node = match part(ty, element) {
            Some(part) if is_atomic(part) && !node.below.is_empty() => Node::leaf(),
            Some(part) => Node { member: node.member, below: reconciled(part, &node.below) },
            None => node.clone(),
        };
        all.add(element.clone(), node);
    }
    all
}

/// The type of a part of a value.
fn part<'s>(ty: &'s Merge, element: &Element) -> Option<&'s Merge> {
    match (element, ty) {
        (Element::Field(name), _) => child(ty, name).map(|(child, _)| child),
        (_, Merge::List { items, .. }) => Some(items),
        _ => None,
    }
}

/// Whether the type says that values have one owner.
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
