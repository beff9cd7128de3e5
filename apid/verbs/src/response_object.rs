//! Objects in responses, and the decoding of cached items and stored rows.

use std::sync::Arc;

use apimachinery::codec::json;
use apimachinery::object::{Map, Object, Value};
use apimachinery::status::Status;
use bytes::Bytes;
use kinds::Kind;
use schema::key_order::OrderedFields;
use storage::{Revision, Row};

pub(super) use crate::conversion::read_entry as entry;
use crate::conversion::{unreadable, unreadable_row};
use crate::{Collection, Item};

/// An object in a response: cached or decoded.
#[derive(Clone, Debug)]
pub enum ResponseObject {
    /// A cached object, with the resourceVersion for the response: of its last write, or of its deletion.
    Cached(Arc<Item>, Revision),
    /// An object that is not in the watch cache in this state: the result of a dry run, or a removed object.
    Tree(Box<Object>),
}

impl ResponseObject {
    /// Wraps an item at its own revision.
    pub fn from_item(item: Arc<Item>) -> Self {
        let revision = item.revision();
        ResponseObject::Cached(item, revision)
    }

    /// Wraps an object with the resourceVersion in its metadata, if any.
    pub(super) fn from_tree(object: Object) -> Self {
        ResponseObject::Tree(Box::new(object))
    }

    /// Returns the result of a commit. Shares the item of the watch cache if it has the committed revision.
    ///
    /// INVARIANT (committed object): without a converter, the commit stored the encoding of `object`. The item
    /// gets its entry from `object`.
    pub(super) async fn for_commit(
        collection: &Collection,
        key: &str,
        mut object: Object,
        revision: Revision,
    ) -> Self {
        match collection.items.get(key).await {
            Ok((Some(item), _)) if item.revision() == revision => match &collection.converter {
                None => {
                    item.set_entry(|decoder, stored| decoder.entry_of(&object, stored));
                    return ResponseObject::from_item(item);
                }
                // The write is durable, so a failed conversion does not fail the request.
                Some(converter) => {
                    if let Ok(item) = converter.item(&item).await {
                        return ResponseObject::from_item(item);
                    }
                }
            },
            _ => {}
        }
        object.set_meta("resourceVersion", revision.to_string());
        ResponseObject::from_tree(object)
    }

    /// Appends the object as JSON. `head`: whether kind and apiVersion are included, which list items omit.
    ///
    /// # Errors
    ///
    /// 500: the stored bytes cannot be decoded.
    pub fn write_json(&self, out: &mut Vec<u8>, head: bool) -> Result<(), Status> {
        match self {
            ResponseObject::Cached(item, revision) => entry(item)?.write_json(out, *revision, head),
            ResponseObject::Tree(object) => json::encode_into(out, &OrderedFields::new(&object.0)),
        }
        Ok(())
    }

    /// Appends the beginning of the JSON and returns the rest, shared with the cache if possible.
    ///
    /// # Errors
    ///
    /// 500: the stored bytes cannot be decoded.
    pub fn split_json(&self, out: &mut Vec<u8>, head: bool) -> Result<Bytes, Status> {
        match self {
            ResponseObject::Cached(item, revision) => Ok(entry(item)?.split_json(out, *revision, head)),
            ResponseObject::Tree(_) => self.write_json(out, head).map(|()| Bytes::new()),
        }
    }

    /// Returns the `metadata` of the object.
    ///
    /// # Errors
    ///
    /// 500: the stored bytes cannot be decoded.
    pub fn metadata(&self) -> Result<Value, Status> {
        match self {
            ResponseObject::Cached(item, revision) => {
                entry(item)?.metadata(*revision).map(Value::Object).map_err(|error| unreadable(item, &error))
            }
            ResponseObject::Tree(object) => {
                Ok(object.get("metadata").cloned().unwrap_or_else(|| Value::Object(Map::new())))
            }
        }
    }

    /// Returns the decoded object.
    ///
    /// # Errors
    ///
    /// 500: the stored bytes cannot be decoded.
    pub fn object(&self) -> Result<Object, Status> {
        match self {
            ResponseObject::Cached(item, revision) => tree(item, *revision),
            ResponseObject::Tree(object) => Ok((**object).clone()),
        }
    }
}

/// Decodes an item with a given resourceVersion.
pub(super) fn tree(item: &Item, revision: Revision) -> Result<Object, Status> {
    entry(item)?.object(revision).map_err(|error| unreadable(item, &error))
}

/// Decodes a row of the store to an object with the resourceVersion of the row.
pub(super) fn read_row(row: &Row, resource: &Kind) -> Result<Object, Status> {
    kinds::entry::decode(&row.value, row.revision).map_err(|error| {
        let (namespace, name) = resource.parse_key(&row.key).unwrap_or_default();
        unreadable_row(row, &resource.reference_key(namespace, name), &error)
    })
}
