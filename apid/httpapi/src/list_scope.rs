//! The objects that a list examines and returns: the basis of its seats and of its cost.
//!
//! # Contract
//!
//! A [`ListScope`] is computed once for a request. The work of a list depends on its scope, its limit and its selectors: a
//! list without a selector stops at its limit and counts the remaining objects; a selector compares the labels of every
//! object in scope.

use apimachinery::attributes::{Attributes, ParsedSelector};
use flowcontrol::ListSize;
use verbs::Collection;

use crate::query::Query;

/// Maximum number of objects that an I/O thread lists.
const MAX_INLINE_LIST_ITEMS: usize = 1_000;

/// Work of examining an object without a selector: the unit of [`ListScope::work`], about 15 ns.
const EXAMINE_WORK: usize = 1;
/// Work of one comparison of a selector with an object, in the unit of [`EXAMINE_WORK`].
const COMPARISON_WORK: usize = 2;
/// Work of returning an object: reading it from the cache and copying it.
const RETURN_WORK: usize = 32;
/// Stored bytes that one unit of work decodes. A selector decodes an object that was not read before.
const BYTES_PER_DECODE_WORK: usize = 16;
/// Maximum work of a list that an I/O thread handles: about 0.5 ms.
const MAX_INLINE_LIST_WORK: usize = MAX_INLINE_LIST_ITEMS * (EXAMINE_WORK + RETURN_WORK);

/// The properties of a list request that decide its work.
pub(super) struct ListScope {
    /// Number of objects in scope. If the scope has more than [`MAX_INLINE_LIST_ITEMS`] objects, this is the
    /// number of all objects of the kind.
    objects: usize,
    /// Stored bytes of the objects in scope; in a large scope, of the first [`MAX_INLINE_LIST_ITEMS`] objects and one
    /// more.
    bytes: usize,
    /// Stored bytes of the objects in scope that are not decoded yet; a selector needs them decoded. In a large
    /// scope, only the first [`MAX_INLINE_LIST_ITEMS`] objects and one more are counted.
    undecoded_bytes: usize,
    /// Number of comparisons of the selectors with one object; 0 without a selector.
    comparisons: usize,
    /// Maximum number of returned objects; None without a limit.
    limit: Option<usize>,
}

impl ListScope {
    /// Returns the scope of a list request; None while the collection is not loaded.
    pub(super) fn new(attributes: &Attributes, query: &Query, collection: &Collection) -> Option<Self> {
        let comparisons = comparisons(attributes);
        let snapshot = collection.items.snapshot_now()?;
        let resource = collection.kind.internal();
        let key_prefix = match (attributes.namespace.as_str(), attributes.name.as_str()) {
            ("", "") => resource.key_prefix.clone(),
            (namespace, name) => resource.key(namespace, name),
        };
        let (mut objects, mut bytes, mut undecoded_bytes) = (0, 0, 0);
        for item in snapshot.scope(&key_prefix, "").take(MAX_INLINE_LIST_ITEMS + 1) {
            objects += 1;
            bytes += item.value().len();
            undecoded_bytes += if item.is_decoded() { 0 } else { item.value().len() };
        }
        if objects > MAX_INLINE_LIST_ITEMS {
            objects = snapshot.len();
        }
        // A list of the state at resourceVersion 0 ignores the limit.
        let has_limit = attributes.verb == "list" && query.text("resourceVersion") != "0";
        let limit = query.first("limit").filter(|_| has_limit).and_then(|limit| limit.parse().ok());
        let limit = limit.filter(|limit| *limit > 0);
        Some(ListScope { objects, bytes, undecoded_bytes, comparisons, limit })
    }

    /// Returns the number of objects that the list examines, and their stored bytes.
    pub(super) fn size(&self) -> ListSize {
        let objects = if self.comparisons > 0 { self.objects } else { self.returned() };
        // A large scope counts the bytes of its first objects only.
        let counted = self.objects.clamp(1, MAX_INLINE_LIST_ITEMS + 1);
        ListSize { objects, bytes: self.bytes / counted * objects }
    }

