//! The conformance suite on the memory engine.

use std::sync::Arc;

use storage::engine::memory::MemoryStore;

storage::conformance!(|observer| (Arc::new(MemoryStore::new(observer)), Box::new(())));
