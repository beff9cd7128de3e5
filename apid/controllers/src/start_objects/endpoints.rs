//! The addresses of the servers of the API in the Endpoints and the EndpointSlice of its Service.
//!
//! # Contract
//!
//! An apid with an embedded store is the only server; its endpoints are kept like the other start objects. With a common
//! store, each server runs [`run`], as `--endpoint-reconciler-type` selects:
//!
//! - `lease`: each server writes a key with its address, which etcd removes [`LEASE_LIFETIME`] after its last renewal.
//!   The endpoints are the addresses of these keys. A server that ends in order deletes its key.
//! - `master-count`: each server adds its address, and removes others if there are more than `--apiserver-count`. An
//!   address of a server that was killed stays until another one needs its place.
//! - `none`: apid leaves the endpoints to others.
//!
//! # Invariants
//!
//! INVARIANT (never empty): a server that finds no address leaves the endpoints as they are.
//!
//! # Reference
//!
//! `pkg/controlplane/reconcilers` of kube-apiserver, with its keys and values, so that both kinds of servers find each other.
//! Servers of one machine have one address: the key of a server with another port than [`USUAL_PORT`] has the port, too. An
//! EndpointSlice has one port for all its endpoints, so that the slice leaves out servers with another port than the first
//! one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::Object;
use apimachinery::status::Status;
use bytes::Bytes;
use serde_json::{Value, json};
use storage::{Change, Error, Op, Row, Store};

use super::{AdvertisedServer, StartObject, ensure_all, with_desired_fields};
use crate::ControllerState;
use crate::actor::Actor;
use crate::reflector::follow_keys;
use crate::runner::{Reconcile, Requeue, Runner};
use crate::stored;
use verbs::addresses::family;

/// The beginning of the keys of servers, as in kube-apiserver.
pub const LEASE_KEYS: &str = "/masterleases/";
/// Time after which etcd removes the key of a server that does not renew it.
pub const LEASE_LIFETIME: Duration = Duration::from_secs(15);
/// Interval of the renewals and checks.
const INTERVAL: Duration = Duration::from_secs(10);
/// The port of servers whose keys have no port.
const USUAL_PORT: u16 = 6443;
/// The namespace of the Service.
const DEFAULT: &str = "default";

/// The values of `--endpoint-reconciler-type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EndpointReconciler {
    /// Keys with leases.
    #[default]
    Lease,
    /// The number of servers is at most this one.
    MasterCount(usize),
    /// Others write the endpoints.
    None,
}

/// The addresses and ports of the servers.
type Addresses = BTreeSet<(IpAddr, u16)>;

/// Returns the key of a server.
fn key_of(address: IpAddr, port: u16) -> String {
    match port {
        USUAL_PORT => format!("{LEASE_KEYS}{address}"),
        _ => format!("{LEASE_KEYS}{}", SocketAddr::new(address, port)),
    }
}

/// Returns the address in a key.
fn address_of(key: &str) -> Option<IpAddr> {
    let server = key.strip_prefix(LEASE_KEYS)?;
    let with_port = || server.parse().ok().map(|server: SocketAddr| server.ip());
    server.parse().ok().or_else(with_port)
}

