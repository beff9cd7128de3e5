//! One large object as JSON, sent in chunks from the bytes of the watch cache.
//!
//! # Contract
//!
//! An unread response keeps its version of the object in memory after an update. The version therefore counts as
//! unsent from the beginning, once for each user ([`ChunkSource::held_version`]).

use std::sync::Arc;

use apimachinery::status::Status;
use bytes::Bytes;

use super::chunks::{CHUNK_CAPACITY, ChunkSource};
use crate::server_state::Item;
use crate::verbs::ResponseObject;

/// One object in its stored form as JSON: encoded opening bytes, then copies of parts of the cached bytes.
pub(super) struct LargeObject {
    object: ResponseObject,
    item: Arc<Item>,
    opening: Vec<u8>,
    /// The cached bytes that are not sent yet; None before preparation.
    rest: Option<Bytes>,
    size: usize,
}

impl LargeObject {
    /// Wraps a cached object.
    pub(super) fn new(object: ResponseObject, item: Arc<Item>) -> Self {
        LargeObject { object, item, opening: Vec::new(), rest: None, size: 0 }
    }
}

impl Iterator for LargeObject {
    type Item = Result<Bytes, Status>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(status) = self.prepare() {
            self.rest = Some(Bytes::new());
            return Some(Err(status));
        }
        let rest = self.rest.as_mut().filter(|rest| !rest.is_empty())?;
        // Copied, so that a buffered chunk does not keep an object alive that the cache has dropped.
        let mut out = std::mem::take(&mut self.opening);
        let part = rest.split_to(rest.len().min(CHUNK_CAPACITY.saturating_sub(out.len())));
        out.reserve_exact(part.len());
        out.extend_from_slice(&part);
        Some(Ok(Bytes::from(out)))
    }
}

impl ChunkSource for LargeObject {
    fn prepare(&mut self) -> Result<bool, Status> {
        if self.rest.is_none() {
            let rest = self.object.split_json(&mut self.opening, true)?;
            self.size = self.opening.len() + rest.len();
            self.rest = Some(rest);
        }
        Ok(false)
    }

    fn held_bytes(&self) -> usize {
        self.opening.len()
    }

    fn held_version(&self) -> Option<Bytes> {
        Some(self.item.value().clone())
    }

    fn is_costly(&self) -> bool {
        self.rest.is_none() && !self.item.is_decoded()
    }

    fn exact_size(&self) -> Option<usize> {
        Some(self.size)
    }
}
