//! The expected cost of a request: whether it is heavy, and how much memory it takes.
//!
//! # Contract
//!
//! [`heavy_bytes`] uses the length and density of the body, the size of the named stored object and the objects that a
//! list examines and returns. It takes time proportional to the body, or to the objects of a list that an I/O thread
//! handles, and uses no parser. The costs of values are those of the decode limit, which also stops requests that the
//! estimate misses, such as long lists of nulls. For binary formats the estimate assumes the densest content. A small
//! custom object may get large defaults: each of its values counts as one that gets the largest defaults of its schema.
//!
//! A list that may read an old revision from the store is always heavy: the number and size of its objects are not
//! known.

use apimachinery::codec::Cost;

use crate::negotiate::{self, BodySyntax};
use crate::query::Query;
use crate::request_context::RequestContext;
use verbs::STORE_PAGE_COST;

/// Maximum number of values in a body that an I/O thread handles: about 0.5 ms for the costliest kinds.
const MAX_INLINE_VALUES: usize = 512;
/// Maximum size of a text body that an I/O thread handles, in bytes.
const MAX_INLINE_TEXT_BYTES: usize = 32 << 10;
/// Maximum size of a binary body that an I/O thread handles, in bytes: every second byte may begin a value.
const MAX_INLINE_BINARY_BYTES: usize = 4 << 10;
/// Maximum size of a stored object that an I/O thread handles, in bytes.
const MAX_INLINE_OBJECT_BYTES: usize = 64 << 10;
/// Maximum size of the defaults of a custom object that an I/O thread handles, in bytes.
const MAX_INLINE_DEFAULT_BYTES: usize = 1 << 20;
/// Maximum size of the defaults that the schema may add to a stored object that an I/O thread changes, in bytes. Stored
/// objects have defaults already, unless their schema has changed.
const MAX_INLINE_ADDED_DEFAULT_BYTES: usize = 16 << 20;
/// Minimum size of a value in a stored object, in bytes.
const STORED_VALUE_BYTES: usize = 2;
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
    let parts =
        [heavy_body_bytes(context, body), heavy_default_bytes(context, body), heavy_object_bytes(context)];
    parts.into_iter().flatten().reduce(|sum, bytes| sum + bytes)
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

/// Estimates the memory of the defaults of a custom object that a request writes.
fn heavy_default_bytes(context: &RequestContext, body: &[u8]) -> Option<usize> {
    let attributes = &context.info.attributes;
    if !matches!(attributes.verb.as_str(), "create" | "update" | "patch") {
        return None;
    }
    let collection = context.stored_collection()?;
    let bytes_of_value = collection.kind.schema.definition()?.default_bytes();
    if bytes_of_value == 0 {
        return None;
    }
    let values = match BodySyntax::from_headers(&context.head.headers) {
        BodySyntax::JsonPatch if has_copy_operation(body) => usize::MAX,
        BodySyntax::Yaml if has_alias(body) => usize::MAX,
        BodySyntax::Binary => body.len(),
        _ => count(body, |byte| matches!(byte, b'{' | b'[' | b',' | b':' | b'\n' | b'\r')),
    };
    let of_body = values.saturating_mul(bytes_of_value);
    let of_stored = match attributes.verb.as_str() {
        "patch" => stored_bytes(context).unwrap_or_default() / STORED_VALUE_BYTES * bytes_of_value,
        _ => 0,
    };
    let is_heavy = of_body > MAX_INLINE_DEFAULT_BYTES || of_stored > MAX_INLINE_ADDED_DEFAULT_BYTES;
    is_heavy.then(|| of_body.saturating_add(of_stored).min(context.api_state().body_limits.tree_bytes))
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
            list?.is_heavy().then_some(items)
        }
        _ => {
            let bytes = stored_bytes(context)?;
            (bytes > MAX_INLINE_OBJECT_BYTES).then_some(bytes * OBJECT_FACTOR)
        }
    }
}

/// Returns the size of the named stored object; None without a name, and if the object is absent or not loaded.
fn stored_bytes(context: &RequestContext) -> Option<usize> {
    let attributes = &context.info.attributes;
    if attributes.name.is_empty() {
        return None;
    }
    let collection = context.stored_collection()?;
    let key = collection.kind.key(&attributes.namespace, &attributes.name);
    Some(collection.items.get_now(&key)??.value().len())
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

/// Whether the response to a GET is the stored JSON.
fn returns_stored_json(context: &RequestContext) -> bool {
    !context.response_options.pretty && negotiate::accepts_stored_json(&context.head.headers)
}

#[cfg(test)]
mod tests {
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
    fn cost_grows_with_objects_more_than_with_text() {
        let text = body_cost(&[b'x'; 100_000], false).unwrap();
        let objects = body_cost("{},".repeat(33_333).as_bytes(), false).unwrap();
        assert!(objects > 50 * text);
    }
}
