//! Watch cache entry: the encoded object, and the metadata and fields that selectors use.
//!
//! # Contract
//!
//! [`encode`] produces the stored bytes of an object: JSON that begins with
//! `{"kind":…,"apiVersion":…,"metadata":{`, contains no resourceVersion, and has its other keys in the order
//! of the type; see [`schema::key_order`]. An [`Entry`] serializes its object without parsing: it copies the
//! stored bytes up to the uid, writes the resourceVersion, and copies the remaining bytes. An entry does not
//! contain its revision, which is a part of the item or event of the cache.
//!
//! The stored bytes of a custom object may also be a document of [`encode_cbor`]. All readers of stored bytes accept
//! both formats; the tag at the beginning of CBOR distinguishes them. An entry of CBOR holds the object as JSON.
//!
//! # Invariants
//!
//! INVARIANT (small): an entry shares the stored bytes, unless they are CBOR, and adds one allocation for text and one
//! for offsets.
//! Decoding creates values only for the metadata that entries use and for the selectable fields; the parser
//! skips all other fields. Only an object of a custom kind is decoded completely, because its schema may have
//! changed.
//! INVARIANT (bounded defaults): an entry holds at most [`MAX_GROWTH`] times its stored bytes and [`MAX_ADDED_BYTES`].
//! An object that later defaults of its schema expand further gets these defaults again in each read.

use std::borrow::Cow;
use std::sync::Arc;

use apimachinery::codec::{DecodeError as DocumentError, Limits, cbor, json};
use apimachinery::object::Object;
use bytes::Bytes;
use schema::Schema;
use schema::key_order::OrderedFields;
use serde::Serialize;
use serde_json::{Map, Value};
use storage::Revision;
use storage::cache::{Decode, DecodeError};

use crate::Kind;

mod extract;

use extract::FieldSelection;

const METADATA: &[u8] = b"\"metadata\":{";

/// Fields of the metadata that precede the resourceVersion, in the order of the type.
const BEFORE_REVISION: [&str; 4] = ["name", "generateName", "namespace", "uid"];

/// Maximum depth of an object that is stored as CBOR.
const MAX_CBOR_DEPTH: usize = 256;

/// Maximum size of the kept bytes of an entry, as a multiple of the stored bytes.
const MAX_GROWTH: usize = 2;
/// Bytes that an entry may keep beyond [`MAX_GROWTH`].
const MAX_ADDED_BYTES: usize = 4 << 10;

/// Defaults that each read adds to the kept bytes of an object.
struct Expansion {
    /// The kind whose defaults expand the object.
    kind: Arc<Kind>,
    /// Bytes of the expanded object.
    bytes: usize,
}

/// A decoded stored object.
pub struct Entry {
    /// The encoded object; without later defaults of its schema if `expanding` is set.
    body: Bytes,
    /// Set if later defaults expand the object too far for the cache.
    expanding: Option<Expansion>,
    /// Offset of `"metadata":{` in `body`.
    metadata: u32,
    /// Offset in `body` at which responses contain the resourceVersion, which is not stored.
    revision: u32,
    /// Concatenated texts: name, namespace, uid, selectable fields, label keys and values, owner uids.
    text: Box<str>,
    /// End offset of each text.
    ends: Box<[u32]>,
    /// Number of labels.
    labels: u32,
    /// Names of the selectable fields, shared by all entries of a decoder.
    fields: Arc<[Box<str>]>,
    terminating: bool,
}

/// Indexes of the texts before the selectable fields.
const NAME: usize = 0;
const NAMESPACE: usize = 1;
const UID: usize = 2;
const FIELDS: usize = 3;

