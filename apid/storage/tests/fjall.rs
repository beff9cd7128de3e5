//! The contract, shown on the fjall engine.

use std::sync::Arc;

use apimachinery::clock::SystemClock;
use storage::engine::fjall::{FjallStore, Identity, Options};

storage::conformance!(|observer| {
    let dir = tempfile::tempdir().unwrap();
    let identity = Identity { preset: "svc".to_owned(), api_domain: "svc.internal".to_owned() };
    let options = Options::new(dir.path().join("store"), identity, Arc::new(SystemClock::new()));
    (Arc::new(FjallStore::open(options, observer).unwrap()), Box::new(dir))
});