/// Returns the endpoints of the Service of the API.
pub(super) fn objects(
    service: &str,
    addresses: &Addresses,
    names: &apimachinery::names::Names,
) -> Vec<StartObject> {
    let Some((first, first_port)) = addresses.first() else { return Vec::new() };
    let ports = |port: u16| json!([{"name": "https", "port": port, "protocol": "TCP"}]);
    let mut by_port = BTreeMap::<u16, Vec<IpAddr>>::new();
    addresses.iter().for_each(|(address, port)| by_port.entry(*port).or_default().push(*address));
    let subset = |(port, addresses): (&u16, &Vec<IpAddr>)| {
        let addresses: Vec<Value> = addresses.iter().map(|address| json!({"ip": address})).collect();
        json!({"addresses": addresses, "ports": ports(*port)})
    };
    let subsets: Vec<Value> = by_port.iter().map(subset).collect();
    let in_slice = by_port.get(first_port).into_iter().flatten();
    let in_slice = in_slice.filter(|address| family(**address) == family(*first));
    let slice_endpoints: Vec<Value> =
        in_slice.map(|address| json!({"addresses": [address], "conditions": {"ready": true}})).collect();
    let endpoints = json!({
        "metadata": {
            "name": service, "namespace": DEFAULT,
            "labels": {names.label_sub_key("endpointslice", "skip-mirror"): "true"},
        },
        "subsets": subsets,
    });
    let slice = json!({
        "metadata": {
            "name": service, "namespace": DEFAULT,
            "labels": {names.label_key("service-name"): service},
        },
        "addressType": family(*first),
        "endpoints": slice_endpoints,
        "ports": ports(*first_port),
    });
    vec![
        StartObject::new("", "Endpoints", endpoints)
            .restored_by(|current, desired| with_desired_fields(current, desired, &["subsets"])),
        StartObject::new("discovery", "EndpointSlice", slice)
            .restored_by(|current, desired| with_desired_fields(current, desired, &["endpoints", "ports"])),
    ]
}

/// Keeps this server in the endpoints until [`ControllerState::end_registration`]. Returns at once for an apid with an embedded store.
pub async fn run(state: Arc<ControllerState>, published: AdvertisedServer, reconciler: EndpointReconciler) {
    let store = Arc::clone(&state.api_state.store);
    let (Some(address), true) = (published.address, store.is_shared()) else { return };
    if reconciler == EndpointReconciler::None || published.ranges.is_empty() {
        return;
    }
    state.registration.begin();
    let runner = Runner::new(&state, "apiserver_endpoints").start_with(());
    let (queue, of_end) = (runner.queue(), Arc::clone(&state));
    let mut runner = runner.source(async move {
        of_end.registration.requested().await;
        queue.add(());
    });
    if reconciler == EndpointReconciler::Lease {
        let (queue, store) = (runner.queue(), Arc::clone(&store));
        runner = runner.source(async move {
            let is_other_server = |change: &Change| change.old.is_none() || change.new.is_none();
            follow_keys(&*store, LEASE_KEYS, |change| {
                if change.is_none_or(is_other_server) {
                    queue.add(());
                }
            })
            .await;
        });
    }
    let key = key_of(address, published.port);
    let port = published.port;
    let (actor, of_server) = (state.apiserver(), Arc::clone(&state));
    let server = Server { actor, state: of_server, store, reconciler, key, address, port };
    tokio::select! {
        () = runner.run(Arc::new(server)) => {}
        () = state.registration.finished() => {}
    }
}

/// This server, and its access to the endpoints.
struct Server {
    actor: Actor,
    state: Arc<ControllerState>,
    store: Arc<dyn Store>,
    reconciler: EndpointReconciler,
    key: String,
    address: IpAddr,
    port: u16,
}

impl Reconcile for Server {
    type Key = ();

    async fn reconcile(&self, (): &()) -> Result<Requeue, Status> {
        let ends = self.state.registration.is_requested();
        let is_current = if ends { self.withdraw().await } else { self.register().await };
        Ok(match is_current {
            Ok(true) if ends => {
                self.state.registration.finish();
                Requeue::No
            }
            Ok(true) => Requeue::After(INTERVAL),
            // The back-off of a failure is longer than the lifetime of the key.
            Ok(false) => Requeue::Poll,
            Err(status) => {
                tracing::warn!(reason = %status, "the endpoints of the API are not up to date; retrying");
                Requeue::Poll
            }
        })
    }
}

impl Server {
    /// Renews the key of this server, and writes the endpoints if they differ. Returns whether the endpoints are current.
    async fn register(&self) -> Result<bool, Status> {
        let addresses = match self.reconciler {
            EndpointReconciler::Lease => {
                self.renew().await.map_err(stored::unavailable)?;
                self.registered().await.map_err(stored::unavailable)?
            }
            EndpointReconciler::MasterCount(count) => {
                counted(self.published().await?, (self.address, self.port), count)
            }
            EndpointReconciler::None => return Ok(true),
        };
        Ok(self.publish(&addresses).await)
    }

