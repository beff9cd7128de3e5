//! A cached row and its entry.
//!
//! The request that wrote the row sets the entry, or the first use of the entry decodes it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::{Decode, DecodeError};
use crate::{Error, Result, Revision, Row};

/// Bytes accounted for an item in addition to its value.
pub(super) const ITEM_OVERHEAD: usize = 64;

/// A row of a resource, shared by the map, snapshots and events.
pub struct Item<D: Decode> {
    row: Row,
    entry: OnceLock<Result<D::Entry, DecodeError>>,
    decode: Arc<D>,
}

impl<D: Decode> Item<D> {
    pub(super) fn new(row: Row, decode: &Arc<D>) -> Arc<Self> {
        Arc::new(Item { row, entry: OnceLock::new(), decode: Arc::clone(decode) })
    }

    /// Creates an item outside the cache, such as a conversion of a cached item.
    pub fn detached(row: Row, decode: &Arc<D>) -> Arc<Self> {
        Item::new(row, decode)
    }

    /// The key.
    pub fn key(&self) -> &Arc<str> {
        &self.row.key
    }

    /// The stored bytes.
    pub fn value(&self) -> &Bytes {
        &self.row.value
    }

    /// The revision of the last write.
    pub fn revision(&self) -> Revision {
        self.row.revision
    }

    /// The decoder of the resource.
    pub fn decoder(&self) -> &D {
        &self.decode
    }

    /// The stored row.
    pub fn row(&self) -> &Row {
        &self.row
    }

    /// Sets the entry unless it is already decoded.
    ///
    /// `build` gets the decoder and the stored bytes. It returns the entry that [`Item::entry`] would decode,
    /// or None to leave the decoding to the first use.
    pub fn set_entry(&self, build: impl FnOnce(&D, &Bytes) -> Option<D::Entry>) {
        if !self.is_decoded()
            && let Some(entry) = build(&self.decode, &self.row.value)
        {
            // A reader that has decoded the item meanwhile has set an equal entry.
            let _ = self.entry.set(Ok(entry));
        }
    }

    /// Whether the entry is decoded already: [`Item::entry`] then returns without decoding.
    pub fn is_decoded(&self) -> bool {
        self.entry.get().is_some()
    }

    /// The decoded row. Single-flight: the first caller decodes while others wait.
    ///
    /// # Errors
    ///
    /// `Corrupt` when the value does not decode.
    pub fn entry(&self) -> Result<&D::Entry> {
        let entry = self.entry.get_or_init(|| self.decode.decode(&self.row.key, &self.row.value));
        entry.as_ref().map_err(|error| {
            Error::Corrupt(format!(
                "decoding key `{}` at revision {} failed: {error}",
                self.row.key, self.row.revision
            ))
        })
    }
}

/// Shows the length of the value only, because values may hold secrets.
impl<D: Decode> fmt::Debug for Item<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item")
            .field("key", &self.row.key)
            .field("revision", &self.row.revision)
            .field("bytes", &self.row.value.len())
            .finish_non_exhaustive()
    }
}
