//! Time and memory that apid needs before it can serve all kinds.
//!
//! The start covers the registry, a watch cache for each stored kind and the discovery documents. The OpenAPI
//! documents, which are built on first use, follow.

use std::sync::Arc;

use apimachinery::clock::{Clock, SystemClock};
use apimachinery::names::{Names, Preset};
use discovery::Discovery;
use discovery::openapi::OpenApi;
use kinds::Registry;
use kinds::entry::Decoder;
use serving::metrics::resident_bytes;
use storage::cache::{Cache, Limits};

pub(crate) fn run() {
    let clock = SystemClock::new();
    let names = Arc::new(Names::new(Preset::Kubernetes, "").expect("names"));
    let cache: Cache<Decoder> = Cache::new(Limits::default());
    let (memory, start) = (resident_bytes().expect("memory"), clock.monotonic());
    let registry = Arc::new(Registry::new(&names));
    for resource in registry.stored() {
        cache.resource(&resource.key_prefix, Decoder::new(resource));
    }
    let discovery = Discovery::new(&registry, &names, "127.0.0.1:6443", true, &Default::default());
    let openapi = OpenApi::new(Arc::clone(&registry), Arc::clone(&names));
    let (time, growth) =
        (clock.monotonic() - start, resident_bytes().expect("memory").saturating_sub(memory));
    let documents = discovery.paths().count();
    println!("{} kinds, {documents} documents: {time:?}, {} kB", registry.resources().len(), growth / 1024);

    let (memory, start) = (resident_bytes().expect("memory"), clock.monotonic());
    openapi.v2().expect("a document");
    openapi.v2_protobuf().expect("a document");
    openapi.v3_index().expect("documents");
    let (time, growth) =
        (clock.monotonic() - start, resident_bytes().expect("memory").saturating_sub(memory));
    println!("all OpenAPI documents: {time:?}, {} kB", growth / 1024);
}