/// Encodes an object as stored bytes, without its resourceVersion.
pub fn encode(object: &Object) -> Bytes {
    let mut out = Vec::with_capacity(1024);
    out.push(b'{');
    for field in ["kind", "apiVersion"] {
        if let Some(value) = object.get(field) {
            write_field(&mut out, field, value);
            out.push(b',');
        }
    }
    out.extend_from_slice(METADATA);
    let metadata = object.meta().zip(Schema::of("meta/v1.ObjectMeta"));
    let metadata = metadata.map(|(fields, schema)| OrderedFields::of_type(fields, schema));
    let fields =
        metadata.iter().flat_map(OrderedFields::iter).filter(|(field, _)| *field != "resourceVersion");
    for (i, (field, value)) in fields.enumerate() {
        if i > 0 {
            out.push(b',');
        }
        write_field(&mut out, field, &value);
    }
    out.push(b'}');
    for (field, value) in OrderedFields::new(&object.0).iter() {
        if !matches!(field, "kind" | "apiVersion" | "metadata") {
            out.push(b',');
            write_field(&mut out, field, &value);
        }
    }
    out.push(b'}');
    out.shrink_to_fit();
    Bytes::from(out)
}

/// Encodes an object as stored bytes in CBOR, without its resourceVersion.
pub fn encode_cbor(mut object: Object) -> Bytes {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
    }
    Bytes::from(cbor::encode(&Value::Object(object.0)))
}

/// Whether stored bytes are CBOR.
pub fn is_cbor(stored: &[u8]) -> bool {
    stored.starts_with(&cbor::MAGIC)
}

/// Returns stored bytes as JSON; converts CBOR.
///
/// # Errors
///
/// The bytes are malformed CBOR: the store is corrupt.
pub fn to_json(stored: &[u8]) -> Result<Cow<'_, [u8]>, StoredObjectError> {
    if is_cbor(stored) { Ok(Cow::Owned(encode(&parse(stored)?).into())) } else { Ok(Cow::Borrowed(stored)) }
}

/// Parses stored bytes: the object without its resourceVersion.
///
/// # Errors
///
/// The bytes are not an object: the store is corrupt.
pub fn parse(stored: &[u8]) -> Result<Object, StoredObjectError> {
    if !is_cbor(stored) {
        return Ok(Object(serde_json::from_slice(stored)?));
    }
    let limits = Limits { depth: MAX_CBOR_DEPTH, ..Limits::NONE };
    match cbor::decode(stored, limits)?.value {
        Value::Object(map) => Ok(Object(map)),
        _ => Err(StoredObjectError::NoMetadata),
    }
}

fn write_field(out: &mut Vec<u8>, field: &str, value: &impl Serialize) {
    json::encode_into(out, &field);
    out.push(b':');
    json::encode_into(out, value);
}

/// The error of stored bytes that are not an object of their kind: the store is corrupt.
#[derive(Debug, thiserror::Error)]
pub enum StoredObjectError {
    /// The bytes are not JSON, or not an object.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The bytes begin as CBOR and are malformed.
    #[error(transparent)]
    Cbor(#[from] DocumentError),
    /// The bytes have no metadata.
    #[error("no metadata")]
    NoMetadata,
}

/// Appends a number in decimal without allocation; list responses call it once per item.
fn write_number(out: &mut Vec<u8>, mut number: u64) {
    let begin = out.len();
    loop {
        out.push(b'0' + u8::try_from(number % 10).unwrap_or_default());
        number /= 10;
        if number == 0 {
            break;
        }
    }
    if let Some(digits) = out.get_mut(begin..) {
        digits.reverse();
    }
}

/// Decoder of the stored objects of a kind.
pub struct Decoder {
    kind: Arc<Kind>,
    /// Whether stored bytes may follow an older schema of the kind.
    refreshes: bool,
    fields: Arc<[Box<str>]>,
    selection: FieldSelection,
    /// The beginning of the keys of the kind.
    key_prefix: Box<str>,
    /// The beginning of the keys of the kind in kube-apiserver.
    reference_prefix: Box<str>,
}

impl Decoder {
    /// Creates the decoder of a kind.
    pub fn new(kind: &Arc<Kind>) -> Self {
        let mut selection = FieldSelection::default();
        for field in BEFORE_REVISION.into_iter().chain(["deletionTimestamp", "labels", "ownerReferences"]) {
            selection.add(&["metadata", field]);
        }
        let fields = &kind.fields;
        for path in fields.indexed.iter().map(String::as_str).chain(fields.sources.iter().copied()) {
            selection.add(&path.split('.').collect::<Vec<_>>());
        }
        Decoder {
            kind: Arc::clone(kind),
            refreshes: kind.schema.definition().is_some(),
            fields: fields.indexed.iter().map(|field| field.as_str().into()).collect(),
            selection,
            key_prefix: kind.key_prefix.as_str().into(),
            reference_prefix: kind.reference_prefix().into(),
        }
    }

