//! The providers of each resource: the active form of a configuration.
//!
//! # Contract
//!
//! A resource has the providers of its own rules, else those of `*.GROUP`, else those of `*.*`. Rules for the same
//! resource add up, in the order of the file. The first provider encrypts. A value is decrypted by the first
//! provider whose prefix it has and that succeeds. A value is stale if the first key of the first provider did not
//! encrypt it.
//!
//! A value of a resource without providers is stored as it is; an encrypted value of such a resource is not readable.
//!
//! # Reference
//!
//! The lookup, the order and the error texts are those of kube-apiserver.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use apimachinery::clock::Clock;
use apimachinery::gvk::GroupResource;
use bytes::Bytes;
use parking_lot::RwLock;
use storage::ENCRYPTED_PREFIX;

use crate::configuration::{Configuration, KmsConfiguration};
use crate::decryption::{Plain, ReadError, join};
use crate::kms::{KmsEnvironment, KmsProvider};
use crate::metrics::{Direction, EncryptionMetrics, TransformationMetrics};
use crate::providers::{NO_PREFIX, Provider};

/// The resources of storage keys.
pub trait Keyspace: Send + Sync + 'static {
    /// The part of a key that its resource determines; None for keys of other data, which are never encrypted.
    fn prefix<'k>(&self, key: &'k str) -> Option<&'k str>;

    /// The resource of a prefix.
    fn resource(&self, prefix: &str) -> Option<StoredResource>;
}

/// A stored resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResource {
    /// Group and resource.
    pub group_resource: GroupResource,
    /// The beginning of the keys of its objects in kube-apiserver: `/registry/secrets/`.
    pub reference_prefix: String,
    /// The same in an embedded store, to which the values in a backup are bound.
    pub archived_prefix: String,
}

impl StoredResource {
    /// The key of an object to which its encrypted value is bound. `rest` follows the prefix in the key of apid.
    fn key(&self, rest: &str, place: Place) -> String {
        let prefix = match place {
            Place::Store => &self.reference_prefix,
            Place::Archive => &self.archived_prefix,
        };
        [prefix, rest].concat()
    }
}

/// The place of an encrypted value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    Store,
    Archive,
}

/// The transformer of one resource.
pub(crate) struct ResourceTransformer {
    resource: StoredResource,
    /// Empty for a resource without a rule.
    providers: Vec<MeasuredProvider>,
    clock: Arc<dyn Clock>,
}

struct MeasuredProvider {
    provider: Provider,
    reads: TransformationMetrics,
    writes: TransformationMetrics,
}

impl ResourceTransformer {
    /// Whether a rule covers the resource.
    pub(crate) fn has_providers(&self) -> bool {
        !self.providers.is_empty()
    }

    /// Encrypts a value for a place.
    ///
    /// # Errors
    ///
    /// The provider is not available, as text.
    pub(crate) fn encrypt(&self, plain: &Bytes, rest: &str, place: Place) -> Result<Bytes, String> {
        let Some(first) = self.providers.first() else { return Ok(plain.clone()) };
        let start = self.clock.monotonic();
        let result = first.provider.encrypt(plain, &self.resource.key(rest, place));
        first.writes.record(result.is_ok(), self.clock.monotonic().saturating_sub(start));
        result
    }

    /// Decrypts a value.
    pub(crate) fn decrypt(&self, stored: &Bytes, rest: &str) -> Result<Plain, ReadError> {
        if self.providers.is_empty() {
            return match stored.starts_with(ENCRYPTED_PREFIX) {
                false => Ok(Plain { value: stored.clone(), is_stale: false }),
                true => Err(ReadError::Damaged(storage::IDENTITY_READ_ENCRYPTED.to_owned())),
            };
        }
        let key = self.resource.key(rest, Place::Store);
        let mut errors = Vec::new();
        for (index, MeasuredProvider { provider, reads, .. }) in self.providers.iter().enumerate() {
            if !stored.starts_with(provider.prefix().as_bytes()) {
                continue;
            }
            let start = self.clock.monotonic();
            let result = provider.decrypt(stored, &key);
            match result {
                Err(ReadError::MissingDek(missing)) => return Err(ReadError::MissingDek(missing)),
                // The identity has an empty prefix: another provider may read the value.
                Err(_) if matches!(provider, Provider::Identity) => continue,
                _ => {}
            }
            reads.record(result.is_ok(), self.clock.monotonic().saturating_sub(start));
            match result {
                Ok(plain) => return Ok(Plain { is_stale: plain.is_stale || index > 0, ..plain }),
                Err(ReadError::Damaged(text)) => errors.push(text),
                Err(other) => return Err(other),
            }
        }
        Err(ReadError::Damaged(join(errors).unwrap_or_else(|| NO_PREFIX.to_owned())))
    }
}

