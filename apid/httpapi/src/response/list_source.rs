//! Lists, encoded chunk by chunk from the objects of the watch cache.
//!
//! # Contract
//!
//! Preparation reads every object, so that a read error returns a Status and never a partial list.
//!
//! # Invariants
//!
//! INVARIANT (bounded): besides its objects a list holds one pointer per object and at most one encoded object
//! that is larger than a chunk. A Protobuf list also holds the length of each message. The objects that the watch cache
//! does not own count as held bytes until the last object is sent.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
use bytes::Bytes;
use schema::Schema;
use schema::key_order::Ordered;
use serde_json::{Map, Value, json};
use storage::cache::ItemLease;

use crate::negotiate::Shape;
use crate::response::chunked_document::{CHUNK_CAPACITY, CHUNK_TARGET, ChunkSource};
use crate::response::list_encoding::{Encoding, Frame, write_compact};
use crate::response::protobuf::ListMessage;
use crate::response::representation::{OBJECT_WORK, Representation};
use verbs::Item;
use verbs::{ListResult, MAX_UNREADABLE_KEYS, ResponseObject, UnreadableObjects};

/// Maximum work of one call, in stored bytes to decode: about one millisecond.
const WORK_PER_CALL: usize = 64 * 1024;

/// Maximum work of a preparation that is not costly, in stored bytes to decode: about 0.2 ms.
const MAX_CHEAP_WORK: usize = WORK_PER_CALL / 4;

/// Maximum size of kind and apiVersion in a stored object, in bytes. List items omit both fields.
const MAX_TYPE_META_BYTES: usize = 512;

/// The encoding of the items of a list.
enum Form {
    /// Copies of the stored JSON.
    Stored,
    /// JSON trees, encoded per item, with the type of an item without `kind`.
    Trees(Encoding, Option<&'static Schema>),
    /// Protobuf messages.
    Messages(Messages),
}

/// A Protobuf list without the bytes of its items.
struct Messages {
    /// The apiVersion of the list.
    api_version: String,
    /// The kind of the list.
    kind: String,
    /// The schema of an item message.
    schema: &'static Schema,
    /// The list message without its items.
    list: ListMessage,
    /// The lengths of the item messages.
    lengths: Vec<u32>,
}

/// The progress of the encoding of a list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListStage {
    /// Checks that every item can be read, and determines the lengths of messages.
    Unprepared,
    /// Encodes chunks.
    Sending,
    /// The closing bytes have been appended.
    Closed,
}

/// The chunk source of a list.
struct ListChunks {
    representation: Representation,
    form: Form,
    frame: Frame,
    items: std::vec::IntoIter<Arc<Item>>,
    /// Initial number of items.
    count: usize,
    /// Counted size in bytes of the encoded items that the watch cache does not own.
    uncached_bytes: usize,
    lease: Option<ItemLease>,
    unreadable: UnreadableObjects,
    stage: ListStage,
    /// Number of items that are encoded.
    encoded: usize,
    /// Lower bound of the encoded size of the items in bytes, after preparation.
    min_size: usize,
    rest: Rest,
}

/// The remaining bytes of an object that is larger than a chunk.
#[derive(Default)]
struct Rest {
    bytes: Bytes,
    /// The item if the watch cache owns the bytes: the cache sees that they are held.
    _item: Option<Arc<Item>>,
    /// Bytes of memory that this value keeps alive; 0 if the watch cache owns the bytes.
    held: usize,
}

impl Rest {
    /// Wraps bytes that only the list holds: a part of `held` bytes.
    fn of_list(bytes: Bytes, held: usize) -> Self {
        Rest { bytes, _item: None, held }
    }
}

impl ListChunks {
    /// Creates the source of a list. The frame of a Protobuf list is encoded after the message lengths are
    /// known.
    fn new(representation: Representation, form: Form, frame: Frame, list: ListResult) -> Self {
        let ListResult { items, uncached_bytes, lease, unreadable, .. } = list;
        ListChunks {
            representation,
            form,
            frame,
            count: items.len(),
            items: items.into_iter(),
            uncached_bytes,
            lease,
            unreadable,
            stage: ListStage::Unprepared,
            encoded: 0,
            min_size: 0,
            rest: Rest::default(),
        }
    }

