//! One large object as JSON, sent in chunks from the bytes of the watch cache.
//!
//! # Contract
//!
//! An unread response keeps its version of the object in memory after an update. The version therefore counts as
//! unsent from the beginning, once for each user ([`ChunkSource::held_version`]). The response holds no item of the
//! cache after preparation, so that the limit of superseded items does not count the version again.

use std::sync::Arc;

use apimachinery::status::Status;
use bytes::Bytes;

use crate::response::chunked_document::{CHUNK_CAPACITY, ChunkSource};
use verbs::Item;
use verbs::ResponseObject;

/// One object in its stored form as JSON: encoded opening bytes, then copies of parts of the cached bytes.
pub(crate) struct LargeObject {
    /// The object and its item; None after preparation.
    unprepared: Option<(ResponseObject, Arc<Item>)>,
    /// The cached bytes of the object.
    version: Bytes,
    opening: Vec<u8>,
    /// The cached bytes that are not sent yet; empty before preparation.
    rest: Bytes,
    size: usize,
}

impl LargeObject {
    /// Wraps a cached object.
    pub(crate) fn new(object: ResponseObject, item: Arc<Item>) -> Self {
        let version = item.value().clone();
        let unprepared = Some((object, item));
        LargeObject { unprepared, version, opening: Vec::new(), rest: Bytes::new(), size: 0 }
    }
}

impl Iterator for LargeObject {
    type Item = Result<Bytes, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(status) = self.prepare() {
            return Some(Err(status));
        }
        if self.rest.is_empty() {
            return None;
        }
        // Copied, so that a buffered chunk does not keep an object alive that the cache has dropped.
        let mut out = std::mem::take(&mut self.opening);
        let part = self.rest.split_to(self.rest.len().min(CHUNK_CAPACITY.saturating_sub(out.len())));
        out.reserve_exact(part.len());
        out.extend_from_slice(&part);
        Some(Ok(Bytes::from(out)))
    }
}

impl ChunkSource for LargeObject {
    fn prepare(&mut self) -> Result<(), Status> {
        if let Some((object, _)) = self.unprepared.take() {
            self.rest = object.split_json(&mut self.opening, true)?;
            self.size = self.opening.len() + self.rest.len();
        }
        Ok(())
    }

    fn held_bytes(&self) -> usize {
        self.opening.len()
    }

    fn held_version(&self) -> Option<Bytes> {
        Some(self.version.clone())
    }

    fn is_costly(&self) -> bool {
        self.unprepared.as_ref().is_some_and(|(_, item)| !item.is_decoded())
    }

    fn exact_size(&self) -> Option<usize> {
        Some(self.size)
    }
}
