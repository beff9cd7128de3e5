//! The types of the watch cache for the objects of this API.

use kinds::entry::Decoder;

/// The watch cache of this process.
pub type Cache = storage::cache::Cache<Decoder>;
/// The cached objects of one resource.
pub type Items = storage::cache::Resource<Decoder>;
/// A cached object.
pub type Item = storage::cache::Item<Decoder>;
/// A watch event of the cache: a change of one object.
pub type Event = storage::cache::Event<Decoder>;
/// All objects of a resource at one revision.
pub type Snapshot = storage::cache::Snapshot<Decoder>;
/// A snapshot that the cache can revoke to free memory, for a reader that may be slow.
pub type Pin = storage::cache::Pin<Decoder>;
/// A watcher of the changes under a key prefix.
pub type Watcher = storage::cache::Watcher<Decoder>;
