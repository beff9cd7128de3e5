//! Protobuf responses (requirements D-PB): objects and documents in their envelope, events in frames.
//!
//! # Contract
//!
//! The `apiVersion` and `kind` of an object select its message; only built-in kinds have one. An object is
//! encoded from its tree. A bounded cache keeps the messages of objects in the watch cache, so frequent
//! lists only copy bytes, as in JSON.
//!
//! # Reference
//!
//! A frame is its length in four bytes, big-endian, and a `WatchEvent` without an envelope. The object of the
//! event has an envelope.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use bytes::Bytes;
use kinds::Kind;
use moka::sync::Cache;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use schema::{Schema, write_message};
use serde_json::Value;

use crate::response::list_encoding::Frame;
use verbs::Item;
use verbs::envelope;

/// Whether a kind has its own Protobuf message; custom kinds have none.
pub(crate) fn has_message(resource: &Kind) -> bool {
    let (kind, type_name) = (resource.name(), resource.schema.type_name());
    let package = type_name.and_then(|name| name.strip_suffix(kind));
    package.is_some_and(|package| package.ends_with('.'))
}

/// Encodes an object in its envelope.
///
/// # Errors
///
/// 500: the type has no Protobuf message. Negotiation excludes this case.
pub(crate) fn write_object(object: &Object, out: &mut Vec<u8>) -> Result<(), Status> {
    let schema = Schema::of_kind(object.api_version(), object.kind())
        .ok_or_else(|| Status::internal(format!("{} has no Protobuf encoding", object.kind())))?;
    envelope::write(object.api_version(), object.kind(), out, |out| schema.write_protobuf(object, out));
    Ok(())
}

/// Encodes a Status or discovery document in its envelope; None if its type has no Protobuf message.
pub(crate) fn document(value: &Value) -> Option<Vec<u8>> {
    let kind = value.get("kind")?.as_str()?;
    // Discovery documents of the core group have no `apiVersion`.
    let api_version = value.get("apiVersion").and_then(Value::as_str).unwrap_or("v1");
    let schema = Schema::of_kind(api_version, kind)?;
    let Value::Object(fields) = value else { return None };
    let mut out = Vec::new();
    let object = Object(fields.clone());
    envelope::write(api_version, kind, &mut out, |out| schema.write_protobuf(&object, out));
    Some(out)
}

/// The message of a list without its items. Each item is an occurrence of one repeated field.
pub(crate) struct ListMessage {
    /// The encoded field `metadata`.
    metadata: Vec<u8>,
    /// The number of the field `items`.
    items_number: u32,
}

impl ListMessage {
    /// The list message of most kinds: `metadata` before the items.
    pub(crate) fn new(metadata: &Object) -> Self {
        ListMessage::with_field_numbers(metadata, 1, 2)
    }

    /// The message of a `PartialObjectMetadataList`: in v1beta1 the items come first.
    pub(crate) fn for_partial_metadata(metadata: &Object, version: &str) -> Self {
        let (metadata_number, items_number) = if version == "v1beta1" { (2, 1) } else { (1, 2) };
        ListMessage::with_field_numbers(metadata, metadata_number, items_number)
    }

    fn with_field_numbers(metadata: &Object, metadata_number: u32, items_number: u32) -> Self {
        let mut field = Vec::new();
        write_message(metadata_number, &mut field, |out| {
            if let Some(schema) = Schema::of("meta/v1.ListMeta") {
                schema.write_protobuf(metadata, out);
            }
        });
        ListMessage { metadata: field, items_number }
    }

    /// Returns the bytes before and after the items: the envelope and the metadata.
    pub(crate) fn frame(&self, api_version: &str, kind: &str, lengths: &[u32]) -> Frame {
        let items = lengths.iter().map(|length| self.item_size(*length));
        let size = self.metadata.len() as u64 + items.sum::<u64>();
        let (mut opening, mut closing) = (Vec::with_capacity(256), Vec::new());
        envelope::begin(api_version, kind, size, &mut opening);
        let side = if self.items_number == 1 { &mut closing } else { &mut opening };
        side.extend_from_slice(&self.metadata);
        closing.extend_from_slice(&envelope::END);
        Frame { opening, closing }
    }

    /// Returns the encoded size of an item in bytes: field key, length prefix, message of `length` bytes.
    pub(crate) fn item_size(&self, length: u32) -> u64 {
        let length = u64::from(length);
        (key_len(self.items_number) + encoded_len_varint(length)) as u64 + length
    }

    /// Appends the field key and the length prefix of an item.
    pub(crate) fn begin_item(&self, length: usize, out: &mut Vec<u8>) {
        encode_key(self.items_number, WireType::LengthDelimited, out);
        encode_varint(length as u64, out);
    }
}

/// Bytes of the length prefix of an event.
pub(crate) const FRAME_HEAD: usize = 4;

/// Encodes a watch event with its length prefix. `event_type`: for example `ADDED`. `object` is in its envelope.
pub(crate) fn frame(event_type: &str, object: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(object.len() + 32);
    out.extend_from_slice(&[0; FRAME_HEAD]);
    write_message(1, &mut out, |out| out.extend_from_slice(event_type.as_bytes()));
    write_message(2, &mut out, |out| write_message(1, out, |out| out.extend_from_slice(object)));
    let length = u32::try_from(out.len() - FRAME_HEAD).unwrap_or(u32::MAX).to_be_bytes();
    if let Some((head, _)) = out.split_first_chunk_mut() {
        *head = length;
    }
    Bytes::from(out)
}

/// Maximum size of cached messages, in bytes.
const MAX_CACHE_BYTES: u64 = 32 * 1024 * 1024;
/// Memory of a cache entry without its message, in bytes.
const ENTRY_OVERHEAD: usize = 160;

/// Storage key and revision of an object, and the memory addresses of its kind and of the message schema.
///
/// The kind is part of the key because versions of a kind differ in metadata.
type Key = (Arc<str>, u64, usize, usize);

/// Cache of the Protobuf messages of objects in the watch cache.
pub(crate) struct MessageCache(Cache<Key, Bytes>);

impl Default for MessageCache {
    fn default() -> Self {
        let weigh =
            |_: &Key, message: &Bytes| u32::try_from(message.len() + ENTRY_OVERHEAD).unwrap_or(u32::MAX);
        MessageCache(Cache::builder().max_capacity(MAX_CACHE_BYTES).weigher(weigh).build())
    }
}

impl MessageCache {
    /// Returns the message of an item without an envelope; encodes `object` on a cache miss.
    ///
    /// # Errors
    ///
    /// Errors of `object`.
    pub(crate) fn item(
        &self,
        item: &Item,
        resource: &Arc<Kind>,
        schema: &'static Schema,
        object: impl FnOnce() -> Result<Object, Status>,
    ) -> Result<Bytes, Status> {
        let (kind, message_type) = (Arc::as_ptr(resource).addr(), std::ptr::from_ref(schema).addr());
        let key = (Arc::clone(item.key()), item.revision().0, kind, message_type);
        if let Some(cached) = self.0.get(&key) {
            return Ok(cached);
        }
        let mut out = Vec::with_capacity(item.value().len());
        schema.write_protobuf(&object()?, &mut out);
        out.shrink_to_fit();
        let message = Bytes::from(out);
        self.0.insert(key, message.clone());
        Ok(message)
    }
}
