//! Sets of paths, stored as tries.
//!
//! # Contract
//!
//! A [`Set`] holds paths into an object. A path may be a member with or without paths below it. All
//! operations take time in proportion to the sizes of the sets. `fieldsV1` is the wire form:
//! [`Set::to_value`], [`Set::from_value`]. Decoding an encoded set returns the same set.
//!
//! # Invariants
//!
//! INVARIANT (sorted): the elements of a level are sorted and unique.
//! INVARIANT (no empty nodes): every node is a member or has members below it.

use std::cmp::Ordering;
use std::fmt;

use apimachinery::field::shorten_name;
use apimachinery::object::{Map, Value};

use crate::path::{Element, MalformedElement};

/// A set of paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Set {
    nodes: Vec<(Element, Node)>,
}

/// The content of a set at a path and below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Whether the path itself is in the set.
    pub member: bool,
    /// The paths below this path, relative to it.
    pub below: Set,
}

impl Node {
    /// A member without paths below it.
    pub fn leaf() -> Self {
        Node { member: true, below: Set::default() }
    }

    /// Whether neither the path nor any path below it is a member.
    pub fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }
}

impl Set {
    /// The empty set.
    pub const fn new() -> Self {
        Set { nodes: Vec::new() }
    }

    /// A set of one path.
    pub fn of(path: &[Element]) -> Self {
        let mut set = Set::default();
        set.insert(path);
        set
    }

    /// Whether the set has no path.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The number of paths.
    pub fn len(&self) -> usize {
        self.nodes.iter().map(|(_, node)| usize::from(node.member) + node.below.len()).sum()
    }

    /// The elements of the first level, with their nodes.
    pub fn nodes(&self) -> impl Iterator<Item = (&Element, &Node)> {
        self.nodes.iter().map(|(element, node)| (element, node))
    }

    /// The index of an element in the first level, or the index at which to insert it.
    fn position(&self, element: &Element) -> Result<usize, usize> {
        // Fast path: most sets are filled in order.
        match self.nodes.last().map(|(last, _)| last.cmp(element)) {
            None | Some(Ordering::Less) => Err(self.nodes.len()),
            Some(Ordering::Equal) => Ok(self.nodes.len() - 1),
            Some(Ordering::Greater) => self.nodes.binary_search_by(|(at, _)| at.cmp(element)),
        }
    }

    /// The node at an element of the first level.
    pub fn node(&self, element: &Element) -> Option<&Node> {
        self.nodes.get(self.position(element).ok()?).map(|(_, node)| node)
    }

    /// The node at a field of the first level.
    pub fn field(&self, name: &str) -> Option<&Node> {
        let index = self.nodes.binary_search_by(|(at, _)| match at {
            Element::Field(field) => (**field).cmp(name),
            _ => Ordering::Greater,
        });
        self.nodes.get(index.ok()?).map(|(_, node)| node)
    }

    /// Adds a path.
    pub fn insert(&mut self, path: &[Element]) {
        let Some((first, rest)) = path.split_first() else { return };
        if rest.is_empty() {
            self.add(first.clone(), Node::leaf());
        } else {
            self.add(first.clone(), Node { member: false, below: Set::of(rest) });
        }
    }

    /// Merges a node into the set at an element of the first level.
    pub fn add(&mut self, element: Element, node: Node) {
        if node.is_empty() {
            return;
        }
        match self.position(&element) {
            Err(at) => self.nodes.insert(at, (element, node)),
            Ok(at) => {
                if let Some((_, old)) = self.nodes.get_mut(at) {
                    old.member |= node.member;
                    old.below = old.below.union(&node.below);
                }
            }
        }
    }

    /// Whether the set contains a path.
    pub fn contains(&self, path: &[Element]) -> bool {
        let Some((first, rest)) = path.split_first() else { return false };
        self.node(first)
            .is_some_and(|node| if rest.is_empty() { node.member } else { node.below.contains(rest) })
    }

