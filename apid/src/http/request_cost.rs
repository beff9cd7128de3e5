//! The expected cost of a request: decides between an I/O thread and the work pool.
//!
//! # Contract
//!
//! [`expected_cost`] uses the length and density of the body, the size of the named stored object and the
//! number of objects in the collection. It takes time proportional to the body and uses no parser. The costs
//! of values are those of the decode budget, which also stops what the estimate misses, such as long lists of
//! nulls. For binary formats the estimate assumes the densest content.

use std::sync::Arc;

use apimachinery::codec::Cost;
use kinds::Storage;

use super::negotiate::{self, BodySyntax};
use super::request_context::RequestContext;
use crate::server_state::Collection;

/// Maximum number of values in a body for an I/O thread: about 0.5 ms for the costliest kinds.
const MAX_INLINE_VALUES: usize = 512;
/// Maximum size of a text body for an I/O thread, in bytes.
const MAX_INLINE_TEXT_BYTES: usize = 32 << 10;
/// Maximum size of a binary body for an I/O thread, in bytes: every second byte may begin a value.
const MAX_INLINE_BINARY_BYTES: usize = 4 << 10;
/// Maximum size of a stored object for an I/O thread, in bytes.
const MAX_INLINE_OBJECT_BYTES: usize = 64 << 10;
/// Maximum number of objects that an I/O thread lists.
const MAX_INLINE_LIST_ITEMS: usize = 1_000;

/// Memory per byte of a text body: the body, the tree and the encoded object.
const TEXT_FACTOR: usize = 4;
/// Memory per byte of a binary body that consists of empty messages.
const BINARY_FACTOR: usize = 500;
/// Memory per byte that the aliases of a YAML body repeat.
const ALIAS_FACTOR: usize = 8;
/// Memory per byte of a stored object: its tree, the changed tree and the encoded object.
const OBJECT_FACTOR: usize = 20;
/// Memory per listed object, without the object in the watch cache.
const ITEM_BYTES: usize = 16;

/// Estimates the memory cost of a request in bytes; None for requests that an I/O thread handles.
pub(super) fn expected_cost(context: &RequestContext, body: &[u8], syntax: BodySyntax) -> Option<usize> {
    let server_state = &context.server_state;
    let body = match syntax {
        BodySyntax::JsonPatch if has_copy_operation(body) => Some(server_state.body_limits.tree_bytes),
        BodySyntax::Yaml if has_alias(body) => {
            // Expanded aliases are limited to the maximum body size.
            Some(server_state.body_limits.bytes * ALIAS_FACTOR)
        }
        _ => body_cost(body, syntax == BodySyntax::Binary),
    };
    let stored = stored_cost(context);
    match (body, stored) {
        (None, None) => None,
        (body, stored) => Some(body.unwrap_or_default() + stored.unwrap_or_default()),
    }
}

/// Whether a YAML body may contain an alias, which repeats a tree in a few bytes.
fn has_alias(body: &[u8]) -> bool {
    memchr::memchr2(b'*', b'&', body).is_some()
}

/// Whether a JSON Patch may contain a `copy` operation, which doubles a document in a few bytes.
///
/// A `\u` escape may hide the word, so that every escape counts.
fn has_copy_operation(patch: &[u8]) -> bool {
    [&b"copy"[..], b"\\u"].iter().any(|word| memchr::memmem::find(patch, word).is_some())
}

fn body_cost(body: &[u8], is_binary: bool) -> Option<usize> {
    if is_binary {
        return (body.len() > MAX_INLINE_BINARY_BYTES).then(|| body.len() * BINARY_FACTOR);
    }
    let collections = count(body, |byte| matches!(byte, b'{' | b'['));
    let scalars = count(body, |byte| matches!(byte, b',' | b':' | b'\n' | b'\r'));
    let light = collections + scalars <= MAX_INLINE_VALUES && body.len() <= MAX_INLINE_TEXT_BYTES;
    (!light).then(|| {
        collections * Cost::EMPTY_ITEM.tree_bytes
            + scalars * Cost::NAMED_SCALAR.tree_bytes
            + body.len() * TEXT_FACTOR
    })
}

/// Counts matching bytes, 255 at a time, so that the compiler can vectorize with one-byte counters.
fn count(body: &[u8], is_counted: impl Fn(u8) -> bool) -> usize {
    let count_some = |some: &[u8]| some.iter().map(|byte| u8::from(is_counted(*byte))).sum::<u8>();
    body.chunks(255).map(|some| usize::from(count_some(some))).sum()
}

fn stored_cost(context: &RequestContext) -> Option<usize> {
    let a = &context.info.attributes;
    match a.verb.as_str() {
        // Watches are encoded event by event. A stored object is copied in chunks.
        "watch" => None,
        "get" if a.subresource.is_empty() && is_copied(context) => None,
        "list" | "deletecollection" => {
            let items = stored_collection(context)?.items.len_now()?;
            (items > MAX_INLINE_LIST_ITEMS).then_some(items * ITEM_BYTES)
        }
        _ if a.name.is_empty() => None,
        _ => {
            let collection = stored_collection(context)?;
            let key = collection.resource.key(&a.namespace, &a.name);
            let bytes = collection.items.get_now(&key)??.value().len();
            (bytes > MAX_INLINE_OBJECT_BYTES).then_some(bytes * OBJECT_FACTOR)
        }
    }
}

/// Whether the response to a GET is the stored JSON.
fn is_copied(context: &RequestContext) -> bool {
    !context.response_options.pretty && negotiate::accepts_stored_json(&context.head.headers)
}

fn stored_collection(context: &RequestContext) -> Option<&Arc<Collection>> {
    let resource = context.resource.as_ref()?;
    let is_stored = matches!(resource.kind.storage(), Storage::Stored | Storage::Shared(_));
    is_stored.then(|| context.kinds.collection(resource))?
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
    fn cost_grows_with_objects_more_than_with_text() {
        let text = body_cost(&[b'x'; 100_000], false).unwrap();
        let objects = body_cost("{},".repeat(33_333).as_bytes(), false).unwrap();
        assert!(objects > 50 * text);
    }
}
