//! Discovery documents in memory: JSON text in segments. Documents share the segments of long lists of names.
//!
//! # Contract
//!
//! Discovery repeats the short names and categories of a custom kind for each of its versions. [`SharedLists`]
//! encodes each long list once and returns a placeholder for the tree of a document. [`Document::new`] encodes the
//! tree and puts the shared text in the place of each placeholder.
//!
//! # Invariants
//!
//! INVARIANT (bounded memory): the documents of a definition take memory in proportion to the sum of its versions and
//! names. Only a response contains the names once for each version; it is sent segment by segment.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use apimachinery::codec::json;
use aws_lc_rs::digest;
use bytes::Bytes;
use schema::key_order::Ordered;
use serde_json::{Value, json};

/// Maximum size in bytes of a list that is not shared: about the size of the other fields of a resource.
const INLINE_MAX: usize = 256;

/// Maximum size in bytes of the compact JSON of a document that is also served in other encodings.
const ENCODED_MAX: usize = 64 << 20;

/// Maximum size in bytes of the compact JSON of a document with shared lists that is also served in other
/// encodings. The limit is smaller than [`ENCODED_MAX`], because each response encodes such a document again.
const SHARED_LISTS_ENCODED_MAX: usize = 4 << 20;

/// Start of the JSON text of a placeholder: a quote and U+0000, a character that no name in a document has.
const PLACEHOLDER: &str = "\"\\u0000";

/// A discovery document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    /// The document as compact JSON.
    segments: Arc<[Bytes]>,
    /// Hash of the content in quotes, as in the header `ETag`.
    pub etag: String,
    /// The other encodings of the document, created on first use; None if the encoding failed.
    encoded: [OnceLock<Option<Bytes>>; DocumentEncoding::COUNT],
}

/// Encodings of a document besides compact JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DocumentEncoding {
    /// Indented JSON.
    Indented,
    /// YAML.
    Yaml,
    /// CBOR.
    Cbor,
    /// Protobuf in its envelope.
    Protobuf,
}

impl DocumentEncoding {
    const COUNT: usize = 4;
}

impl Document {
    /// Encodes a tree, whose long lists are placeholders of `lists`.
    pub(super) fn new(value: &Value, lists: &SharedLists) -> Self {
        let text = Bytes::from(json::to_text(&Ordered::new(value)));
        let mut segments = Vec::new();
        let mut hash = digest::Context::new(&digest::SHA256);
        let mut rest = text.clone();
        for (start, end, list) in lists.placeholders(&text) {
            // The placeholders are in the order of the text, so `start` is not before the start of `rest`.
            let offset = text.len() - rest.len();
            let unshared = rest.split_to(start - offset);
            let _ = rest.split_to(end - start);
            hash.update(&unshared);
            hash.update(list.hash.as_ref());
            segments.extend([unshared, list.text.clone()]);
        }
        hash.update(&rest);
        segments.push(rest);
        let hex: String = hash.finish().as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
        Document { segments: segments.into(), etag: format!("\"{hex}\""), encoded: Default::default() }
    }

    /// Returns the document as compact JSON, in segments.
    pub fn segments(&self) -> &Arc<[Bytes]> {
        &self.segments
    }

    /// Returns the document as compact JSON in one buffer.
    pub fn text(&self) -> Bytes {
        match &*self.segments {
            [whole] => whole.clone(),
            segments => segments.concat().into(),
        }
    }

    /// Whether the document shares long lists of names with other documents. The caller must not keep other
    /// encodings of such a document, because they repeat the lists.
    pub fn has_shared_lists(&self) -> bool {
        self.segments.len() > 1
    }

    /// Whether the document is small enough for responses in other encodings than compact JSON.
    pub fn is_encodable(&self) -> bool {
        let max = if self.has_shared_lists() { SHARED_LISTS_ENCODED_MAX } else { ENCODED_MAX };
        self.segments.iter().map(Bytes::len).sum::<usize>() <= max
    }

    /// Returns another encoding, which all responses share. `encode` creates it from the JSON on first use.
    pub fn encoded(
        &self,
        encoding: DocumentEncoding,
        encode: impl FnOnce(&[u8]) -> Option<Vec<u8>>,
    ) -> Option<Bytes> {
        let cell = self.encoded.get(encoding as usize)?;
        cell.get_or_init(|| encode(&self.text()).map(Bytes::from)).clone()
    }
}

/// The long lists of names of a registry, each encoded once.
#[derive(Default)]
pub(super) struct SharedLists {
    lists: Vec<SharedList>,
    /// Indexes in `lists` by the address of the names: the versions of a definition share one allocation.
    known: HashMap<*const [String], usize>,
}

/// An encoded list of names.
struct SharedList {
    text: Bytes,
    hash: digest::Digest,
}

impl SharedLists {
    /// Returns the value of a list in the tree of a document: a placeholder for a long list.
    pub(super) fn value(&mut self, names: &[String]) -> Value {
        let index = self.known.get(&std::ptr::from_ref(names)).copied().or_else(|| self.share(names));
        index.map_or_else(|| json!(names), |index| format!("\0{index}").into())
    }

    /// Encodes a list. Returns its index; None for a short list.
    fn share(&mut self, names: &[String]) -> Option<usize> {
        let text = Bytes::from(serde_json::to_vec(names).ok()?);
        if text.len() <= INLINE_MAX {
            return None;
        }
        let index = self.lists.len();
        self.lists.push(SharedList { hash: digest::digest(&digest::SHA256, &text), text });
        self.known.insert(std::ptr::from_ref(names), index);
        Some(index)
    }

    /// Returns the placeholders in a text, in order: byte positions of start and end, and list.
    fn placeholders(&self, text: &[u8]) -> Vec<(usize, usize, &SharedList)> {
        let text = str::from_utf8(text).unwrap_or_default();
        let found = text.match_indices(PLACEHOLDER).filter_map(|(start, opening)| {
            let digits = start + opening.len();
            let (index, _) = text.get(digits..)?.split_once('"')?;
            Some((start, digits + index.len() + 1, self.lists.get(index.parse::<usize>().ok()?)?))
        });
        found.collect()
    }
}