    /// The union of both sets.
    #[must_use]
    pub fn union(&self, other: &Set) -> Set {
        self.combine(other, &|a, b| match (a, b) {
            (Some(a), Some(b)) => Node { member: a.member || b.member, below: a.below.union(&b.below) },
            (Some(only), None) | (None, Some(only)) => only.clone(),
            (None, None) => Node::default(),
        })
    }

    /// The union of two owned sets, without a copy when one of them is empty.
    #[must_use]
    pub fn into_union(self, other: Set) -> Set {
        match (self.is_empty(), other.is_empty()) {
            (true, _) => other,
            (_, true) => self,
            _ => self.union(&other),
        }
    }

    /// The union of many sets, in almost linear time.
    #[must_use]
    pub fn union_all(mut sets: Vec<Set>) -> Set {
        while sets.len() > 1 {
            let mut halved = Vec::with_capacity(sets.len().div_ceil(2));
            let mut rest = sets.into_iter();
            while let Some(set) = rest.next() {
                halved.push(match rest.next() {
                    Some(other) => set.into_union(other),
                    None => set,
                });
            }
            sets = halved;
        }
        sets.pop().unwrap_or_default()
    }

    /// Removes the paths of the other set.
    pub fn subtract(&mut self, other: &Set) {
        self.remove_all(other, false);
    }

    /// Removes the paths of the other set and all paths below them.
    pub fn subtract_recursive(&mut self, other: &Set) {
        self.remove_all(other, true);
    }

    fn remove_all(&mut self, other: &Set, recursive: bool) {
        if other.is_empty() {
            return;
        }
        self.nodes.retain_mut(|(element, node)| {
            let Some(removed) = other.node(element) else { return true };
            if removed.member && recursive {
                return false;
            }
            node.member &= !removed.member;
            node.below.remove_all(&removed.below, recursive);
            !node.is_empty()
        });
    }

