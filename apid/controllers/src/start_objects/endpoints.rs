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
use storage::{Error, Op, Row, Store, Watch};
use tokio::sync::watch;

use super::{AdvertisedServer, StartObject, ensure_all, with_desired_fields};
use crate::ControllerState;
use crate::actor::Actor;
use crate::stored;
use verbs::addresses::family;

/// The beginning of the keys of servers, as in kube-apiserver.
pub const LEASE_KEYS: &str = "/masterleases/";
/// Time after which etcd removes the key of a server that does not renew it.
pub const LEASE_LIFETIME: Duration = Duration::from_secs(15);
/// Interval of the renewals and checks.
const INTERVAL: Duration = Duration::from_secs(10);
/// Pause after a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);
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

/// Keeps this server in the endpoints until [`Registration::end`]. Returns at once for an apid with an embedded store.
pub async fn run(state: Arc<ControllerState>, published: AdvertisedServer, reconciler: EndpointReconciler) {
    let store = Arc::clone(&state.api_state.store);
    let (Some(address), true) = (published.address, store.is_shared()) else { return };
    if reconciler == EndpointReconciler::None || published.ranges.is_empty() {
        return;
    }
    let registration = &state.registration;
    let ends = registration.begin();
    let server = Server {
        actor: state.apiserver(),
        store,
        key: key_of(address, published.port),
        address,
        port: published.port,
    };
    server.serve(reconciler, ends).await;
    registration.finish();
}

/// This server, and its access to the endpoints.
struct Server {
    actor: Actor,
    store: Arc<dyn Store>,
    key: String,
    address: IpAddr,
    port: u16,
}

impl Server {
    async fn serve(&self, reconciler: EndpointReconciler, mut ends: watch::Receiver<bool>) {
        let mut keys = None;
        let mut next_renewal = tokio::time::Instant::now();
        loop {
            let is_due = tokio::time::Instant::now() >= next_renewal;
            if is_due {
                next_renewal = tokio::time::Instant::now() + INTERVAL;
            }
            if let Err(status) = self.reconcile(reconciler, is_due).await {
                tracing::warn!(reason = %status, "the endpoints of the API are not up to date; retrying");
                next_renewal = tokio::time::Instant::now() + RETRY_INTERVAL;
            }
            tokio::select! {
                biased;
                _ = ends.wait_for(|ends| *ends) => break,
                () = tokio::time::sleep_until(next_renewal) => {}
                () = self.wait_for_other_server(&mut keys), if reconciler == EndpointReconciler::Lease => {}
            }
        }
        if let Err(status) = self.withdraw(reconciler).await {
            tracing::warn!(reason = %status, "this server is not removed from the endpoints of the API");
        }
    }

    /// Renews the key of this server if that is due, and writes the endpoints if they differ.
    async fn reconcile(&self, reconciler: EndpointReconciler, is_due: bool) -> Result<(), Status> {
        let addresses = match reconciler {
            EndpointReconciler::Lease => {
                if is_due {
                    self.renew().await.map_err(stored::unavailable)?;
                }
                self.registered().await.map_err(stored::unavailable)?
            }
            EndpointReconciler::MasterCount(count) => {
                counted(self.published().await?, (self.address, self.port), count)
            }
            EndpointReconciler::None => return Ok(()),
        };
        self.publish(&addresses).await
    }

    /// Removes this server from the endpoints.
    async fn withdraw(&self, reconciler: EndpointReconciler) -> Result<(), Status> {
        let addresses = match reconciler {
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
            EndpointReconciler::None => return Ok(()),
        };
        self.publish(&addresses).await
    }

    async fn publish(&self, addresses: &Addresses) -> Result<(), Status> {
        let names = &self.actor.api_state().names;
        let failed = ensure_all(&self.actor, objects(names.api_service, addresses, names)).await;
        match failed.is_empty() {
            true => Ok(()),
            false => {
                Err(Status::unavailable("the endpoints were written by another server at the same time", 1))
            }
        }
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

    /// Waits until a key of a server is created or removed. A watch that fails is begun again at the next call.
    async fn wait_for_other_server(&self, keys: &mut Option<Box<dyn Watch>>) {
        if keys.is_none() {
            match self.store.watch(LEASE_KEYS, self.store.revision()).await {
                // A server may have come or gone before the watch.
                Ok(watch) => *keys = Some(watch),
                Err(_) => return std::future::pending().await,
            }
            return;
        }
        while let Some(watch) = keys {
            match watch.next().await {
                Ok(changes) if changes.iter().any(|change| change.old.is_none() || change.new.is_none()) => {
                    return;
                }
                Ok(_) => {}
                Err(_) => *keys = None,
            }
        }
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
