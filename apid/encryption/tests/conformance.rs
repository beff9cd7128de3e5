//! The contract of the store holds above each provider.

use std::any::Any;
use std::sync::Arc;

use apimachinery::clock::{SystemClock, SystemRng};
use apimachinery::gvk::GroupResource;
use encryption::kms::{KmsEnvironment, PollIntervals};
use encryption::{Encryption, EncryptionMetrics, Keyspace, StoredResource};
use serde_json::{Value, json};
use serving::metrics::Metrics;
use storage::engine::memory::MemoryStore;
use storage::{Observer, Store};

use crate::environment::{configuration, for_secrets};

/// A key space in which all keys belong to Secrets.
struct AllSecrets;

impl Keyspace for AllSecrets {
    fn prefix<'k>(&self, _: &'k str) -> Option<&'k str> {
        Some("")
    }

    fn resource(&self, _: &str) -> Option<StoredResource> {
        let group_resource = GroupResource { group: String::new(), resource: "secrets".to_owned() };
        let prefix = "/registry/secrets/".to_owned();
        Some(StoredResource { group_resource, reference_prefix: prefix.clone(), archived_prefix: prefix })
    }
}

pub(crate) fn open(observer: Arc<dyn Observer>, provider: &str) -> (Arc<dyn Store>, Box<dyn Any + Send>) {
    let key = "yCRbk8PwW8jX1xeeR3HL1Nkk/I6F6gQ2IEgScymIm7s=";
    let providers: Value = json!([{provider: {"keys": [{"name": "k", "secret": key}]}}, {"identity": {}}]);
    let file = for_secrets(&providers);
    let environment = KmsEnvironment {
        clock: Arc::new(SystemClock::new()),
        rng: Arc::new(SystemRng),
        intervals: PollIntervals::default(),
        on_recovery: Arc::new(|| ()),
    };
    let metrics = EncryptionMetrics::new(&Metrics::new(), "test");
    // Without a KMS provider, the start waits for nothing.
    let configuration = configuration(&file);
    let start = Encryption::start(&configuration, environment, metrics, Arc::new(AllSecrets));
    let encryption =
        tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(start)).unwrap();
    let engine: Arc<dyn Store> = Arc::new(MemoryStore::new(encryption.observer(observer)));
    (encryption.store(engine), Box::new(()))
}

mod aesgcm {
    storage::conformance!(|observer| crate::conformance::open(observer, "aesgcm"));
}

mod aescbc {
    storage::conformance!(|observer| crate::conformance::open(observer, "aescbc"));
}

mod secretbox {
    storage::conformance!(|observer| crate::conformance::open(observer, "secretbox"));
}