    /// The key of an object in kube-apiserver, without the prefix of the cluster, for its key in the store.
    pub fn reference_key(&self, key: &str) -> String {
        [&self.reference_prefix, key.strip_prefix(&*self.key_prefix).unwrap_or(key)].concat()
    }

    /// Creates the decoder of bytes in the current form of a kind, such as converted objects.
    pub fn of_current_form(kind: &Arc<Kind>) -> Self {
        Decoder { refreshes: false, ..Decoder::new(kind) }
    }

    /// Builds the entry of `object` without parsing `stored`, the encoding of `object`.
    ///
    /// The entry equals the result of decoding `stored`. Returns None for a custom kind, because decoding may
    /// change its object, and None if decoding would fail.
    pub fn entry_of(&self, object: &Object, stored: &Bytes) -> Option<Entry> {
        if self.refreshes {
            return None;
        }
        debug_assert!(encode(object) == stored, "the stored bytes are those of the object");
        self.build_entry(object, stored).ok()
    }

    /// Builds the entry of stored bytes. `object` contains at least the selected fields.
    fn build_entry(&self, object: &Object, stored: &Bytes) -> Result<Entry, DecodeError> {
        let metadata = find_metadata(stored).ok_or("does not begin with kind, apiVersion and metadata")?;
        let mut texts = Texts::default();
        for text in [object.name(), object.namespace(), object.uid()] {
            texts.push(text)?;
        }
        let strategy = self.kind.strategy();
        for field in &*self.fields {
            texts.push(&strategy.field(object, field))?;
        }
        let mut labels = 0;
        for (key, value) in object.labels() {
            texts.push(key)?;
            texts.push(value)?;
            labels += 1;
        }
        let owners = object.meta().and_then(|m| m.get("ownerReferences")).and_then(Value::as_array);
        for owner in owners.into_iter().flatten() {
            texts.push(owner.get("uid").and_then(Value::as_str).unwrap_or(""))?;
        }
        Ok(Entry {
            body: stored.clone(),
            expanding: None,
            metadata,
            revision: find_revision(stored, metadata, object),
            text: texts.text.into_boxed_str(),
            ends: texts.ends.into_boxed_slice(),
            labels,
            fields: Arc::clone(&self.fields),
            terminating: object.is_terminating(),
        })
    }
}

impl Decode for Decoder {
    type Entry = Entry;

