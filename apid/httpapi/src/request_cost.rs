//! The size of a request: the objects of a list, and whether the request is heavy.
//!
//! # Contract
//!
//! [`heavy_bytes`] uses the length and density of the body, the size of the named stored object and the objects that a
//! list examines and returns. It takes time proportional to the body, or to the objects of a list that an I/O thread
//! handles, and uses no parser. The costs of values are those of the decode limit, which also stops requests that the
//! estimate misses, such as long lists of nulls. For binary formats the estimate assumes the densest content.
//!
//! [`ListScope`] is computed once for a request, for its seats and for its cost.
//!
//! The work of a list depends on its scope, its limit and its selectors: a list without a selector stops at its
//! limit and counts the remaining objects; a selector compares the labels of every object in scope. A list that may
//! read an old revision from the store always has a cost: the number and size of its objects are not known.

use std::sync::Arc;

use apimachinery::attributes::{Attributes, ParsedSelector};
use apimachinery::codec::Cost;
use flowcontrol::ListSize;
use kinds::Storage;

use crate::negotiate::{self, BodySyntax};
use crate::query::Query;
use crate::request_context::RequestContext;
use verbs::Collection;
use verbs::STORE_PAGE_COST;

/// Maximum number of values in a body that an I/O thread handles: about 0.5 ms for the costliest kinds.
const MAX_INLINE_VALUES: usize = 512;
/// Maximum size of a text body that an I/O thread handles, in bytes.
const MAX_INLINE_TEXT_BYTES: usize = 32 << 10;
/// Maximum size of a binary body that an I/O thread handles, in bytes: every second byte may begin a value.
const MAX_INLINE_BINARY_BYTES: usize = 4 << 10;
/// Maximum size of a stored object that an I/O thread handles, in bytes.
const MAX_INLINE_OBJECT_BYTES: usize = 64 << 10;
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

/// Bytes of memory per byte of a text body: the body, the tree and the encoded object.
const TEXT_FACTOR: usize = 4;
/// Bytes of memory per byte of a binary body that consists of empty messages.
const BINARY_FACTOR: usize = 500;
/// Bytes of memory per byte that the aliases of a YAML body repeat.
const ALIAS_FACTOR: usize = 8;
/// Bytes of memory per byte of a stored object: its tree, the changed tree and the encoded object.
const OBJECT_FACTOR: usize = 20;
/// Memory in bytes per listed object, without the object in the watch cache.
const ITEM_BYTES: usize = 16;

/// Estimates the memory of a heavy request in bytes; None for requests that an I/O thread handles.
pub(super) fn heavy_bytes(context: &RequestContext, body: &[u8]) -> Option<usize> {
    match (heavy_body_bytes(context, body), heavy_object_bytes(context)) {
        (None, None) => None,
        (body, objects) => Some(body.unwrap_or_default() + objects.unwrap_or_default()),
    }
}

fn heavy_body_bytes(context: &RequestContext, body: &[u8]) -> Option<usize> {
    if body.is_empty() {
        return None;
    }
    let api_state = context.api_state();
    match BodySyntax::from_headers(&context.head.headers) {
        BodySyntax::JsonPatch if has_copy_operation(body) => Some(api_state.body_limits.tree_bytes),
        BodySyntax::Yaml if has_alias(body) => {
            // Expanded aliases are limited to the maximum body size.
            Some(api_state.body_limits.bytes * ALIAS_FACTOR)
        }
        syntax => body_cost(body, syntax == BodySyntax::Binary),
    }
}

/// Whether a YAML body may contain an anchor or alias. A short alias can repeat a large tree.
fn has_alias(body: &[u8]) -> bool {
    memchr::memchr2(b'*', b'&', body).is_some()
}

/// Whether a JSON Patch may contain a `copy` operation, which doubles a document in a few bytes.
///
/// A `\u` escape may stand for a letter of `copy`, so a patch with any such escape counts as a patch that may
/// copy.
fn has_copy_operation(patch: &[u8]) -> bool {
    [&b"copy"[..], b"\\u"].iter().any(|word| memchr::memmem::find(patch, word).is_some())
}

fn body_cost(body: &[u8], is_binary: bool) -> Option<usize> {
    if is_binary {
        return (body.len() > MAX_INLINE_BINARY_BYTES).then(|| body.len() * BINARY_FACTOR);
    }
    let collections = count(body, |byte| matches!(byte, b'{' | b'['));
    let scalars = count(body, |byte| matches!(byte, b',' | b':' | b'\n' | b'\r'));
    let is_small = collections + scalars <= MAX_INLINE_VALUES && body.len() <= MAX_INLINE_TEXT_BYTES;
    (!is_small).then(|| {
        collections * Cost::EMPTY_ITEM.tree_bytes
            + scalars * Cost::NAMED_SCALAR.tree_bytes
            + body.len() * TEXT_FACTOR
    })
}

/// Counts matching bytes, 255 at a time, so that the compiler can vectorize with one-byte counters.
fn count(body: &[u8], is_counted: impl Fn(u8) -> bool) -> usize {
    let count_part = |part: &[u8]| part.iter().map(|byte| u8::from(is_counted(*byte))).sum::<u8>();
    body.chunks(255).map(|part| usize::from(count_part(part))).sum()
}