    /// Returns the number of returned objects.
    pub(super) fn returned(&self) -> usize {
        self.limit.map_or(self.objects, |limit| limit.min(self.objects))
    }

    /// Whether the list takes too long for an I/O thread.
    pub(super) fn is_heavy(&self) -> bool {
        self.work() > MAX_INLINE_LIST_WORK
    }

    /// Estimates the work of the list, in units of [`EXAMINE_WORK`].
    fn work(&self) -> usize {
        let decoding = if self.comparisons == 0 { 0 } else { self.undecoded_bytes / BYTES_PER_DECODE_WORK };
        let examining = self.objects * (EXAMINE_WORK + self.comparisons * COMPARISON_WORK);
        examining + decoding + self.returned() * RETURN_WORK
    }
}

/// Returns the number of comparisons of all selectors with one object.
///
/// The values of a requirement are sorted, so a binary search compares about the logarithm of their number.
fn comparisons(attributes: &Attributes) -> usize {
    let comparisons_of = |selector: &ParsedSelector| match selector {
        ParsedSelector::Requirements(requirements) => {
            requirements.iter().map(|requirement| 1 + bits(requirement.values.len())).sum()
        }
        // The verb rejects the request.
        ParsedSelector::Unparsable(_) => 0,
    };
    let by_field: usize = comparisons_of(&attributes.field_selector);
    let by_label: usize = comparisons_of(&attributes.label_selector);
    by_field + by_label
}

/// Returns the number of bits of a number: the maximum number of comparisons of a binary search.
fn bits(number: usize) -> usize {
    usize::try_from(usize::BITS - number.leading_zeros()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use apimachinery::selector::label::LabelSelector;

    use super::*;

    /// Whether an I/O thread handles a list with these properties.
    fn is_inline(objects: usize, comparisons: usize, limit: Option<usize>) -> bool {
        let scope = ListScope { objects, bytes: 0, undecoded_bytes: 0, comparisons, limit };
        scope.work() <= MAX_INLINE_LIST_WORK
    }

    #[test]
    fn list_work_depends_on_scope_limit_and_selectors() {
        for (objects, comparisons, limit, expected) in [
            (1_000, 0, None, true),
            (1_001, 0, None, false),
            (10_000, 0, Some(500), true),
            (10_000, 0, Some(1_000), false),
            (50_000, 0, Some(1), false),
            (1_000, 2, Some(500), true),
            (10_000, 2, Some(500), false),
            (1_000, 50, None, false),
            (100, 50, None, true),
            (100, 500, None, false),
        ] {
            let inline = is_inline(objects, comparisons, limit);
            assert_eq!(inline, expected, "{objects} {comparisons} {limit:?}");
        }
        let scope = |undecoded_bytes, comparisons| ListScope {
            objects: 10,
            bytes: undecoded_bytes,
            undecoded_bytes,
            comparisons,
            limit: None,
        };
        assert!(scope(1 << 20, 1).work() > MAX_INLINE_LIST_WORK, "a selector decodes");
        assert!(scope(1 << 20, 0).work() <= MAX_INLINE_LIST_WORK);
        assert_eq!(ListScope { limit: Some(3), ..scope(0, 0) }.returned(), 3);
    }

    #[test]
    fn comparisons_of_selector_grow_with_requirements_and_values() {
        let comparisons_of = |text: &str| {
            let selector = LabelSelector::parse(text).unwrap();
            comparisons(&Attributes { label_selector: selector.requirements(), ..Attributes::default() })
        };
        assert_eq!(
            (comparisons_of(""), comparisons_of("a"), comparisons_of("a,b"), comparisons_of("a=1")),
            (0, 1, 2, 2)
        );
        let values: Vec<String> = (0..1_000).map(|value| value.to_string()).collect();
        assert_eq!(comparisons_of(&format!("a in ({})", values.join(","))), 11);
    }
}