    /// Returns the work of decoding the items that are not decoded.
    fn undecoded_work(&self) -> usize {
        let undecoded = self.items.as_slice().iter().filter(|item| !item.is_decoded());
        undecoded.map(|item| OBJECT_WORK + item.value().len()).sum()
    }

    /// Checks that the items can be decoded.
    ///
    /// # Errors
    ///
    /// 500 with the keys of the first items that cannot be decoded.
    fn check(&mut self) -> Result<(), Status> {
        let items = self.items.as_slice();
        let unreadable = items.iter().map(|item| &**item).filter(|item| item.entry().is_err());
        let unreadable: Vec<_> = unreadable.take(MAX_UNREADABLE_KEYS + 1).collect();
        if !unreadable.is_empty() {
            return Err(self.unreadable.status(&unreadable));
        }
        self.min_size = items.iter().map(|item| item.value().len().saturating_sub(MAX_TYPE_META_BYTES)).sum();
        Ok(())
    }

    /// Determines the lengths of the messages.
    fn measure(&mut self) -> Result<(), Status> {
        let Form::Messages(messages) = &mut self.form else { return Ok(()) };
        messages.lengths.reserve_exact(self.count);
        for item in self.items.as_slice() {
            let message = match self.representation.message(item, messages.schema) {
                Err(_) if item.entry().is_err() => return Err(self.unreadable.status(&[item])),
                result => result?,
            };
            self.min_size += message.len();
            messages.lengths.push(u32::try_from(message.len()).map_err(Status::internal)?);
        }
        self.frame = messages.list.frame(&messages.api_version, &messages.kind, &messages.lengths);
        Ok(())
    }

    /// Appends an item; the remaining bytes of a large item become `rest`.
    fn write(&mut self, item: Arc<Item>, out: &mut Vec<u8>) -> Result<(), Status> {
        let (first, index) = (self.encoded == 0, self.encoded);
        self.encoded += 1;
        match &self.form {
            Form::Stored => {
                if !first {
                    out.push(b',');
                }
                let is_large = item.value().len() > CHUNK_TARGET;
                let with_type = self.representation.items_have_type();
                let object = ResponseObject::from_item(Arc::clone(&item));
                if is_large {
                    let bytes = object.split_json(out, with_type)?;
                    self.rest = Rest { bytes, _item: Some(item), held: 0 };
                } else {
                    object.write_json(out, with_type)?;
                }
            }
            Form::Trees(encoding, schema) => {
                encoding.write_item(&self.representation.item_tree(item)?, *schema, first, out);
            }
            Form::Messages(messages) => {
                let message = self.representation.message(&item, messages.schema)?;
                if messages.lengths.get(index).map(|length| *length as usize) != Some(message.len()) {
                    return Err(Status::internal("the encoded length of an object changed"));
                }
                messages.list.begin_item(message.len(), out);
                if message.len() > CHUNK_TARGET {
                    let length = message.len();
                    self.rest = Rest::of_list(message, length);
                } else {
                    out.extend_from_slice(&message);
                }
            }
        }
        Ok(())
    }

    fn next_chunk(&mut self) -> Result<Bytes, Status> {
        let mut out = std::mem::take(&mut self.frame.opening);
        out.reserve(CHUNK_CAPACITY.saturating_sub(out.len()));
        let mut work = 0;
        loop {
            if !self.rest.bytes.is_empty() {
                let size = self.rest.bytes.len().min(CHUNK_CAPACITY.saturating_sub(out.len()));
                let part = self.rest.bytes.split_to(size);
                out.extend_from_slice(&part);
            }
            if out.len() >= CHUNK_TARGET || work >= WORK_PER_CALL {
                break;
            }
            self.rest = Rest::default();
            let Some(item) = self.items.next() else {
                if self.stage != ListStage::Closed {
                    out.append(&mut self.frame.closing);
                    self.stage = ListStage::Closed;
                }
                break;
            };
            if !matches!(self.form, Form::Stored) {
                work += self.representation.item_work(&item);
            }
            self.write(item, &mut out)?;
        }
        if out.len() <= 2 * CHUNK_CAPACITY {
            return Ok(Bytes::from(out));
        }
        // One encoded object is larger than a chunk. The loop ended after this object, so `rest` is empty.
        let held = out.len();
        self.rest = Rest::of_list(Bytes::from(out), held);
        Ok(Bytes::copy_from_slice(&self.rest.bytes.split_to(CHUNK_CAPACITY)))
    }
}

