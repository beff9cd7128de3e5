//! The keys of the store: their resources, and their form in etcd.

use std::borrow::Cow;

use apimachinery::names::Names;
use encryption::{Keyspace, StoredResource};
use kinds::ReferencePrefixes;
use storage::engine::etcd::KeyMap;

/// The key space of the store of a server.
pub(crate) struct StoredKeys {
    names: Names,
    /// The prefix of all keys in the form of kube-apiserver, which encrypted values are bound to.
    root: String,
}

impl StoredKeys {
    /// The keys of a store below the prefix of kube-apiserver.
    pub(crate) fn new(names: &Names) -> Self {
        StoredKeys { names: names.clone(), root: kinds::REFERENCE_ROOT.to_owned() }
    }

    /// The keys of a store in etcd below a prefix.
    pub(crate) fn below(names: &Names, prefix: &str) -> Self {
        let path = prefix.trim_matches('/');
        let root = if path.is_empty() { String::new() } else { format!("/{path}") };
        StoredKeys { names: names.clone(), root }
    }
}

impl Keyspace for StoredKeys {
    fn prefix<'k>(&self, key: &'k str) -> Option<&'k str> {
        kinds::resource_prefix(key)
    }

    fn resource(&self, prefix: &str) -> Option<StoredResource> {
        let (group_resource, reference) = kinds::resource_of_prefix(prefix, &self.names)?;
        Some(StoredResource {
            group_resource,
            reference_prefix: [&self.root, &*reference].concat(),
            archived_prefix: [kinds::REFERENCE_ROOT, &*reference].concat(),
        })
    }
}

/// The keys of kube-apiserver in etcd.
pub(crate) struct ReferenceKeys {
    names: Names,
    prefixes: ReferencePrefixes,
}

impl ReferenceKeys {
    /// The keys under a names preset.
    pub(crate) fn new(names: &Names) -> Self {
        ReferenceKeys { names: names.clone(), prefixes: ReferencePrefixes::new(names) }
    }
}

impl KeyMap for ReferenceKeys {
    fn to_etcd(&self, key: &str) -> String {
        let reference = kinds::reference_key_of(key, &self.names);
        if reference.starts_with('/') { reference } else { ["/", &reference].concat() }
    }

    fn parse_etcd<'k>(&self, key: &'k str) -> Option<Cow<'k, str>> {
        self.prefixes.stored_key(key)
    }

    /// A prefix that is shorter than that of a resource covers all keys, except that of data that are no objects.
    fn prefix_to_etcd(&self, prefix: &str) -> String {
        match kinds::resource_prefix(prefix) {
            Some(_) => self.to_etcd(prefix),
            None if prefix.starts_with('/') && prefix.len() > 1 => prefix.to_owned(),
            None => "/".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;

    #[test]
    fn encrypted_values_are_bound_to_keys_below_the_prefix_of_etcd() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let prefix = |keys: StoredKeys| {
            let resource = keys.resource("core/secrets/").unwrap();
            assert_eq!(resource.archived_prefix, "/registry/secrets/");
            resource.reference_prefix
        };
        assert_eq!(prefix(StoredKeys::new(&names)), "/registry/secrets/");
        assert_eq!(prefix(StoredKeys::below(&names, "/registry")), "/registry/secrets/");
        assert_eq!(prefix(StoredKeys::below(&names, "other/place/")), "/other/place/secrets/");
    }

    #[test]
    fn prefixes_cover_the_keys_of_their_resources() {
        let keys = ReferenceKeys::new(&Names::new(Preset::Kubernetes, "").unwrap());
        for (prefix, expected) in [
            ("core/services/", "/services/specs/"),
            ("core/services/team/", "/services/specs/team/"),
            ("apps/deployments/", "/deployments/"),
            ("custom/example.com/widgets/", "/example.com/widgets/"),
            ("custom/", "/"),
            ("core/", "/"),
            ("/apid/", "/apid/"),
            ("/apid/claims/quota/team/", "/apid/claims/quota/team/"),
            ("/", "/"),
            ("", "/"),
        ] {
            assert_eq!(keys.prefix_to_etcd(prefix), expected, "{prefix}");
        }
        assert_eq!(keys.parse_etcd("/events/").as_deref(), Some("core/events/"), "the prefix of leased keys");
        assert_eq!(keys.to_etcd("/apid/continue-key"), "/apid/continue-key");
    }
}
