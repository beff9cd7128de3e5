//! Parts that the tests share: names, a key space with the keys of kube-apiserver, and encryption with a configuration.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::clock::{SystemClock, SystemRng};
use apimachinery::gvk::GroupResource;
use apimachinery::names::{Names, Preset};
use bytes::Bytes;
use encryption::kms::{KmsEnvironment, PollIntervals};
use encryption::{Configuration, Encryption, EncryptionMetrics, Keyspace, StoredResource};
use serde_json::{Value, json};
use serving::metrics::Metrics;
use storage::cache::{Decode, DecodeError};
use storage::unreadable_reason;

/// The groups of the resources in the recordings, by their plural names. Other resources are of the core group.
const GROUPS: [(&str, &str); 11] = [
    ("controllerrevisions", "apps"),
    ("endpointslices", "discovery.k8s.io"),
    ("flowschemas", "flowcontrol.apiserver.k8s.io"),
    ("prioritylevelconfigurations", "flowcontrol.apiserver.k8s.io"),
    ("ipaddresses", "networking.k8s.io"),
    ("servicecidrs", "networking.k8s.io"),
    ("leases", "coordination.k8s.io"),
    ("priorityclasses", "scheduling.k8s.io"),
    ("roles", "rbac.authorization.k8s.io"),
    ("clusterroles", "rbac.authorization.k8s.io"),
    ("clusterrolebindings", "rbac.authorization.k8s.io"),
];

/// The names of Kubernetes.
pub fn names() -> Names {
    Names::new(Preset::Kubernetes, "").unwrap()
}

/// A key space whose keys are those of kube-apiserver.
pub struct ReferenceKeys;

impl Keyspace for ReferenceKeys {
    fn prefix<'k>(&self, key: &'k str) -> Option<&'k str> {
        let rest = key.strip_prefix("/registry/")?;
        if ["masterleases/", "ranges/"].iter().any(|other| rest.starts_with(other)) {
            return None;
        }
        let first = rest.split('/').next()?;
        let segments = if first.contains('.') || first == "services" { 2 } else { 1 };
        let length: usize = rest.split('/').take(segments).map(|segment| segment.len() + 1).sum();
        key.get(.."/registry/".len() + length)
    }

    fn resource(&self, prefix: &str) -> Option<StoredResource> {
        let segments: Vec<&str> =
            prefix.strip_prefix("/registry/")?.trim_end_matches('/').split('/').collect();
        let (group, resource) = match segments[..] {
            ["services", "specs"] => ("", "services"),
            ["services", "endpoints"] => ("", "endpoints"),
            [group, resource] => (group, resource),
            [resource] => {
                let group =
                    GROUPS.iter().find(|(known, _)| *known == resource).map_or("", |(_, group)| group);
                (group, resource)
            }
            _ => return None,
        };
        Some(StoredResource {
            group_resource: GroupResource { group: group.to_owned(), resource: resource.to_owned() },
            reference_prefix: prefix.to_owned(),
            archived_prefix: prefix.replace("/registry/", "/archive/"),
        })
    }
}

/// A configuration for Secrets with these providers.
pub fn for_secrets(providers: &Value) -> Value {
    json!({
        "kind": "EncryptionConfiguration",
        "apiVersion": "apiserver.config.k8s.io/v1",
        "resources": [{"resources": ["secrets"], "providers": providers}],
    })
}

/// Parses a configuration.
pub fn configuration(file: &Value) -> Configuration {
    Configuration::parse(Path::new("enc.yaml"), file.to_string().as_bytes(), &names()).unwrap()
}

/// Short pauses between calls of a KMS plugin.
pub fn kms_environment() -> KmsEnvironment {
    let pause = Duration::from_millis(20);
    KmsEnvironment {
        clock: Arc::new(SystemClock::new()),
        rng: Arc::new(SystemRng),
        intervals: PollIntervals { healthy: pause, unhealthy: pause },
        on_recovery: Arc::new(|| ()),
    }
}

/// Starts encryption with a configuration.
pub async fn start(file: &Value) -> Arc<Encryption> {
    start_with(file, kms_environment()).await
}

/// Starts encryption with a configuration and an environment of its KMS providers.
pub async fn start_with(file: &Value, environment: KmsEnvironment) -> Arc<Encryption> {
    let metrics = EncryptionMetrics::new(&Metrics::new(), "test");
    Encryption::start(&configuration(file), environment, metrics, Arc::new(ReferenceKeys)).await.unwrap()
}

/// A decoder of values that rejects unreadable ones.
pub struct Readable;

impl Decode for Readable {
    type Entry = Bytes;

    fn decode(&self, _: &str, value: &Bytes) -> Result<Bytes, DecodeError> {
        if unreadable_reason(value).is_some() { Err("unreadable".into()) } else { Ok(value.clone()) }
    }
}