    /// Removes this server from the endpoints. Returns whether the endpoints are current.
    async fn withdraw(&self) -> Result<bool, Status> {
        let addresses = match self.reconciler {
            EndpointReconciler::Lease => {
                let row = self.store.get(&self.key, None).await.map_err(stored::unavailable)?;
                if let Some(row) = row {
                    self.write(Op::Delete(row.revision)).await.map_err(stored::unavailable)?;
                }
                self.registered().await.map_err(stored::unavailable)?
            }
            EndpointReconciler::MasterCount(_) => {
                let mut addresses = self.published().await?;
                addresses.remove(&(self.address, self.port));
                addresses
            }
            EndpointReconciler::None => return Ok(true),
        };
        Ok(self.publish(&addresses).await)
    }

    /// Writes the endpoints if they differ. Returns false if a write failed; [`ensure_all`] has logged the failure, unless
    /// another server wrote the endpoints at the same time.
    async fn publish(&self, addresses: &Addresses) -> bool {
        let names = &self.actor.api_state().names;
        ensure_all(&self.actor, objects(names.api_service, addresses, names)).await.is_empty()
    }

    /// Writes the key of this server.
    async fn renew(&self) -> storage::Result<()> {
        let row = self.store.get(&self.key, None).await?;
        let generation = row.as_ref().and_then(|row| {
            let value: Value = serde_json::from_slice(&row.value).ok()?;
            value.pointer("/metadata/generation")?.as_u64()
        });
        let value = json!({
            "kind": "Endpoints", "apiVersion": "v1",
            "metadata": {"generation": generation.unwrap_or(0).saturating_add(1)},
            "subsets": [{"addresses": [{"ip": self.address}], "ports": [{"name": "https", "port": self.port}]}],
        });
        let value = Bytes::from(format!("{value}\n"));
        self.write(match row {
            Some(row) => Op::Update(value, row.revision),
            None => Op::Create(value),
        })
        .await
    }

