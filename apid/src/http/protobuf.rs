//! Answers as Protobuf (requirements D-PB): objects and documents in their envelope, events in frames.
//!
//! # Contract
//!
//! Which message an object is, its `apiVersion` and `kind` say; only built-in kinds have one. An object is encoded from its
//! tree. The messages of objects that the watch cache holds are kept, within bounds, so that a list which is read often
//! costs the same as JSON: copying.
//!
//! # Reference
//!
//! A frame is its length in four bytes, the most significant first, and a `WatchEvent` without an envelope, whose object
//! has one.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use bytes::Bytes;
use kinds::Resource;
use moka::sync::Cache;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use schema::{Schema, write_message};
use serde_json::Value;

use super::encoding::Frame;
use crate::plane::Item;
use crate::verbs::envelope;

/// The schema of the message that an object of a type is. None: it has no Protobuf form.
pub(super) fn schema_of(api_version: &str, kind: &str) -> Option<&'static Schema> {
    let (group, version) = api_version.split_once('/').unwrap_or(("core", api_version));
    // `rbac` of `rbac.authorization.<domain>`.
    let stem = group.split('.').next().unwrap_or(group);
    Schema::of(&format!("{stem}/{version}.{kind}")).or_else(|| Schema::of(&format!("meta/v1.{kind}")))
}

/// Whether the objects of a kind have a Protobuf form: that of their own type of the table, which custom kinds do not have.
pub(super) fn is_form_of(resource: &Resource) -> bool {
    let kind = resource.kind;
    kind.schema.strip_suffix(kind.kind).is_some_and(|package| package.ends_with('.'))
}

/// An object in its envelope.
///
/// # Errors
///
/// 500: its type has no Protobuf form, which negotiation excludes.
pub(super) fn object(object: &Object, out: &mut Vec<u8>) -> Result<(), Status> {
    let schema = schema_of(object.api_version(), object.kind())
        .ok_or_else(|| Status::internal(format!("{} has no Protobuf form", object.kind())))?;
    envelope::write(object.api_version(), object.kind(), out, |out| schema.write_protobuf(object, out));
    Ok(())
}

/// A Status or a document of discovery in its envelope. None: its type has no Protobuf form.
pub(super) fn document(value: &Value) -> Option<Vec<u8>> {
    let kind = value.get("kind")?.as_str()?;
    // Documents of the core group are older than the field.
    let api_version = value.get("apiVersion").and_then(Value::as_str).unwrap_or("v1");
    let schema = schema_of(api_version, kind)?;
    let Value::Object(fields) = value else { return None };
    let mut out = Vec::new();
    let object = Object(fields.clone());
    envelope::write(api_version, kind, &mut out, |out| schema.write_protobuf(&object, out));
    Some(out)
}

/// The message of a list without its items, which are fields of the same number.
pub(super) struct ListMessage {
    /// The field `metadata`.
    metadata: Vec<u8>,
    /// The number of the field `items`.
    items: u32,
}

impl ListMessage {
    /// Of most kinds: `metadata` before the items.
    pub(super) fn new(metadata: &Object) -> Self {
        ListMessage::numbered(metadata, 1, 2)
    }

    /// Of a `PartialObjectMetadataList`: in v1beta1 the items come first.
    pub(super) fn partial(metadata: &Object, version: &str) -> Self {
        if version == "v1beta1" { ListMessage::numbered(metadata, 2, 1) } else { ListMessage::new(metadata) }
    }

    fn numbered(metadata: &Object, number: u32, items: u32) -> Self {
        let mut field = Vec::new();
        write_message(number, &mut field, |out| {
            if let Some(schema) = Schema::of("meta/v1.ListMeta") {
                schema.write_protobuf(metadata, out);
            }
        });
        ListMessage { metadata: field, items }
    }

    /// The bytes before and after the items: the envelope and the metadata.
    pub(super) fn frame(&self, api_version: &str, kind: &str, lengths: &[u32]) -> Frame {
        let items = lengths.iter().map(|length| self.item_size(*length));
        let size = self.metadata.len() as u64 + items.sum::<u64>();
        let (mut opening, mut closing) = (Vec::with_capacity(256), Vec::new());
        envelope::begin(api_version, kind, size, &mut opening);
        let side = if self.items == 1 { &mut closing } else { &mut opening };
        side.extend_from_slice(&self.metadata);
        closing.extend_from_slice(&envelope::END);
        Frame { opening, closing }
    }

    /// The bytes of an item whose message has a length.
    pub(super) fn item_size(&self, length: u32) -> u64 {
        let length = u64::from(length);
        (key_len(self.items) + encoded_len_varint(length)) as u64 + length
    }

    /// Appends what precedes the message of an item.
    pub(super) fn begin_item(&self, length: usize, out: &mut Vec<u8>) {
        encode_key(self.items, WireType::LengthDelimited, out);
        encode_varint(length as u64, out);
    }
}

/// Bytes of the length before an event.
pub(super) const FRAME_HEAD: usize = 4;

/// An event of a watch, its length before it. `object` is in its envelope.
pub(super) fn frame(kind: &str, object: &[u8]) -> Bytes {
    let mut out = Vec::with_capacity(object.len() + 32);
    out.extend_from_slice(&[0; FRAME_HEAD]);
    write_message(1, &mut out, |out| out.extend_from_slice(kind.as_bytes()));
    write_message(2, &mut out, |out| write_message(1, out, |out| out.extend_from_slice(object)));
    let length = u32::try_from(out.len() - FRAME_HEAD).unwrap_or(u32::MAX).to_be_bytes();
    if let Some((head, _)) = out.split_first_chunk_mut() {
        *head = length;
    }
    Bytes::from(out)
}

/// Bytes of messages that are kept.
const KEPT: u64 = 32 * 1024 * 1024;
/// Bytes that an entry costs beside its message.
const OVERHEAD: usize = 160;

/// A key, a revision, and the addresses of the kind and of the message type: versions of a kind differ in metadata, too.
type Key = (Arc<str>, u64, usize, usize);

/// The messages of cached objects.
pub struct Messages(Cache<Key, Bytes>);

impl Default for Messages {
    fn default() -> Self {
        let weigh = |_: &Key, message: &Bytes| u32::try_from(message.len() + OVERHEAD).unwrap_or(u32::MAX);
        Messages(Cache::builder().max_capacity(KEPT).weigher(weigh).build())
    }
}

impl Messages {
    /// The message of an item, without an envelope: that of `object` when it is not kept.
    ///
    /// # Errors
    ///
    /// Those of `object`.
    pub(super) fn item(
        &self,
        item: &Item,
        resource: &Arc<Resource>,
        schema: &'static Schema,
        object: impl FnOnce() -> Result<Object, Status>,
    ) -> Result<Bytes, Status> {
        let (kind, message_type) = (Arc::as_ptr(resource).addr(), std::ptr::from_ref(schema).addr());
        let key = (Arc::clone(item.key()), item.revision().0, kind, message_type);
        if let Some(kept) = self.0.get(&key) {
            return Ok(kept);
        }
        let mut out = Vec::with_capacity(item.value().len());
        schema.write_protobuf(&object()?, &mut out);
        out.shrink_to_fit();
        let message = Bytes::from(out);
        self.0.insert(key, message.clone());
        Ok(message)
    }
}