    fn decode(&self, _key: &str, value: &Bytes) -> Result<Entry, DecodeError> {
        let build = |current: &Bytes| {
            let object = self.selection.extract(current).map_err(|e| e.to_string())?;
            self.build_entry(&object, current)
        };
        if !self.refreshes {
            return build(value);
        }
        let current = refresh_stored(&self.kind, value)?;
        let mut entry = build(&current)?;
        if current.len() > value.len() * MAX_GROWTH + MAX_ADDED_BYTES {
            entry.body = value.clone();
            entry.expanding = Some(Expansion { kind: Arc::clone(&self.kind), bytes: current.len() });
        }
        Ok(entry)
    }
}

/// Returns stored bytes in the form of the current schema; returns the same bytes if they already have this
/// form.
fn refresh_stored(kind: &Kind, stored: &Bytes) -> Result<Bytes, String> {
    let mut object = parse(stored).map_err(|error| error.to_string())?;
    kind.refresh(&mut object);
    let new = encode(&object);
    Ok(if new == stored { stored.clone() } else { new })
}

#[derive(Default)]
struct Texts {
    text: String,
    ends: Vec<u32>,
}

impl Texts {
    fn push(&mut self, text: &str) -> Result<(), String> {
        self.text.push_str(text);
        self.ends.push(u32::try_from(self.text.len()).map_err(|_| "exceeds the maximum size of 4 GiB")?);
        Ok(())
    }
}

/// Offset of `"metadata":{` after the kind and apiVersion strings.
/// Quotes in these strings are escaped, so the first occurrence is the field.
fn find_metadata(body: &[u8]) -> Option<u32> {
    let offset = body.windows(METADATA.len()).take(1024).position(|window| window == METADATA)?;
    u32::try_from(offset).ok()
}

/// Offset at which the resourceVersion is inserted: after the fields of [`BEFORE_REVISION`] with which the
/// stored metadata begins.
fn find_revision(body: &[u8], metadata: u32, object: &Object) -> u32 {
    let mut offset = metadata as usize + METADATA.len();
    let mut field = Vec::new();
    for name in BEFORE_REVISION {
        let Some(value) = object.meta().and_then(|fields| fields.get(name)) else { continue };
        write_field(&mut field, name, value);
        if !body.get(offset..).is_some_and(|rest| rest.starts_with(&field)) {
            break;
        }
        offset += field.len();
        field.clear();
        field.push(b',');
    }
    u32::try_from(offset).unwrap_or(metadata)
}

impl Entry {
    /// Appends the object as JSON with its resourceVersion. The JSON contains kind and apiVersion only if
    /// `head` is true; list items omit them.
    pub fn write_json(&self, out: &mut Vec<u8>, revision: Revision, head: bool) {
        let body = self.body();
        out.reserve(body.len() + 48);
        let rest = self.begin_json(&body, out, revision, head);
        out.extend_from_slice(rest);
    }

    /// Appends the JSON up to and including the resourceVersion, and returns the stored bytes that follow
    /// without a copy.
    pub fn split_json(&self, out: &mut Vec<u8>, revision: Revision, head: bool) -> Bytes {
        let body = self.body();
        let rest = self.begin_json(&body, out, revision, head);
        body.slice_ref(rest)
    }