fn heavy_object_bytes(context: &RequestContext) -> Option<usize> {
    let attributes = &context.info.attributes;
    match attributes.verb.as_str() {
        // Watches are encoded event by event. A stored object is copied in chunks.
        "watch" => None,
        "get" if attributes.subresource.is_empty() && returns_stored_json(context) => None,
        "list" | "deletecollection" => {
            let list = context.list_scope();
            let items = list.map_or(0, |list| list.returned() * ITEM_BYTES);
            if may_read_store(&context.query) {
                return Some(STORE_PAGE_COST + items);
            }
            (list?.work() > MAX_INLINE_LIST_WORK).then_some(items)
        }
        _ if attributes.name.is_empty() => None,
        _ => {
            let collection = stored_collection(context)?;
            let key = collection.resource.key(&attributes.namespace, &attributes.name);
            let bytes = collection.items.get_now(&key)??.value().len();
            (bytes > MAX_INLINE_OBJECT_BYTES).then_some(bytes * OBJECT_FACTOR)
        }
    }
}

/// Whether a list may read objects at an old revision from the store. A continue token contains such a revision.
fn may_read_store(query: &Query) -> bool {
    let is_at_version = !matches!(query.text("resourceVersion"), "" | "0");
    !query.text("continue").is_empty()
        || match query.text("resourceVersionMatch") {
            "Exact" => is_at_version,
            "" => is_at_version && !matches!(query.text("limit"), "" | "0"),
            _ => false,
        }
}

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
    /// Returns the scope of a list request; None for resources without stored objects, and while the collection is not
    /// loaded.
    pub(super) fn for_request(context: &RequestContext) -> Option<Self> {
        let collection = stored_collection(context)?;
        let attributes = &context.info.attributes;
        let comparisons = comparisons(attributes);
        let snapshot = collection.items.snapshot_now()?;
        let resource = &collection.resource;
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
        let has_limit = attributes.verb == "list" && context.query.text("resourceVersion") != "0";
        let limit = context.query.first("limit").filter(|_| has_limit).and_then(|limit| limit.parse().ok());
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
    fn returned(&self) -> usize {
        self.limit.map_or(self.objects, |limit| limit.min(self.objects))
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

/// Whether the response to a GET is the stored JSON.
fn returns_stored_json(context: &RequestContext) -> bool {
    !context.response_options.pretty && negotiate::accepts_stored_json(&context.head.headers)
}

pub(super) fn stored_collection(context: &RequestContext) -> Option<&Arc<Collection>> {
    let resource = context.resource.as_ref()?;
    let is_stored = matches!(resource.kind.storage(), Storage::Stored | Storage::Shared(_));
    is_stored.then(|| context.kinds.collection(resource))?
}

#[cfg(test)]
mod tests {
    use apimachinery::selector::label::LabelSelector;

    use super::*;

    #[test]
    fn typical_body_has_no_pool_cost() {
        let map = format!(r#"{{"metadata":{{"name":"a"}},"data":{{"k":"{}"}}}}"#, "x".repeat(1000));
        assert_eq!(body_cost(map.as_bytes(), false), None);
        assert_eq!(body_cost(b"", true), None);
    }

    #[test]
    fn json_patch_with_escaped_copy_operation_is_detected() {
        assert!(has_copy_operation(br#"[{"op":"copy","from":"/a","path":"/b"}]"#));
        assert!(has_copy_operation(br#"[{"op":"\u0063opy","from":"/a","path":"/b"}]"#));
        assert!(!has_copy_operation(br#"[{"op":"replace","path":"/b","value":1}]"#));
    }

    #[test]
    fn long_or_dense_body_has_pool_cost() {
        assert!(body_cost(&[b'x'; MAX_INLINE_TEXT_BYTES + 1], false).is_some());
        assert!(body_cost("{},".repeat(MAX_INLINE_VALUES).as_bytes(), false).is_some());
        assert!(body_cost("- a\r".repeat(2 * MAX_INLINE_VALUES).as_bytes(), false).is_some());
        assert!(has_alias(b"a: &x [1]\nb: *x") && !has_alias(b"a: 1"));
        assert!(body_cost("- a\n".repeat(2 * MAX_INLINE_VALUES).as_bytes(), false).is_some());
        assert!(body_cost(&[0; MAX_INLINE_BINARY_BYTES + 1], true).is_some());
    }

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
    fn list_at_an_old_revision_may_read_the_store() {
        for (query, expected) in [
            ("", false),
            ("limit=500", false),
            ("resourceVersion=0&limit=500", false),
            ("resourceVersion=7", false),
            ("resourceVersion=7&limit=500&resourceVersionMatch=NotOlderThan", false),
            ("resourceVersion=7&limit=500", true),
            ("resourceVersion=7&resourceVersionMatch=Exact", true),
            ("limit=500&continue=token", true),
        ] {
            assert_eq!(may_read_store(&Query::parse(Some(query))), expected, "{query}");
        }
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

    #[test]
    fn cost_grows_with_objects_more_than_with_text() {
        let text = body_cost(&[b'x'; 100_000], false).unwrap();
        let objects = body_cost("{},".repeat(33_333).as_bytes(), false).unwrap();
        assert!(objects > 50 * text);
    }
}
