//! Encodings of lists, item by item: compact and indented JSON, YAML and CBOR.
//!
//! # Contract
//!
//! The opening, the items and the closing of a list together equal [`Encoding::document`] of the whole list,
//! byte by byte. Items without `kind` need the schema that the list declares for them. JSON has its keys in the order
//! of the type, see [`schema::key_order`]; YAML sorts the keys, and CBOR orders them by its deterministic
//! encoding.

use apimachinery::codec;
use schema::Schema;
use schema::key_order::{Ordered, OrderedFields, key_rank};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::negotiate::Format;

/// The encoding of JSON trees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Encoding {
    /// JSON without white space.
    Compact,
    /// JSON with an indentation of two spaces.
    Indented,
    /// YAML in block style.
    Yaml,
    /// CBOR with its self-describing tag.
    Cbor,
}

/// The bytes before and after the items of an encoded list.
#[derive(Default)]
pub(crate) struct Frame {
    /// Precedes the first item.
    pub(crate) opening: Vec<u8>,
    /// Follows the last item.
    pub(crate) closing: Vec<u8>,
}

/// The indentation of an item in indented JSON.
const ITEM_INDENT: &[u8] = b"    ";

impl Encoding {
    /// Returns the encoding of a format; None for Protobuf, which does not encode trees.
    pub(crate) fn for_format(format: Format, pretty: bool) -> Option<Self> {
        match format {
            Format::Json if pretty => Some(Encoding::Indented),
            Format::Json => Some(Encoding::Compact),
            Format::Yaml => Some(Encoding::Yaml),
            Format::Cbor => Some(Encoding::Cbor),
            Format::Protobuf(_) => None,
        }
    }

    /// Encodes a whole document.
    pub(crate) fn document(self, value: &Value) -> Vec<u8> {
        match self {
            Encoding::Compact => encode_compact(&Ordered::new(value)),
            Encoding::Indented => {
                let mut out = encode_indented(&Ordered::new(value));
                out.push(b'\n');
                out
            }
            Encoding::Yaml => codec::yaml::encode(value),
            Encoding::Cbor => codec::cbor::encode(value),
        }
    }

    /// Encodes a list without its items: an object of `fields` and of the key `array` with `count` items.
    pub(crate) fn frame(self, fields: Map<String, Value>, array: &str, count: usize) -> Frame {
        let precedes = |key: &str| match self {
            Encoding::Cbor => (key.len(), key) < (array.len(), array),
            Encoding::Compact | Encoding::Indented => (key_rank(key), key) < (key_rank(array), array),
            Encoding::Yaml => key < array,
        };
        let (mut before, mut after) = (Map::new(), Map::new());
        for (key, value) in fields {
            let side = if precedes(&key) { &mut before } else { &mut after };
            side.insert(key, value);
        }
        match self {
            Encoding::Compact => {
                let encode = |map| encode_compact(&OrderedFields::new(map));
                let closing = text_closing(&encode(&after), b"}");
                Frame {
                    opening: text_opening(encode(&before), b"", array, b":["),
                    closing: [b"]", closing.as_slice()].concat(),
                }
            }
            Encoding::Indented => {
                let encode = |map| encode_indented(&OrderedFields::new(map));
                let end: &[u8] = if count > 0 { b"\n  ]" } else { b"]" };
                Frame {
                    opening: text_opening(encode(&before), b"\n  ", array, b": ["),
                    closing: [end, &text_closing(&encode(&after), b"\n}"), b"\n"].concat(),
                }
            }
            Encoding::Yaml => {
                let encode = |map: Map<String, Value>| match map.is_empty() {
                    true => Vec::new(),
                    false => codec::yaml::encode(&Value::Object(map)),
                };
                let begin: &[u8] = if count > 0 { b":\n" } else { b": []\n" };
                Frame { opening: [&encode(before), array.as_bytes(), begin].concat(), closing: encode(after) }
            }
            Encoding::Cbor => {
                let (mut opening, mut closing) = (Vec::new(), Vec::new());
                codec::cbor::begin_document(before.len() + 1 + after.len(), &mut opening);
                codec::cbor::write_entries(&before, &mut opening);
                codec::cbor::begin_list(array, count, &mut opening);
                codec::cbor::write_entries(&after, &mut closing);
                Frame { opening, closing }
            }
        }
    }

    /// Appends an item of a list. `schema`: the type of an item without `kind`.
    pub(crate) fn write_item(
        self,
        item: &Value,
        schema: Option<&'static Schema>,
        first: bool,
        out: &mut Vec<u8>,
    ) {
        match self {
            Encoding::Compact => {
                if !first {
                    out.push(b',');
                }
                write_compact(&Ordered::of_type(item, schema), out);
            }
            Encoding::Indented => {
                out.extend_from_slice(if first { b"\n" } else { b",\n" });
                // Strings escape line breaks, so each line break ends a line of the encoding.
                for (i, line) in
                    encode_indented(&Ordered::of_type(item, schema)).split(|byte| *byte == b'\n').enumerate()
                {
                    if i > 0 {
                        out.push(b'\n');
                    }
                    out.extend_from_slice(ITEM_INDENT);
                    out.extend_from_slice(line);
                }
            }
            Encoding::Yaml => out.extend_from_slice(&codec::yaml::encode_item(item)),
            Encoding::Cbor => codec::cbor::write(item, out),
        }
    }
}

