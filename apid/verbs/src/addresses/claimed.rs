//! Addresses and ports that the writes in progress of all servers claim.
//!
//! # Contract
//!
//! In a store of several servers, each write that allocates values creates a claim with these values, see
//! [`storage::Claim`]. The claim with the lowest revision has a value. A write whose value another claim or a Service
//! has when its own claim is observed allocates again.
//!
//! # Invariants
//!
//! INVARIANT (one owner over several servers): two Services get no equal value. Of two writes with one value, the later
//! claim is created when the earlier one exists, or when its end is observed here. The end of a claim makes the state of
//! its write definite, so the later write sees the earlier claim or its Service.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use storage::Revision;

/// The beginning of the keys of these claims, after that of all claims.
pub(super) const SERVICES: &str = "services/";

/// The values of one claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClaimedValues {
    /// The cluster IP addresses.
    pub(super) addresses: Vec<IpAddr>,
    /// The node ports and the health check port.
    pub(super) ports: Vec<u16>,
}

impl ClaimedValues {
    /// The stored form.
    pub(super) fn encode(&self) -> Bytes {
        serde_json::to_vec(self).unwrap_or_default().into()
    }
}

/// The revisions of the claims of each value.
#[derive(Default)]
pub(super) struct Claims {
    claims: HashMap<Arc<str>, (Revision, ClaimedValues)>,
    addresses: HashMap<IpAddr, BTreeSet<Revision>>,
    ports: HashMap<u16, BTreeSet<Revision>>,
}

impl Claims {
    /// Adds a claim.
    pub(super) fn insert(&mut self, key: &str, revision: Revision, values: ClaimedValues) {
        self.remove(key);
        for address in &values.addresses {
            self.addresses.entry(*address).or_default().insert(revision);
        }
        for port in &values.ports {
            self.ports.entry(*port).or_default().insert(revision);
        }
        self.claims.insert(key.into(), (revision, values));
    }

    /// Removes a claim, and returns its values.
    pub(super) fn remove(&mut self, key: &str) -> Option<ClaimedValues> {
        let (revision, values) = self.claims.remove(key)?;
        values.addresses.iter().for_each(|address| remove(&mut self.addresses, address, revision));
        values.ports.iter().for_each(|port| remove(&mut self.ports, port, revision));
        Some(values)
    }

    /// Whether a write in progress claims an address.
    pub(super) fn has_address(&self, address: IpAddr) -> bool {
        self.addresses.contains_key(&address)
    }

    /// Whether a write in progress claims a port.
    pub(super) fn has_port(&self, port: u16) -> bool {
        self.ports.contains_key(&port)
    }

    /// The claimed addresses.
    pub(super) fn addresses(&self) -> impl Iterator<Item = &IpAddr> {
        self.addresses.keys()
    }

    /// Whether a claim before this revision has one of the values.
    pub(super) fn is_preceded(&self, values: &ClaimedValues, revision: Revision) -> bool {
        let is_before = |claims: &BTreeSet<Revision>| claims.first().is_some_and(|first| *first < revision);
        values.addresses.iter().filter_map(|address| self.addresses.get(address)).any(is_before)
            || values.ports.iter().filter_map(|port| self.ports.get(port)).any(is_before)
    }
}

fn remove<V: Eq + Hash>(claims: &mut HashMap<V, BTreeSet<Revision>>, value: &V, revision: Revision) {
    if let Some(revisions) = claims.get_mut(value) {
        revisions.remove(&revision);
        if revisions.is_empty() {
            claims.remove(value);
        }
    }
}