    /// Appends the JSON up to and including the resourceVersion, and returns the bytes of `body` that follow.
    fn begin_json<'b>(&self, body: &'b [u8], out: &mut Vec<u8>, revision: Revision, head: bool) -> &'b [u8] {
        let (start, offset) = (self.metadata as usize, self.revision as usize);
        let is_first = offset == start + METADATA.len();
        if !head {
            out.push(b'{');
        }
        let range = if head { 0..offset } else { start..offset };
        out.extend_from_slice(body.get(range).unwrap_or_default());
        if !is_first {
            out.push(b',');
        }
        out.extend_from_slice(b"\"resourceVersion\":\"");
        write_number(out, revision.0);
        out.push(b'"');
        let rest = body.get(offset..).unwrap_or_default();
        if is_first && rest.first() != Some(&b'}') {
            out.push(b',');
        }
        rest
    }

    /// Parses `metadata` and adds the resourceVersion; does not parse the rest of the object.
    ///
    /// # Errors
    ///
    /// The stored bytes are not an object of this kind: the store is corrupt.
    pub fn metadata(&self, revision: Revision) -> Result<Map<String, Value>, StoredObjectError> {
        // The last byte of METADATA is the opening brace.
        let start = self.metadata as usize + METADATA.len() - 1;
        let body = self.body();
        let stored = body.get(start..).unwrap_or_default();
        let mut values = serde_json::Deserializer::from_slice(stored).into_iter::<Map<String, Value>>();
        let mut metadata = values.next().ok_or(StoredObjectError::NoMetadata)??;
        metadata.insert("resourceVersion".to_owned(), revision.to_string().into());
        Ok(metadata)
    }

    /// Parses the object and adds the resourceVersion.
    ///
    /// # Errors
    ///
    /// The stored bytes are not an object of this kind: the store is corrupt.
    pub fn object(&self, revision: Revision) -> Result<Object, StoredObjectError> {
        decode(&self.body(), revision)
    }

    /// `apiVersion`; None for malformed bytes.
    pub fn api_version(&self) -> Option<String> {
        let body = self.body();
        let head = body.get(..self.metadata as usize)?;
        let mut head = head.strip_suffix(b",")?.to_vec();
        head.push(b'}');
        let head: Map<String, Value> = serde_json::from_slice(&head).ok()?;
        Some(head.get("apiVersion")?.as_str()?.to_owned())
    }

    /// The encoded object in the form of the current schema.
    fn body(&self) -> Bytes {
        let expanded =
            self.expanding.as_ref().and_then(|expansion| refresh_stored(&expansion.kind, &self.body).ok());
        expanded.unwrap_or_else(|| self.body.clone())
    }

    /// Bytes that each read of the object makes again, because they are too many for the cache; mostly 0.
    pub fn expanded_bytes(&self) -> usize {
        self.expanding.as_ref().map_or(0, |expansion| expansion.bytes)
    }

    /// `metadata.name`.
    pub fn name(&self) -> &str {
        self.text(NAME)
    }

    /// `metadata.namespace`, `""` for cluster-scoped objects.
    pub fn namespace(&self) -> &str {
        self.text(NAMESPACE)
    }

    /// `metadata.uid`.
    pub fn uid(&self) -> &str {
        self.text(UID)
    }

    /// Whether the object has a deletionTimestamp.
    pub fn is_terminating(&self) -> bool {
        self.terminating
    }

    /// Value of a label.
    pub fn label(&self, key: &str) -> Option<&str> {
        self.labels().find(|(k, _)| *k == key).map(|(_, value)| value)
    }

    /// All labels.
    pub fn labels(&self) -> impl Iterator<Item = (&str, &str)> {
        let first = FIELDS + self.fields.len();
        (0..self.labels as usize).map(move |i| (self.text(first + 2 * i), self.text(first + 2 * i + 1)))
    }

    /// Uids of the owner references.
    pub fn owners(&self) -> impl Iterator<Item = &str> {
        let first = FIELDS + self.fields.len() + 2 * self.labels as usize;
        (first..self.ends.len()).map(|i| self.text(i))
    }

    /// Value of `metadata.name`, `metadata.namespace` or a selectable field.
    /// The value is `""` if the field is unset or not selectable.
    pub fn field(&self, field: &str) -> &str {
        match field {
            "metadata.name" => self.name(),
            "metadata.namespace" => self.namespace(),
            _ => match self.fields.iter().position(|f| **f == *field) {
                Some(i) => self.text(FIELDS + i),
                None => "",
            },
        }
    }

    fn text(&self, i: usize) -> &str {
        let start = i.checked_sub(1).map_or(0, |previous| self.end(previous));
        self.text.get(start..self.end(i)).unwrap_or("")
    }

    fn end(&self, i: usize) -> usize {
        self.ends.get(i).map_or(0, |end| *end as usize)
    }
}

/// Omits the body, which may hold secrets.
impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("namespace", &self.namespace())
            .field("name", &self.name())
            .field("bytes", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// Decodes stored bytes and adds the resourceVersion.
///
/// # Errors
///
/// The bytes are not an object: the store is corrupt.
pub fn decode(stored: &[u8], revision: Revision) -> Result<Object, StoredObjectError> {
    let mut object = parse(stored)?;
    object.set_meta("resourceVersion", revision.to_string());
    Ok(object)
}

#[cfg(test)]
#[path = "tests/entry.rs"]
mod tests;
