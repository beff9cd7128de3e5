//! An object as a verb answers it.

use std::sync::Arc;

use apimachinery::object::Object;
use apimachinery::status::Status;
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
    kinds::entry::decode(value, revision).map_err(|error| {
        tracing::error!(key, %error, "a stored object cannot be read");
        Status::internal("a stored object cannot be read")
    })
}
