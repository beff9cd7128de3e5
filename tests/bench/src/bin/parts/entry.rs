//! Decoding and encoding of a cached object of 1 kB.

use apimachinery::clock::{Clock, SystemClock};
use apimachinery::names::{Names, Preset};
use apimachinery::object::Object;
use kinds::Registry;
use kinds::entry::{self, Decoder};
use serde_json::json;
use storage::Revision;
use storage::cache::Decode as _;

const ROUNDS: u32 = 100_000;

pub(crate) fn run() {
    let names = Names::new(Preset::Kubernetes, "").expect("names");
    let registry = Registry::new(&names);
    let decoder = Decoder::new(registry.find("", "v1", "configmaps").expect("a kind"));
    let object = Object::from_value(json!({
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {
            "name": "settings", "namespace": "team", "uid": "11111111-2222-3333-4444-555555555555",
            "creationTimestamp": "2024-01-02T03:04:05Z", "labels": {"app": "service", "tier": "front"},
        },
        "data": {"file": "x".repeat(800)},
    }));
    let stored = entry::encode(&object.expect("an object"));
    let clock = SystemClock::new();
    let start = clock.monotonic();
    for _ in 0..ROUNDS {
        std::hint::black_box(decoder.decode("core/configmaps/team/settings", &stored).expect("an entry"));
    }
    let decode_time = (clock.monotonic() - start) / ROUNDS;
    let entry = decoder.decode("core/configmaps/team/settings", &stored).expect("an entry");
    let mut out = Vec::new();
    let start = clock.monotonic();
    for round in 0..ROUNDS {
        out.clear();
        entry.write_json(&mut out, Revision(round.into()), false);
        std::hint::black_box(&out);
    }
    let write_time = (clock.monotonic() - start) / ROUNDS;
    println!(
        "{} bytes: decode {decode_time:?}, write {write_time:?}, entry {} bytes",
        stored.len(),
        size_of_val(&entry)
    );
}
