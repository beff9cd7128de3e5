//! An object as a verb answers it.

use std::sync::Arc;

use apimachinery::object::{Map, Object, Value};
use apimachinery::status::Status;
use bytes::Bytes;
use kinds::entry::Entry;
use storage::{Revision, Row};

use crate::plane::{Collection, Item};

/// An object of an answer.
#[derive(Clone, Debug)]
pub enum Shown {
    /// As the cache holds it, with the version to show: that of its own write, or that of its deletion.
    Cached(Arc<Item>, Revision),
    /// As a write left it where the cache does not (any more): a dry run, or an object that is gone.
    Tree(Box<Object>),
}

impl Shown {
    /// An item at its own version.
    pub fn item(item: Arc<Item>) -> Self {
        let revision = item.revision();
        Shown::Cached(item, revision)
    }

    /// An object without a version, or with whatever the tree says.
    pub(super) fn tree(object: Object) -> Self {
        Shown::Tree(Box::new(object))
    }

    /// What a commit left, shared with the cache unless it moved on already.
    pub(super) async fn committed(
        collection: &Collection,
        key: &str,
        mut object: Object,
        revision: Revision,
    ) -> Self {
        match collection.items.get(key).await {
            Ok((Some(item), _)) if item.revision() == revision => Shown::item(item),
            _ => {
                object.set_meta("resourceVersion", revision.to_string());
                Shown::tree(object)
            }
        }
    }

    /// Whether an item can be shown.
    ///
    /// # Errors
    ///
    /// 500: the stored bytes are no object.
    pub fn check(item: &Item) -> Result<(), Status> {
        entry(item).map(|_| ())
    }

    /// Appends it as JSON. Without `head` (kind and apiVersion) for items of lists.
    ///
    /// # Errors
    ///
    /// 500: the stored bytes are no object.
    pub fn write_json(&self, out: &mut Vec<u8>, head: bool) -> Result<(), Status> {
        match self {
            Shown::Cached(item, revision) => entry(item)?.write_json(out, *revision, head),
            Shown::Tree(object) => serde_json::to_writer(out, &object.0).map_err(Status::internal)?,
        }
        Ok(())
    }

    /// Appends the beginning of the JSON and returns the bytes that follow: of a cached object the cache's own.
    ///
    /// # Errors
    ///
    /// 500: the stored bytes are no object.
    pub fn split_json(&self, out: &mut Vec<u8>, head: bool) -> Result<Bytes, Status> {
        match self {
            Shown::Cached(item, revision) => Ok(entry(item)?.split_json(out, *revision, head)),
            Shown::Tree(_) => self.write_json(out, head).map(|()| Bytes::new()),
        }
    }

    /// `metadata` alone.
    ///
    /// # Errors
    ///
    /// 500: the stored bytes are no object.
    pub fn metadata(&self) -> Result<Value, Status> {
        match self {
            Shown::Cached(item, revision) => entry(item)?
                .metadata(*revision)
                .map(Value::Object)
                .map_err(|error| unreadable(item.key(), &error)),
            Shown::Tree(object) => {
                Ok(object.get("metadata").cloned().unwrap_or_else(|| Value::Object(Map::new())))
            }
        }
    }

    /// The tree.
    ///
    /// # Errors
    ///
    /// 500: the stored bytes are no object.
    pub fn object(&self) -> Result<Object, Status> {
        match self {
            Shown::Cached(item, revision) => tree(item, *revision),
            Shown::Tree(object) => Ok((**object).clone()),
        }
    }
}

/// The decoded form of an item.
pub(super) fn entry(item: &Item) -> Result<&Entry, Status> {
    item.entry().map_err(|error| {
        tracing::error!(%error, "a stored object cannot be read");
        Status::internal("a stored object cannot be read")
    })
}

/// The tree of an item at a version.
pub(super) fn tree(item: &Item, revision: Revision) -> Result<Object, Status> {
    read(item.key(), item.value(), revision)
}

/// The tree of a row.
pub(super) fn read_row(row: &Row) -> Result<Object, Status> {
    read(&row.key, &row.value, row.revision)
}

fn read(key: &str, value: &[u8], revision: Revision) -> Result<Object, Status> {
    kinds::entry::decode(value, revision).map_err(|error| unreadable(key, &error))
}

fn unreadable(key: &str, error: &str) -> Status {
    tracing::error!(key, %error, "a stored object cannot be read");
    Status::internal("a stored object cannot be read")
}