    /// The paths that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Set) -> Set {
        let (smaller, larger) =
            if self.nodes.len() <= other.nodes.len() { (self, other) } else { (other, self) };
        if smaller.nodes.len() < larger.nodes.len() / 8 {
            let nodes = smaller.nodes.iter().filter_map(|(element, a)| {
                let b = larger.node(element)?;
                let node = Node { member: a.member && b.member, below: a.below.intersection(&b.below) };
                (!node.is_empty()).then(|| (element.clone(), node))
            });
            return Set { nodes: nodes.collect() };
        }
        self.combine(other, &|a, b| match (a, b) {
            (Some(a), Some(b)) => {
                Node { member: a.member && b.member, below: a.below.intersection(&b.below) }
            }
            _ => Node::default(),
        })
    }

    /// Whether the other set contains all paths of this set.
    pub fn is_subset(&self, other: &Set) -> bool {
        self.nodes.iter().all(|(element, node)| {
            other.node(element).is_some_and(|o| (o.member || !node.member) && node.below.is_subset(&o.below))
        })
    }

    /// Combines two sets level by level: `combine_nodes` gets the nodes of both sets at an element.
    fn combine(&self, other: &Set, combine_nodes: &dyn Fn(Option<&Node>, Option<&Node>) -> Node) -> Set {
        let mut nodes = Vec::with_capacity(self.nodes.len().max(other.nodes.len()));
        for (a, b) in pair_sorted(&self.nodes, &other.nodes, |(a, _), (b, _)| a.cmp(b)) {
            let Some((element, _)) = a.or(b) else { continue };
            let node = combine_nodes(a.map(|(_, node)| node), b.map(|(_, node)| node));
            if !node.is_empty() {
                nodes.push((element.clone(), node));
            }
        }
        Set { nodes }
    }

    /// Calls `call` with each path: first the paths of a level, then those below.
    pub fn for_each(&self, call: &mut dyn FnMut(&[Element])) {
        fn below(set: &Set, path: &mut Vec<Element>, call: &mut dyn FnMut(&[Element])) {
            for (element, _) in set.nodes.iter().filter(|(_, node)| node.member) {
                path.push(element.clone());
                call(path);
                path.pop();
            }
            for (element, node) in set.nodes.iter().filter(|(_, node)| !node.below.is_empty()) {
                path.push(element.clone());
                below(&node.below, path, call);
                path.pop();
            }
        }
        below(self, &mut Vec::new(), call);
    }

    /// Encodes the set as `fieldsV1`.
    pub fn to_value(&self) -> Value {
        let entries = self.nodes.iter().map(|(element, node)| {
            let mut below = node.below.to_value();
            if let (true, Value::Object(map)) = (node.member && !node.below.is_empty(), &mut below) {
                map.insert(".".to_owned(), Value::Object(Map::new()));
            }
            (element.name(), below)
        });
        Value::Object(entries.collect())
    }

    /// Decodes `fieldsV1`. Elements of unknown kinds are skipped.
    ///
    /// # Errors
    ///
    /// A malformed name, or a value that is neither a map nor null.
    pub fn from_value(value: &Value) -> Result<Self, MalformedElement> {
        let mut set = Set::default();
        let Value::Object(map) = value else {
            return if value.is_null() { Ok(set) } else { Err(MalformedElement(value.to_string())) };
        };
        let mut nodes: Vec<(Element, Node)> = Vec::with_capacity(map.len());
        for (name, below) in map.iter().filter(|(name, _)| *name != ".") {
            let Some(element) = Element::parse(name)? else { continue };
            let member = below.as_object().is_none_or(|map| map.is_empty() || map.contains_key("."));
            let node = Node { member, below: Set::from_value(below)? };
            if !node.is_empty() {
                nodes.push((element, node));
            }
        }
        // The map is sorted by the text of names, and the set by the values of elements.
        if !nodes.is_sorted_by(|(a, _), (b, _)| a < b) {
            nodes.sort_by(|(a, _), (b, _)| a.cmp(b));
        }
        let mut nodes = nodes.into_iter().peekable();
        while let Some((element, mut node)) = nodes.next() {
            // Names with different spellings may denote one element.
            let mut below = Vec::new();
            while let Some((_, same)) = nodes.next_if(|(next, _)| *next == element) {
                node.member |= same.member;
                below.push(same.below);
            }
            if !below.is_empty() {
                below.push(node.below);
                node.below = Set::union_all(below);
            }
            set.nodes.push((element, node));
        }
        Ok(set)
    }
}

/// Prints one path on each line.
impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Vec::new();
        self.for_each(&mut |path| lines.push(path_text(path)));
        f.write_str(&lines.join("\n"))
    }
}

/// Pairs the items of two sorted sequences that are equal by `compare`. An item without an equal item in the
/// other sequence comes alone.
pub(crate) fn pair_sorted<A, B>(
    left: impl IntoIterator<Item = A>,
    right: impl IntoIterator<Item = B>,
    compare: impl Fn(&A, &B) -> Ordering,
) -> impl Iterator<Item = (Option<A>, Option<B>)> {
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    std::iter::from_fn(move || {
        let order = match (left.peek(), right.peek()) {
            (Some(a), Some(b)) => compare(a, b),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return None,
        };
        Some((left.next_if(|_| order.is_le()), right.next_if(|_| order.is_ge())))
    })
}

