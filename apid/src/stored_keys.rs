//! The resources of the keys of the store, for encryption at rest.

use apimachinery::names::Names;
use encryption::{Keyspace, StoredResource};

/// The key space of the store of a server with these names.
pub(crate) struct StoredKeys(pub(crate) Names);

impl Keyspace for StoredKeys {
    fn prefix<'k>(&self, key: &'k str) -> Option<&'k str> {
        kinds::resource_prefix(key)
    }

    fn resource(&self, prefix: &str) -> Option<StoredResource> {
        let (group_resource, reference) = kinds::resource_of_prefix(prefix, &self.0)?;
        Some(StoredResource {
            group_resource,
            reference_prefix: [kinds::REFERENCE_ROOT, &reference].concat(),
        })
    }
}