/// Encodes a tree as compact JSON.
pub(crate) fn encode_compact(tree: &impl Serialize) -> Vec<u8> {
    let mut out = Vec::new();
    write_compact(tree, &mut out);
    out
}

/// Appends a tree as compact JSON.
pub(crate) fn write_compact(tree: &impl Serialize, out: &mut Vec<u8>) {
    codec::json::encode_into(out, tree);
}

fn encode_indented(value: &impl Serialize) -> Vec<u8> {
    codec::json::encode_pretty(value)
}

/// Removes the end of an encoded JSON object and appends the key of the list in this object.
///
/// `line`: the line break and indentation before the key. `begin`: the bytes between the key and the first item.
fn text_opening(mut object: Vec<u8>, line: &[u8], key: &str, begin: &[u8]) -> Vec<u8> {
    if object == b"{}" {
        object.truncate(1);
    } else {
        // Removes the `}` and, in indented JSON, the line break before it.
        let end = object.len() - if line.is_empty() { 1 } else { 2 };
        object.truncate(end);
        object.push(b',');
    }
    object.extend_from_slice(line);
    object.push(b'"');
    object.extend_from_slice(key.as_bytes());
    object.push(b'"');
    object.extend_from_slice(begin);
    object
}

/// Returns the bytes after a list in a JSON object: entries and end of `object`, or `end` without entries.
fn text_closing(object: &[u8], end: &[u8]) -> Vec<u8> {
    match object {
        b"{}" | [] => end.to_vec(),
        [_, entries @ ..] => [b",", entries].concat(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Compares a list that is encoded by items with the whole document, in all encodings.
    fn check(fields: &Map<String, Value>, array: &str, items: &[Value], schema: Option<&'static Schema>) {
        for encoding in [Encoding::Compact, Encoding::Indented, Encoding::Yaml, Encoding::Cbor] {
            let mut whole = fields.clone();
            whole.insert(array.to_owned(), items.into());
            let Frame { opening, closing } = encoding.frame(fields.clone(), array, items.len());
            let mut out = opening;
            for (i, item) in items.iter().enumerate() {
                encoding.write_item(item, schema, i == 0, &mut out);
            }
            out.extend_from_slice(&closing);
            let want = encoding.document(&Value::Object(whole));
            let (out, want) = (String::from_utf8_lossy(&out), String::from_utf8_lossy(&want));
            assert_eq!(out, want, "{encoding:?} {array} {fields:?}");
        }
    }

    fn fields(value: Value) -> Map<String, Value> {
        let Value::Object(fields) = value else { panic!("not an object") };
        fields
    }

    #[test]
    fn list_encoded_by_items_equals_the_whole_document() {
        let all = fields(json!({
            "apiVersion": "v1", "kind": "ThingList", "metadata": {"resourceVersion": "5", "text": "}\n"},
            "nothing": {}, "zeros": [0],
        }));
        // In the whole document, the items of arrays other than `items` have no type. The keys of these items
        // must therefore be keys without a rank in `schema::key_order`.
        for (array, metadata) in [("items", "metadata"), ("rows", "meta"), ("a", "meta"), ("zz", "meta")] {
            let item = json!({
                metadata: {"name": "a", "labels": {"x": "1", "long-key": "two\nlines\n"}, "empty": {}, "none": []},
                "data": {"text": "quotes \" and\nlines", "number": 1.5, "big": 18_446_744_073_709_551_615_u64},
                "list": [1, [2, {"three": [4]}], "}"],
            });
            for keys in [
                &["apiVersion", "kind", "metadata", "nothing", "zeros"][..],
                &["zeros"],
                &["apiVersion"],
                &[],
            ] {
                let fields = keys.iter().map(|key| ((*key).to_owned(), all[*key].clone())).collect();
                for items in [
                    &[][..],
                    std::slice::from_ref(&item),
                    &[item.clone(), json!("text"), json!({}), item.clone()],
                ] {
                    check(&fields, array, items, None);
                }
            }
        }
    }

    #[test]
    fn table_encoded_by_rows_equals_the_whole_document() {
        let fields = fields(json!({
            "apiVersion": "meta.k8s.io/v1", "kind": "Table", "metadata": {"resourceVersion": "5"},
            "columnDefinitions": [{"type": "string", "name": "Name", "format": "name"}],
        }));
        let object = json!({"metadata": {"uid": "u", "name": "a"}, "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1"});
        let row = json!({"object": object, "conditions": [{"status": "True", "type": "Completed"}], "cells": ["a"]});
        check(&fields, "rows", &[row.clone(), row], Schema::of("meta/v1.TableRow"));
    }
}