/// A path as messages show it: `.spec.containers[name="app"].image`. Long elements are shortened.
pub fn path_text(path: &[Element]) -> String {
    path.iter().map(|element| shorten_name(&element.to_string()).into_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn set(value: Value) -> Set {
        Set::from_value(&value).unwrap()
    }

    fn difference(a: &Set, b: &Set) -> Set {
        let mut difference = a.clone();
        difference.subtract(b);
        difference
    }

    fn recursive_difference(a: &Set, b: &Set) -> Set {
        let mut difference = a.clone();
        difference.subtract_recursive(b);
        difference
    }

    #[test]
    fn field_set_operations_agree() {
        let a = set(json!({"f:data": {".": {}, "f:k": {}, "f:l": {}}, "f:spec": {}}));
        let b = set(json!({"f:data": {"f:k": {}, "f:m": {}}, "f:spec": {"f:x": {}}}));
        for (operation, got, expected) in [
            (
                "union",
                a.union(&b),
                json!({"f:data": {".": {}, "f:k": {}, "f:l": {}, "f:m": {}}, "f:spec": {".": {}, "f:x": {}}}),
            ),
            ("intersection", a.intersection(&b), json!({"f:data": {"f:k": {}}})),
            ("difference", difference(&a, &b), json!({"f:data": {".": {}, "f:l": {}}, "f:spec": {}})),
            ("difference", difference(&b, &a), json!({"f:data": {"f:m": {}}, "f:spec": {"f:x": {}}})),
            ("recursive", recursive_difference(&b, &a), json!({})),
            (
                "recursive",
                recursive_difference(&a, &b),
                json!({"f:data": {".": {}, "f:l": {}}, "f:spec": {}}),
            ),
        ] {
            assert_eq!(got.to_value(), expected, "{operation}");
        }
        for (a, b) in [(&a, &b), (&b, &a), (&a, &a)] {
            assert_eq!(a.clone().into_union(b.clone()), a.union(b));
            assert_eq!(Set::new().into_union(b.clone()), *b);
        }
        assert!(a.intersection(&b).is_subset(&a) && a.intersection(&b).is_subset(&b) && !a.is_subset(&b));
        assert_eq!(a.len(), 4);
    }

    #[test]
    fn duplicate_fieldsv1_element_spellings_merge_in_almost_linear_time() {
        // A pairwise union would copy all previous elements each time, and take minutes.
        let count = 20_000;
        let mut text = String::from("{");
        for i in 0..count {
            let spaces = " ".repeat(i % 150);
            let (before, after) = (&spaces, " ".repeat(i / 150));
            text.push_str(&format!(r#""k:{{{before}\"a\":{after}1}}":{{"f:{i}":{{}}}},"#));
        }
        text.push_str(r#""f:x":{}}"#);
        let set = set(serde_json::from_str(&text).unwrap());
        assert_eq!((set.nodes().count(), set.len()), (2, count + 1));
    }

    #[test]
    fn field_set_intersection_is_symmetric_for_different_sizes() {
        let names = |from: usize, to: usize| -> Set {
            let map: Map<String, Value> =
                (from..to).map(|i| (format!("f:{i:04}"), json!({"f:x": {}}))).collect();
            set(json!({"f:data": map}))
        };
        let (large, small) = (names(0, 1_000), names(990, 1_010));
        assert_eq!(large.intersection(&small), names(990, 1_000));
        assert_eq!(small.intersection(&large), names(990, 1_000));
    }

    #[test]
    fn fieldsv1_round_trips() {
        let text = json!({
            "f:metadata": {"f:finalizers": {".": {}, "v:\"example.com/one\"": {}}},
            "f:spec": {"f:ports": {"k:{\"port\":443,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}},
                                   "k:{\"port\":80,\"protocol\":\"TCP\"}": {"f:name": {}}}},
        });
        assert_eq!(set(text.clone()).to_value(), text);
        assert_eq!(
            set(text).to_string(),
            ".metadata.finalizers\n.metadata.finalizers[=\"example.com/one\"]\n\
             .spec.ports[port=443,protocol=\"TCP\"]\n.spec.ports[port=80,protocol=\"TCP\"].name\n\
             .spec.ports[port=443,protocol=\"TCP\"].port"
        );
        assert!(set(json!({})).is_empty() && set(Value::Null).is_empty());
        assert!(Set::from_value(&json!({"spec": {}})).is_err());
        assert!(Set::from_value(&json!([])).is_err());
    }
}
