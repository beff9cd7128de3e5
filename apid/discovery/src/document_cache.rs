//! The documents of the current registry.
//!
//! # Contract
//!
//! [`DocumentCache::of`] returns the documents of a registry and of the servers behind APIServices. The cache keeps the
//! documents of one state, at first that of the start and later that of a request. Documents that do not change pass to
//! the next state.

use std::sync::{Arc, OnceLock};

use apimachinery::names::Names;
use arc_swap::ArcSwap;
use kinds::Registry;

use crate::openapi::{OpenApi, RemoteOpenApi};
use crate::{AnnouncedVersions, Discovery};

/// Subjects of the documents: the kinds of this server, and the servers behind APIServices.
#[derive(Clone)]
pub struct Served {
    /// The registry of the kinds of this server.
    pub registry: Arc<Registry>,
    /// The versions of APIServices.
    pub announced: Arc<AnnouncedVersions>,
    /// The OpenAPI documents of other servers.
    pub remote_openapi: Arc<RemoteOpenApi>,
}

impl Served {
    /// Returns the kinds of a registry without other servers.
    pub fn own(registry: Arc<Registry>) -> Self {
        Served { registry, announced: Arc::default(), remote_openapi: Arc::default() }
    }

    fn has_same_openapi(&self, other: &Served) -> bool {
        Arc::ptr_eq(&self.registry, &other.registry)
            && Arc::ptr_eq(&self.remote_openapi, &other.remote_openapi)
    }

    fn is_same(&self, other: &Served) -> bool {
        self.has_same_openapi(other) && Arc::ptr_eq(&self.announced, &other.announced)
    }
}

/// The discovery and OpenAPI documents of a state, each built on first use.
pub struct Documents {
    served: Served,
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
        served: Served,
        names: Arc<Names>,
        server_address: String,
        has_storage_version_hashes: bool,
    ) -> Self {
        let openapi = OpenApi::new(Arc::clone(&served.registry), Arc::clone(&names));
        let openapi = openapi.with_state(Arc::clone(&served.registry), Arc::clone(&served.remote_openapi));
        let settings = Settings { names, server_address, has_storage_version_hashes };
        let documents = Documents::new(served, Arc::new(openapi), Arc::new(settings));
        DocumentCache { documents: ArcSwap::from_pointee(documents) }
    }

    /// Returns the documents of a state.
    pub fn of(&self, served: &Served) -> Arc<Documents> {
        let current = self.documents.load_full();
        if current.served.is_same(served) {
            return current;
        }
        let openapi = match current.served.has_same_openapi(served) {
            true => Arc::clone(&current.openapi),
            false => Arc::new(
                current.openapi.with_state(Arc::clone(&served.registry), Arc::clone(&served.remote_openapi)),
            ),
        };
        let documents = Arc::new(Documents::new(served.clone(), openapi, Arc::clone(&current.settings)));
        let previous = self.documents.compare_and_swap(&current, Arc::clone(&documents));
        // Another request for the same state was first: both use its documents, which are built once.
        if previous.served.is_same(served) { Arc::clone(&previous) } else { documents }
    }
}

impl Documents {
    fn new(served: Served, openapi: Arc<OpenApi>, settings: Arc<Settings>) -> Self {
        Documents { served, openapi, discovery: OnceLock::new(), settings }
    }

    /// The discovery documents.
    pub fn discovery(&self) -> &Discovery {
        let Settings { names, server_address, has_storage_version_hashes } = &*self.settings;
        self.discovery.get_or_init(|| {
            let Served { registry, announced, .. } = &self.served;
            Discovery::new(registry, names, server_address, *has_storage_version_hashes, announced)
        })
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;

    fn cache(served: &Served, names: &Arc<Names>) -> DocumentCache {
        DocumentCache::new(served.clone(), Arc::clone(names), "127.0.0.1:1".to_owned(), false)
    }

    #[test]
    fn documents_follow_the_registry_and_are_built_once() {
        let names = Arc::new(Names::new(Preset::Kubernetes, "example.test").unwrap());
        let first = Served::own(Arc::new(Registry::new(&names)));
        let second = Served { registry: Arc::new(first.registry.with_custom([])), ..first.clone() };
        let cache = cache(&first, &names);
        let documents = cache.of(&first);
        assert!(Arc::ptr_eq(&documents, &cache.of(&first)));
        assert!(std::ptr::eq(documents.discovery(), cache.of(&first).discovery()));
        let replaced = cache.of(&second);
        assert!(!Arc::ptr_eq(&documents, &replaced) && replaced.served.is_same(&second));
        assert!(Arc::ptr_eq(&replaced, &cache.of(&second)));
        // A request that began before the replacement still gets the documents of its registry.
        assert!(cache.of(&first).served.is_same(&first));
        let announced = Served { announced: Arc::default(), ..first.clone() };
        let documents = cache.of(&first);
        let refreshed = cache.of(&announced);
        assert!(!Arc::ptr_eq(&documents, &refreshed) && Arc::ptr_eq(&documents.openapi, &refreshed.openapi));
    }
}
