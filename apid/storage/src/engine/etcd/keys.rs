//! The keys of the contract in the key space of etcd.

use std::borrow::Cow;
use std::sync::Arc;

use crate::MAX_KEY;

/// Prefix of the engine's own keys, below the prefix of the cluster.
const OWN: &str = "/apid/engine/";

/// A translation between the keys of the contract and those in etcd, which stand below the prefix of the cluster.
///
/// The translation replaces the prefix of a key. Keys with the same prefix keep their order. Keys with different
/// prefixes may have another order in etcd, and a range over all keys has that order.
pub trait KeyMap: Send + Sync + 'static {
    /// The key in etcd for a key of the contract. The result begins with a slash.
    fn to_etcd(&self, key: &str) -> String;

    /// The key of the contract for a key in etcd; None for other data, which the engine neither returns nor changes.
    fn parse_etcd<'k>(&self, key: &'k str) -> Option<Cow<'k, str>>;

    /// The beginning of the keys in etcd that covers all keys of the contract with a prefix.
    fn prefix_to_etcd(&self, prefix: &str) -> String;
}

/// The translation that only adds a slash.
pub struct PlainKeys;

impl KeyMap for PlainKeys {
    fn to_etcd(&self, key: &str) -> String {
        format!("/{key}")
    }

    fn parse_etcd<'k>(&self, key: &'k str) -> Option<Cow<'k, str>> {
        key.strip_prefix('/').map(Cow::Borrowed)
    }

    fn prefix_to_etcd(&self, prefix: &str) -> String {
        self.to_etcd(prefix)
    }
}

/// The keys of one store in etcd.
#[derive(Clone)]
pub(super) struct Keys {
    /// The prefix of the cluster, such as `/registry`.
    root: String,
    map: Arc<dyn KeyMap>,
}

impl Keys {
    pub(super) fn new(root: &str, map: Arc<dyn KeyMap>) -> Self {
        let root = root.trim_matches('/');
        let root = if root.is_empty() { String::new() } else { format!("/{root}") };
        Keys { root, map }
    }

    /// The key of the health check of kube-apiserver.
    pub(super) fn health(&self) -> Vec<u8> {
        format!("{}/health", self.root).into_bytes()
    }

    /// A key of the engine itself.
    pub(super) fn own(&self, name: &str) -> Vec<u8> {
        [&self.root, OWN, name].concat().into_bytes()
    }

    /// The beginning of all keys of the store.
    pub(super) fn root(&self) -> Vec<u8> {
        format!("{}/", self.root).into_bytes()
    }

    /// The key in etcd for a key of the contract.
    pub(super) fn key(&self, key: &str) -> Vec<u8> {
        [self.root.as_str(), &self.map.to_etcd(key)].concat().into_bytes()
    }

    /// The beginning of the keys in etcd for a prefix.
    pub(super) fn prefix(&self, prefix: &str) -> Vec<u8> {
        [self.root.as_str(), &self.map.prefix_to_etcd(prefix)].concat().into_bytes()
    }

    /// The first key in etcd of the keys with a prefix from `start` on; None if no stored key can follow.
    pub(super) fn start(&self, prefix: &str, start: &str) -> Option<Vec<u8>> {
        if prefix.len() > MAX_KEY || (start > prefix && !start.starts_with(prefix)) {
            return None;
        }
        if start <= prefix {
            return Some(self.prefix(prefix));
        }
        let mut key = self.key(start);
        // No stored key is longer than the maximum: the first one after `start` follows its beginning.
        let excess = start.len().saturating_sub(MAX_KEY);
        if excess > 0 {
            key.truncate(key.len().saturating_sub(excess));
            key.push(0);
        }
        Some(key)
    }

    /// The key of the contract for a key in etcd; None for other data.
    pub(super) fn parse(&self, key: &[u8]) -> Option<Arc<str>> {
        let below = std::str::from_utf8(key).ok()?.strip_prefix(&self.root)?;
        if below.starts_with(OWN) {
            return None;
        }
        self.map.parse_etcd(below).map(Arc::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_the_contract_round_trip() {
        for (prefix, expected) in
            [("/registry", "/registry/a/b"), ("registry/", "/registry/a/b"), ("/", "/a/b")]
        {
            let keys = Keys::new(prefix, Arc::new(PlainKeys));
            assert_eq!(keys.key("a/b"), expected.as_bytes());
            assert_eq!(keys.parse(&keys.key("a/b")).as_deref(), Some("a/b"));
            assert_eq!(keys.parse(&keys.own("identity")), None, "own keys are no objects");
        }
        let keys = Keys::new("/registry", Arc::new(PlainKeys));
        assert_eq!(keys.parse(b"/other/a"), None);
        assert_eq!(keys.parse(b"/registry/\xff"), None);
    }

    #[test]
    fn start_of_a_range_is_within_its_prefix() {
        let keys = Keys::new("/r", Arc::new(PlainKeys));
        let start =
            |prefix, start: &str| keys.start(prefix, start).map(|key| String::from_utf8(key).unwrap());
        assert_eq!(start("p/", "").as_deref(), Some("/r/p/"));
        assert_eq!(start("p/", "a").as_deref(), Some("/r/p/"));
        assert_eq!(start("p/", "p/7").as_deref(), Some("/r/p/7"));
        assert_eq!(start("p/", "q"), None);
        let long = start("", &"b".repeat(MAX_KEY + 9)).unwrap();
        assert_eq!((long.len(), long.ends_with("b\0")), ("/r/".len() + MAX_KEY + 1, true));
    }
}