impl Iterator for ListChunks {
    type Item = Result<Bytes, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        let chunk = match self.prepare() {
            Ok(()) if self.stage == ListStage::Closed && self.rest.bytes.is_empty() => return None,
            Ok(()) => self.next_chunk(),
            Err(status) => Err(status),
        };
        if chunk.is_err() {
            self.stage = ListStage::Closed;
            self.rest = Rest::default();
            self.items = Vec::new().into_iter();
        }
        Some(chunk).filter(|chunk| chunk.as_ref().map_or(true, |chunk| !chunk.is_empty()))
    }
}

impl ChunkSource for ListChunks {
    fn prepare(&mut self) -> Result<(), Status> {
        if self.stage == ListStage::Unprepared {
            match self.form {
                Form::Messages(_) => self.measure()?,
                Form::Stored | Form::Trees(..) => self.check()?,
            }
            self.stage = ListStage::Sending;
        }
        Ok(())
    }

    fn held_bytes(&self) -> usize {
        let lengths = match &self.form {
            Form::Messages(messages) => messages.lengths.capacity() * size_of::<u32>(),
            Form::Stored | Form::Trees(..) => 0,
        };
        let is_sent = self.items.as_slice().is_empty() && self.rest.bytes.is_empty();
        self.count * size_of::<Arc<Item>>()
            + if is_sent { 0 } else { self.uncached_bytes }
            + lengths
            + self.frame.opening.len()
            + self.frame.closing.len()
            + self.rest.held
    }

    fn take_lease(&mut self) -> Option<ItemLease> {
        self.lease.take()
    }

    fn is_costly(&self) -> bool {
        let is_encoded = !matches!(self.form, Form::Stored);
        match self.stage {
            ListStage::Unprepared => is_encoded || self.undecoded_work() > MAX_CHEAP_WORK,
            ListStage::Sending => is_encoded,
            ListStage::Closed => false,
        }
    }

    fn min_size(&self) -> usize {
        if matches!(self.form, Form::Trees(..)) { 0 } else { self.min_size }
    }

    fn exact_size(&self) -> Option<usize> {
        match &self.form {
            Form::Messages(messages) => {
                let items = messages.lengths.iter().map(|length| messages.list.item_size(*length));
                let items = items.sum::<u64>();
                let frame = self.frame.opening.len() + self.frame.closing.len();
                usize::try_from(items).ok().map(|items| frame + items)
            }
            Form::Stored | Form::Trees(..) => None,
        }
    }
}

impl Representation {
    /// Returns the chunk source of a list.
    ///
    /// # Errors
    ///
    /// 500: a list cannot have this representation. Negotiation excludes this case.
    pub(crate) fn list(&self, result: ListResult) -> Result<Box<dyn ChunkSource>, Status> {
        let (form, frame) = match Encoding::for_format(self.format, self.pretty) {
            None => (Form::Messages(self.messages(&result)?), Frame::default()),
            Some(encoding) => self.form_and_frame(encoding, &result),
        };
        Ok(Box::new(ListChunks::new(self.clone(), form, frame, result)))
    }

