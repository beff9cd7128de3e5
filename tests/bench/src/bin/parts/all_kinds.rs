//! Measures the time and memory that apid needs before it can serve all kinds.
//!
//! The start covers the registry, a watch cache for each stored kind and the discovery documents. The OpenAPI
//! documents, which are built on first use, follow. Run with `cargo run --release -p apid --example
//! all_kinds`.

use std::fs;
use std::sync::Arc;

use apid::discovery::Discovery;
use apid::discovery::openapi::OpenApi;
use apimachinery::clock::{Clock, SystemClock};
use apimachinery::names::{Names, Preset};
use kinds::Registry;
use kinds::entry::Decoder;
use storage::cache::{Cache, Limits};

/// Returns the resident memory of this process in bytes.
fn resident_bytes() -> usize {
    let pages = fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: Option<usize> = pages.split_whitespace().nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or_default() * 4096
}

#[expect(clippy::expect_used, reason = "an example on names of its own")]
fn main() {
    let clock = SystemClock::new();
    let names = Arc::new(Names::new(Preset::Kubernetes, "").expect("names"));
    let cache: Cache<Decoder> = Cache::new(Limits::default());
    let (memory, start) = (resident_bytes(), clock.monotonic());
    let registry = Arc::new(Registry::new(&names));
    for resource in registry.stored() {
        cache.resource(&resource.key_prefix, Decoder::new(resource));
    }
    let discovery = Discovery::new(&registry, &names, "127.0.0.1:6443", true);
    let openapi = OpenApi::new(Arc::clone(&registry), Arc::clone(&names));
    let (time, growth) = (clock.monotonic() - start, resident_bytes().saturating_sub(memory));
    let documents = discovery.paths().count();
    println!("{} kinds, {documents} documents: {time:?}, {} kB", registry.resources().len(), growth / 1024);

    let (memory, start) = (resident_bytes(), clock.monotonic());
    openapi.v2().expect("a document");
    openapi.v2_protobuf().expect("a document");
    openapi.v3_index().expect("documents");
    let (time, growth) = (clock.monotonic() - start, resident_bytes().saturating_sub(memory));
    println!("all OpenAPI documents: {time:?}, {} kB", growth / 1024);
}