    /// Writes the key. The lease may end at the same time; then the next attempt creates the key.
    async fn write(&self, op: Op) -> storage::Result<()> {
        match self.store.commit(&self.key, op).await {
            Err(Error::NotFound(_) | Error::Exists(_) | Error::Conflict(_)) | Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The servers with a key.
    async fn registered(&self) -> storage::Result<Addresses> {
        let rows = self.store.range(LEASE_KEYS, "", 0, None).await?.rows;
        Ok(rows.iter().filter_map(|row| self.server_of(row)).collect())
    }

    /// The server of a key. A kube-apiserver writes no port and must listen on that of this server.
    fn server_of(&self, row: &Row) -> Option<(IpAddr, u16)> {
        let address = address_of(&row.key)?;
        let value: Option<Value> = serde_json::from_slice(&row.value).ok();
        let port = value.as_ref().and_then(|value| value.pointer("/subsets/0/ports/0/port")?.as_u64());
        Some((address, port.and_then(|port| u16::try_from(port).ok()).unwrap_or(self.port)))
    }

    /// The addresses in the Endpoints.
    async fn published(&self) -> Result<Addresses, Status> {
        let api_state = self.actor.api_state();
        let collection = stored::core(api_state, "endpoints")?;
        let endpoints = stored::get_decodable(&collection, DEFAULT, api_state.names.api_service).await?;
        Ok(endpoints.as_ref().map(addresses_of).unwrap_or_default())
    }
}

/// The addresses of an Endpoints object.
fn addresses_of(endpoints: &Object) -> Addresses {
    let mut addresses = Addresses::new();
    for subset in endpoints.get("subsets").and_then(Value::as_array).into_iter().flatten() {
        let port = subset.pointer("/ports/0/port").and_then(Value::as_u64);
        let Some(port) = port.and_then(|port| u16::try_from(port).ok()) else { continue };
        let of_subset = subset.get("addresses").and_then(Value::as_array).into_iter().flatten();
        let ips = of_subset.filter_map(|address| address.get("ip")?.as_str()?.parse().ok());
        addresses.extend(ips.map(|ip: IpAddr| (ip, port)));
    }
    addresses
}

/// Adds a server to the addresses, and removes those that follow in order if there are more than `count`.
fn counted(mut addresses: Addresses, own: (IpAddr, u16), count: usize) -> Addresses {
    addresses.insert(own);
    while addresses.len() > count.max(1) {
        let next = addresses.range(own..).nth(1).or_else(|| addresses.first()).copied();
        next.map(|next| addresses.remove(&next));
    }
    addresses
}

#[cfg(test)]
mod tests {
    use apimachinery::names::{Names, Preset};

    use super::*;

    fn addresses(list: &[(&str, u16)]) -> Addresses {
        list.iter().map(|(address, port)| (address.parse().unwrap(), *port)).collect()
    }

    #[test]
    fn master_count_removes_the_addresses_after_the_own_one() {
        let counted = |before: &[&str], own: &str, count| {
            let before: Vec<(&str, u16)> = before.iter().map(|address| (*address, 6443)).collect();
            let after = counted(addresses(&before), (own.parse().unwrap(), 6443), count);
            after.iter().map(|(address, _)| address.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(counted(&[], "192.0.2.1", 1), ["192.0.2.1"]);
        assert_eq!(counted(&["192.0.2.1"], "192.0.2.2", 2), ["192.0.2.1", "192.0.2.2"]);
        assert_eq!(counted(&["192.0.2.1", "192.0.2.3"], "192.0.2.2", 2), ["192.0.2.1", "192.0.2.2"]);
        assert_eq!(counted(&["192.0.2.1", "192.0.2.2"], "192.0.2.3", 2), ["192.0.2.2", "192.0.2.3"]);
        assert_eq!(counted(&["192.0.2.10", "192.0.2.9"], "192.0.2.9", 1), ["192.0.2.9"]);
    }

    #[test]
    fn servers_with_one_address_have_keys_of_their_own() {
        for (server, key) in [
            ("192.0.2.1:6443", "/masterleases/192.0.2.1"),
            ("192.0.2.1:7443", "/masterleases/192.0.2.1:7443"),
            ("[2001:db8::1]:6443", "/masterleases/2001:db8::1"),
            ("[2001:db8::1]:7443", "/masterleases/[2001:db8::1]:7443"),
        ] {
            let server: SocketAddr = server.parse().unwrap();
            assert_eq!(key_of(server.ip(), server.port()), key);
            assert_eq!(address_of(key), Some(server.ip()));
        }
        assert_eq!(address_of("/masterleases/other"), None);
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let servers = addresses(&[("192.0.2.1", 6443), ("192.0.2.1", 7443)]);
        let [endpoints, _slice] = &objects("kubernetes", &servers, &names)[..] else { panic!("two objects") };
        assert_eq!(addresses_of(&endpoints.object), servers);
    }

    #[test]
    fn endpoints_have_each_server_with_its_port_and_the_slice_those_of_one_port() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let servers = addresses(&[("192.0.2.10", 6443), ("192.0.2.9", 6443), ("192.0.2.11", 7443)]);
        let [endpoints, slice] = &objects("kubernetes", &servers, &names)[..] else { panic!("two objects") };
        assert_eq!(addresses_of(&endpoints.object), servers);
        assert_eq!(
            endpoints.object.get("subsets").unwrap()[0],
            json!({
                "addresses": [{"ip": "192.0.2.9"}, {"ip": "192.0.2.10"}],
                "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}],
            })
        );
        let in_slice: Vec<&Value> = slice
            .object
            .get("endpoints")
            .unwrap()
            .as_array()
            .unwrap()
            .iter()
            .map(|e| &e["addresses"][0])
            .collect();
        assert_eq!(in_slice, ["192.0.2.9", "192.0.2.10"]);
        assert!(objects("kubernetes", &Addresses::new(), &names).is_empty(), "they are never emptied");
    }
}