/// The transformers of one configuration.
pub(crate) struct Transformers {
    rules: BTreeMap<GroupResource, Vec<Provider>>,
    kms: Vec<Arc<KmsProvider>>,
    hash: String,
    clock: Arc<dyn Clock>,
    metrics: Arc<EncryptionMetrics>,
    keyspace: Arc<dyn Keyspace>,
    /// The transformers by prefix of the key, made at their first use.
    by_prefix: RwLock<HashMap<Box<str>, Option<Arc<ResourceTransformer>>>>,
}

impl Transformers {
    /// Creates the transformers. KMS providers of `previous` with the same name and socket keep their keys.
    ///
    /// # Errors
    ///
    /// A provider rejects its configuration.
    pub(crate) fn new(
        configuration: &Configuration,
        environment: &KmsEnvironment,
        metrics: &Arc<EncryptionMetrics>,
        keyspace: &Arc<dyn Keyspace>,
        previous: Option<&Transformers>,
    ) -> Result<Self, String> {
        let kms: Vec<Arc<KmsProvider>> = configuration
            .kms_providers()
            .map(|wanted| {
                let mut earlier = previous.into_iter().flat_map(|previous| &previous.kms);
                let earlier = earlier.find(|provider| {
                    let KmsConfiguration { name, socket, .. } = provider.configuration();
                    *name == wanted.name && *socket == wanted.socket
                });
                if let Some(earlier) = earlier.filter(|provider| provider.configuration() == wanted) {
                    return Arc::clone(earlier);
                }
                let provider = KmsProvider::new(wanted.clone(), environment.clone(), Arc::clone(metrics));
                if let Some(earlier) = earlier {
                    provider.adopt_keys(earlier);
                }
                provider
            })
            .collect();
        let find_kms =
            |name: &str| kms.iter().find(|provider| provider.configuration().name == name).map(Arc::clone);
        let mut rules: BTreeMap<GroupResource, Vec<Provider>> = BTreeMap::new();
        for rule in &configuration.rules {
            let providers: Vec<Provider> = rule
                .providers
                .iter()
                .map(|provider| Provider::new(provider, find_kms))
                .collect::<Result<_, _>>()?;
            for resource in &rule.resources {
                rules.entry(resource.clone()).or_default().extend(providers.iter().cloned());
            }
        }
        Ok(Transformers {
            rules,
            kms,
            hash: configuration.hash.clone(),
            clock: Arc::clone(&environment.clock),
            metrics: Arc::clone(metrics),
            keyspace: Arc::clone(keyspace),
            by_prefix: RwLock::default(),
        })
    }

    /// The KMS providers in the order of the file.
    pub(crate) fn kms(&self) -> &[Arc<KmsProvider>] {
        &self.kms
    }

    /// The hash of the file.
    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }

    /// The transformer of a key, and the part of the key after its prefix; None for keys of other data.
    pub(crate) fn of_key<'k>(&self, key: &'k str) -> Option<(Arc<ResourceTransformer>, &'k str)> {
        let prefix = self.keyspace.prefix(key)?;
        let rest = key.get(prefix.len()..).unwrap_or_default();
        if let Some(known) = self.by_prefix.read().get(prefix) {
            return known.clone().map(|transformer| (transformer, rest));
        }
        let transformer = self.keyspace.resource(prefix).map(|resource| Arc::new(self.transformer(resource)));
        self.by_prefix.write().insert(prefix.into(), transformer.clone());
        transformer.map(|transformer| (transformer, rest))
    }

    fn transformer(&self, resource: StoredResource) -> ResourceTransformer {
        let group_resource = &resource.group_resource;
        let label = group_resource.to_string();
        let providers = self.providers_of(group_resource).iter().map(|provider| {
            let prefix = match provider {
                Provider::Identity => "identity",
                provider => provider.prefix(),
            };
            MeasuredProvider {
                provider: provider.clone(),
                reads: self.metrics.transformations(&label, prefix, Direction::FromStorage),
                writes: self.metrics.transformations(&label, prefix, Direction::ToStorage),
            }
        });
        ResourceTransformer { providers: providers.collect(), clock: Arc::clone(&self.clock), resource }
    }

    /// The providers of the most exact rule.
    fn providers_of(&self, resource: &GroupResource) -> &[Provider] {
        let all = |group: &str| GroupResource { group: group.to_owned(), resource: "*".to_owned() };
        [resource.clone(), all(&resource.group), all("*")]
            .iter()
            .find_map(|resource| self.rules.get(resource))
            .map_or(&[], Vec::as_slice)
    }
}