    /// Returns the form and the frame of a list in JSON, YAML or CBOR.
    fn form_and_frame(&self, encoding: Encoding, result: &ListResult) -> (Form, Frame) {
        let metadata = self.metadata_of_list(result);
        let (mut fields, array, schema) = match self.shape {
            Shape::Own | Shape::AggregatedDiscovery(_) => {
                if encoding == Encoding::Compact {
                    let form = match self.is_stored_form() {
                        true => Form::Stored,
                        false => Form::Trees(encoding, self.item_schema()),
                    };
                    return (form, Frame { opening: self.opening(result), closing: b"]}".to_vec() });
                }
                let fields = json!({"kind": self.resource.names.list, "apiVersion": self.api_version()});
                (fields, "items", self.item_schema())
            }
            Shape::Metadata(version) => {
                let api_version = self.meta_version(version);
                (json!({"kind": "PartialObjectMetadataList", "apiVersion": api_version}), "items", None)
            }
            Shape::Table(version) => {
                (self.table(version, Value::Null, true, Vec::new()), "rows", Schema::of("meta/v1.TableRow"))
            }
        };
        let form = Form::Trees(encoding, schema);
        if let Value::Object(fields) = &mut fields {
            fields.remove(array);
            fields.insert("metadata".to_owned(), metadata);
            let frame = encoding.frame(std::mem::take(fields), array, result.items.len());
            return (form, frame);
        }
        (form, Frame::default())
    }

    /// Returns the metadata of a list. As in kube-apiserver, a list of custom objects always has `continue`.
    fn metadata_of_list(&self, result: &ListResult) -> Value {
        let mut metadata = list_metadata(result);
        let has_objects = matches!(self.shape, Shape::Own | Shape::AggregatedDiscovery(_));
        if let (true, Value::Object(metadata)) = (has_objects && self.resource.is_custom(), &mut metadata) {
            metadata.entry("continue").or_insert_with(|| "".into());
        }
        metadata
    }

    /// Returns the type of the items of a list; None for custom kinds, whose items have a `kind`.
    fn item_schema(&self) -> Option<&'static Schema> {
        self.resource.schema.type_name().and_then(Schema::of)
    }

    /// Returns the parts of a list in Protobuf.
    fn messages(&self, result: &ListResult) -> Result<Messages, Status> {
        let metadata = Object::from_value(list_metadata(result)).unwrap_or_default();
        let (api_version, kind, list, item) = match self.shape {
            Shape::Own | Shape::AggregatedDiscovery(_) => (
                self.api_version(),
                self.resource.names.list.clone(),
                ListMessage::new(&metadata),
                self.item_schema(),
            ),
            Shape::Metadata(version) => (
                self.meta_version(version),
                "PartialObjectMetadataList".to_owned(),
                ListMessage::for_partial_metadata(&metadata, version),
                Schema::of("meta/v1.PartialObjectMetadata"),
            ),
            Shape::Table(_) => return Err(Status::internal("response has no Protobuf encoding")),
        };
        let schema = item.ok_or_else(|| Status::internal("the kind has no Protobuf encoding"))?;
        Ok(Messages { api_version, kind, schema, list, lengths: Vec::new() })
    }

    /// Encodes the beginning of a JSON list, before its items.
    pub(crate) fn opening(&self, result: &ListResult) -> Vec<u8> {
        let mut out = Vec::with_capacity(256);
        out.extend_from_slice(b"{\"kind\":");
        write_compact(&Value::from(self.resource.names.list.as_str()), &mut out);
        out.extend_from_slice(b",\"apiVersion\":");
        write_compact(&Value::from(self.api_version()), &mut out);
        out.extend_from_slice(b",\"metadata\":");
        write_compact(
            &Ordered::of_type(&self.metadata_of_list(result), Schema::of("meta/v1.ListMeta")),
            &mut out,
        );
        out.extend_from_slice(b",\"items\":[");
        out
    }
}

pub(crate) fn list_metadata(result: &ListResult) -> Value {
    let mut metadata = Map::new();
    metadata.insert("resourceVersion".into(), result.revision.to_string().into());
    if !result.continue_token.is_empty() {
        metadata.insert("continue".into(), result.continue_token.as_str().into());
    }
    if let Some(remaining) = result.remaining {
        metadata.insert("remainingItemCount".into(), remaining.into());
    }
    Value::Object(metadata)
}
