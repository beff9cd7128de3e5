//! The documents of the current registry.
//!
//! # Contract
//!
//! [`DocumentCache::of`] returns the documents of a registry. The cache keeps the documents of one registry, at
//! first that of the start and later that of a request. Documents of OpenAPI group versions with the same resources
//! pass to the next registry.

use std::sync::{Arc, OnceLock};

use apimachinery::names::Names;
use arc_swap::ArcSwap;
use kinds::Registry;

use crate::Discovery;
use crate::openapi::OpenApi;

/// The discovery and OpenAPI documents of a registry, each built on first use.
pub struct Documents {
    registry: Arc<Registry>,
    /// The OpenAPI documents.
    pub openapi: Arc<OpenApi>,
    discovery: OnceLock<Discovery>,
    settings: Arc<Settings>,
}

/// The facts beside the registry that the documents contain.
struct Settings {
    names: Arc<Names>,
    server_address: String,
    has_storage_version_hashes: bool,
}

/// The documents of the current registry, as of the last request for a document.
pub struct DocumentCache {
    documents: ArcSwap<Documents>,
}

impl DocumentCache {
    /// Creates the cache with the documents of a registry. `server_address` is the `host:port` that `/api`
    /// returns to clients. With `has_storage_version_hashes`, resources contain the hash of their storage
    /// version.
    pub fn new(
        registry: Arc<Registry>,
        names: Arc<Names>,
        server_address: String,
        has_storage_version_hashes: bool,
    ) -> Self {
        let openapi = OpenApi::new(Arc::clone(&registry), Arc::clone(&names));
        let settings = Settings { names, server_address, has_storage_version_hashes };
        let documents = Documents::new(registry, openapi, Arc::new(settings));
        DocumentCache { documents: ArcSwap::from_pointee(documents) }
    }

    /// Returns the documents of a registry.
    pub fn of(&self, registry: &Arc<Registry>) -> Arc<Documents> {
        let current = self.documents.load_full();
        if Arc::ptr_eq(&current.registry, registry) {
            return current;
        }
        let openapi = current.openapi.with_registry(Arc::clone(registry));
        let documents =
            Arc::new(Documents::new(Arc::clone(registry), openapi, Arc::clone(&current.settings)));
        let previous = self.documents.compare_and_swap(&current, Arc::clone(&documents));
        // Another request for the same registry was first: both use its documents, which are built once.
        if Arc::ptr_eq(&previous.registry, registry) { Arc::clone(&previous) } else { documents }
    }
}

impl Documents {
    fn new(registry: Arc<Registry>, openapi: OpenApi, settings: Arc<Settings>) -> Self {
        Documents { registry, openapi: Arc::new(openapi), discovery: OnceLock::new(), settings }
    }

    /// The discovery documents.
    pub fn discovery(&self) -> &Discovery {
        let Settings { names, server_address, has_storage_version_hashes } = &*self.settings;
        self.discovery.get_or_init(|| {
            Discovery::new(&self.registry, names, server_address, *has_storage_version_hashes)
        })
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;

    fn cache(registry: &Arc<Registry>, names: &Arc<Names>) -> DocumentCache {
        DocumentCache::new(Arc::clone(registry), Arc::clone(names), "127.0.0.1:1".to_owned(), false)
    }

    #[test]
    fn documents_follow_the_registry_and_are_built_once() {
        let names = Arc::new(Names::new(Preset::Kubernetes, "example.test").unwrap());
        let first = Arc::new(Registry::new(&names));
        let second = Arc::new(first.with_custom([]));
        let cache = cache(&first, &names);
        let documents = cache.of(&first);
        assert!(Arc::ptr_eq(&documents, &cache.of(&first)));
        assert!(std::ptr::eq(documents.discovery(), cache.of(&first).discovery()));
        let replaced = cache.of(&second);
        assert!(!Arc::ptr_eq(&documents, &replaced) && Arc::ptr_eq(&replaced.registry, &second));
        assert!(Arc::ptr_eq(&replaced, &cache.of(&second)));
        // A request that began before the replacement still gets the documents of its registry.
        assert!(Arc::ptr_eq(&cache.of(&first).registry, &first));
    }
}
