//! Comparison of two objects.

use apimachinery::object::Value;
use schema::merge::Merge;

use super::{Fields, Form, child_or_any, form, is_empty, items, node};
use crate::path::Element;
use crate::set::{Node, Set, pair_sorted};

/// The differences between two objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    /// Paths that only the new object has.
    pub added: Set,
    /// Leaves whose values differ.
    pub modified: Set,
    /// Paths that only the old object has.
    pub removed: Set,
}

impl Comparison {
    /// Removes the paths in `ignored` and all paths below them.
    #[must_use]
    pub fn without(mut self, ignored: &Set) -> Self {
        for set in [&mut self.added, &mut self.modified, &mut self.removed] {
            set.subtract_recursive(ignored);
        }
        self
    }
}

/// Compares two objects of a type.
pub fn compare(ty: &Merge, old: &Fields, new: &Fields) -> Comparison {
    let mut all = Comparison::default();
    compare_maps(ty, Some(old), Some(new), &mut all);
    all
}

/// The nodes of the three sets of a comparison at one path.
#[derive(Default)]
struct Nodes {
    added: Node,
    modified: Node,
    removed: Node,
}

impl Nodes {
    fn leaf(old: Option<&Value>, new: Option<&Value>) -> Self {
        let mut nodes = Nodes::default();
        match (old, new) {
            (None, Some(_)) => nodes.added.member = true,
            (Some(_), None) => nodes.removed.member = true,
            (Some(old), Some(new)) if old != new => nodes.modified.member = true,
            _ => {}
        }
        nodes
    }

    /// Adds the nodes to the sets of a comparison.
    fn add_to(self, element: Element, all: &mut Comparison) {
        let sets = [
            (self.added, &mut all.added),
            (self.modified, &mut all.modified),
            (self.removed, &mut all.removed),
        ];
        let mut sets = sets.into_iter().filter(|(node, _)| !node.is_empty()).peekable();
        while let Some((node, set)) = sets.next() {
            if sets.peek().is_none() {
                return set.add(element, node);
            }
            set.add(element.clone(), node);
        }
    }

    fn with_below(mut self, below: Comparison) -> Self {
        self.added.below = below.added;
        self.modified.below = below.modified;
        self.removed.below = below.removed;
        self
    }
}

fn compare_maps(ty: &Merge, old: Option<&Fields>, new: Option<&Fields>, all: &mut Comparison) {
    // Both maps are sorted by name, so the sets are filled in order.
    let (old, new) = (old.into_iter().flatten(), new.into_iter().flatten());
    for (old, new) in pair_sorted(old, new, |(a, _), (b, _)| a.cmp(b)) {
        let Some((name, _)) = old.or(new) else { continue };
        let (old, new) = (old.map(|(_, value)| value), new.map(|(_, value)| value));
        if old != new {
            compare_values(child_or_any(ty, name).0, old, new).add_to(Element::field(name), all);
        }
    }
}

fn compare_values(ty: &Merge, old: Option<&Value>, new: Option<&Value>) -> Nodes {
    let (form_old, form_new) = (form(ty, old.or(new)), form(ty, new.or(old)));
    match (form_old, form_new) {
        (Form::Map, Form::Leaf) | (Form::Leaf, Form::Map) => {
            // An untyped value changed to or from a map: all old paths were removed and all new paths added.
            let mut nodes = Nodes::leaf(old, new);
            if let (Form::Map, Some(old)) = (form_old, old) {
                nodes.removed.below = node(ty, old).below;
            }
            if let (Form::Map, Some(new)) = (form_new, new) {
                nodes.added.below = node(ty, new).below;
            }
            nodes
        }
        (Form::Leaf, _) => Nodes::leaf(old, new),
        _ if is_empty(old) && is_empty(new) => Nodes::leaf(old, new),
        (Form::Map, _) => {
            let mut below = Comparison::default();
            compare_maps(ty, old.and_then(Value::as_object), new.and_then(Value::as_object), &mut below);
            presence_nodes(old, new).with_below(below)
        }
        (Form::List(item_type, identity), _) => {
            let mut old_items = items(identity, old);
            let mut new_items = items(identity, new);
            old_items.sort_by(|(a, _), (b, _)| a.cmp(b));
            new_items.sort_by(|(a, _), (b, _)| a.cmp(b));
            let mut below = Comparison::default();
            compare_lists(item_type, &old_items, &new_items, &mut below);
            presence_nodes(old, new).with_below(below)
        }
    }
}

/// Marks the path itself as added or removed, when only one of the objects has the value.
fn presence_nodes(old: Option<&Value>, new: Option<&Value>) -> Nodes {
    let mut nodes = Nodes::default();
    nodes.added.member = old.is_none();
    nodes.removed.member = new.is_none();
    nodes
}

/// Compares two lists whose items are sorted by path element.
fn compare_lists(
    item_type: &Merge,
    old: &[(Element, &Value)],
    new: &[(Element, &Value)],
    all: &mut Comparison,
) {
    let old_groups = old.chunk_by(|(a, _), (b, _)| a == b);
    let new_groups = new.chunk_by(|(a, _), (b, _)| a == b);
    for (old, new) in pair_sorted(old_groups, new_groups, |a, b| first_element(a).cmp(&first_element(b))) {
        let (old, new) = (old.unwrap_or_default(), new.unwrap_or_default());
        let Some((element, _)) = old.first().or(new.first()) else { continue };
        let nodes = match (old, new) {
            ([], [(_, new)]) => compare_values(item_type, None, Some(new)),
            ([(_, old)], []) => compare_values(item_type, Some(old), None),
            ([(_, old)], [(_, new)]) if old == new => continue,
            ([(_, old)], [(_, new)]) => compare_values(item_type, Some(old), Some(new)),
            _ => duplicate_nodes(item_type, old, new),
        };
        nodes.add_to(element.clone(), all);
    }
}

fn first_element<'i>(items: &'i [(Element, &Value)]) -> Option<&'i Element> {
    items.first().map(|(element, _)| element)
}

/// Compares items that share a key. They count as one value without parts.
fn duplicate_nodes(item_type: &Merge, old: &[(Element, &Value)], new: &[(Element, &Value)]) -> Nodes {
    let mut nodes = Nodes::default();
    match (old, new) {
        ([], _) => nodes.added.member = true,
        (_, []) => nodes.removed.member = true,
        _ if old == new => {}
        _ => {
            nodes.modified.member = true;
            if let [(_, only)] = old {
                nodes.removed.below = node(item_type, only).below;
            }
            if let [(_, only)] = new {
                nodes.added.below = node(item_type, only).below;
            }
        }
    }
    nodes
}
