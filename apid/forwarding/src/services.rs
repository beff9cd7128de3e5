//! Resolution of Services to targets.
//!
//! # Contract
//!
//! [`ServiceResolver::resolve`] returns, in this order: the address of `--service-resolver-file`; the external name
//! of a Service of the type ExternalName; the next ready address of its EndpointSlices, in turn; with
//! [`Routing::EndpointsOrClusterIp`] the cluster IP of a Service without ready addresses. Forbidden addresses of
//! EndpointSlices ([`AddressPolicy`]) are not used.
//!
//! # Reference
//!
//! kube-apiserver connects webhooks and APIServices to the cluster IP, and with `--enable-aggregator-routing` to a
//! random endpoint. apid prefers endpoints, because this machine may have no cluster network.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use apimachinery::clock::Rng;
use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use async_trait::async_trait;
use moka::sync::Cache;

use crate::AddressPolicy;
use crate::service_map::{ServiceMap, ServicePort};
use crate::target::{Scheme, Target};

/// Maximum number of Services whose turn is remembered.
const MAX_TURNS: u64 = 1000;

/// Reads Services and EndpointSlices.
#[async_trait]
pub trait ServiceLookup: Send + Sync + 'static {
    /// Reads a Service; None if it does not exist.
    async fn service(&self, namespace: &str, name: &str) -> Result<Option<Arc<Object>>, Status>;

    /// Lists the EndpointSlices of a namespace.
    async fn endpoint_slices(&self, namespace: &str) -> Result<Vec<Arc<Object>>, Status>;
}

/// Addresses of a Service that a resolution may return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Routing {
    /// Ready addresses of EndpointSlices (`--enable-aggregator-routing`).
    Endpoints,
    /// Ready addresses of EndpointSlices, or the cluster IP if there are none.
    EndpointsOrClusterIp,
}

/// Resolves ports of Services.
pub struct ServiceResolver {
    lookup: Arc<dyn ServiceLookup>,
    map: ServiceMap,
    names: Arc<Names>,
    rng: Arc<dyn Rng>,
    addresses: Arc<AddressPolicy>,
    /// The turn of the addresses of each port, by `NAMESPACE/NAME:PORT`.
    turns: Cache<String, Arc<AtomicUsize>>,
}

/// The reason why a Service has no address.
#[derive(Debug, thiserror::Error)]
pub enum ResolutionError {
    /// The Service does not exist.
    #[error(
        "service {name:?} not found; this server has no cluster network: add \"{namespace}/{name}:{port}\" to the file of \
         --service-resolver-file, or create the service with an external name or with EndpointSlices"
    )]
    NotFound {
        /// Namespace of the Service.
        namespace: String,
        /// Name of the Service.
        name: String,
        /// Number of the port.
        port: u16,
    },
    /// The Service does not have the port.
    #[error("no service port {port} found for service {name:?}")]
    NoPort {
        /// Name of the Service.
        name: String,
        /// Number of the port.
        port: u16,
    },
    /// The port has no ready address.
    #[error(
        "no address for service {name:?}: add \"{namespace}/{name}:{port}\" to the file of --service-resolver-file, set \
         the type ExternalName, or add a ready address to an EndpointSlice of the service"
    )]
    NoAddress {
        /// Namespace of the Service.
        namespace: String,
        /// Name of the Service.
        name: String,
        /// Number of the port.
        port: u16,
    },
    /// All ready addresses of the port are forbidden.
    #[error(
        "the ready addresses of service {name:?} are not allowed, for example {address}; the flag \
         --forwarding-address-exceptions of this server lists exceptions"
    )]
    NotAllowed {
        /// Name of the Service.
        name: String,
        /// A forbidden address.
        address: String,
    },
    /// The Service cannot be read.
    #[error("service {name:?} cannot be read: {message}")]
    Unreadable {
        /// Name of the Service.
        name: String,
        /// The reason.
        message: String,
    },
}

impl ServiceResolver {
    /// Creates a resolver. `map`: the addresses of `--service-resolver-file`; `rng` chooses the first endpoint.
    pub fn new(
        lookup: Arc<dyn ServiceLookup>,
        map: ServiceMap,
        names: Arc<Names>,
        rng: Arc<dyn Rng>,
        addresses: Arc<AddressPolicy>,
    ) -> Self {
        let turns = Cache::builder().max_capacity(MAX_TURNS).build();
        ServiceResolver { lookup, map, names, rng, addresses, turns }
    }

    /// Returns the target of a port of a Service. Only the [`ServiceMap`] can give a target without TLS.
    ///
    /// # Errors
    ///
    /// See [`ResolutionError`].
    pub async fn resolve(
        &self,
        service: ServicePort<'_>,
        routing: Routing,
    ) -> Result<Target, ResolutionError> {
        if let Some(target) = self.map.target(service) {
            return Ok(target);
        }
        let ServicePort { namespace, name, port } = service;
        let unreadable =
            |status: Status| ResolutionError::Unreadable { name: name.to_owned(), message: status.message };
        let not_found = || {
            let (namespace, name) = (namespace.to_owned(), name.to_owned());
            ResolutionError::NotFound { namespace, name, port }
        };
        let found = self.lookup.service(namespace, name).await.map_err(unreadable)?.ok_or_else(not_found)?;
        if found.str_at(&["spec", "type"]) == Some("ExternalName") {
            let host = found.str_at(&["spec", "externalName"]).unwrap_or_default();
            return Ok(Target::trusted(Scheme::Https, host, port));
        }
        let port_name = service_port_name(&found, port)
            .ok_or_else(|| ResolutionError::NoPort { name: name.to_owned(), port })?;
        let slices = self.lookup.endpoint_slices(namespace).await.map_err(unreadable)?;
        let label = self.names.label_key("service-name");
        let service_slices = slices.iter().filter(|slice| slice.label(&label) == Some(name));
        let ready: Vec<(IpAddr, u16)> =
            service_slices.flat_map(|slice| ready_addresses(slice, port_name)).collect();
        if let Some(target) = self.choose(service, &ready)? {
            return Ok(target);
        }
        let cluster_ip = found.str_at(&["spec", "clusterIP"]).and_then(|ip| ip.parse().ok());
        match cluster_ip.filter(|_| routing == Routing::EndpointsOrClusterIp) {
            Some(address) => Target::at_address(Scheme::Https, address, port, &self.addresses)
                .map_err(|_| not_allowed(name, address)),
            None => Err(ResolutionError::NoAddress {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                port,
            }),
        }
    }

    /// Returns the target of `--service-resolver-file` for a port of a Service, if the file has one.
    pub fn mapped(&self, service: ServicePort<'_>) -> Option<Target> {
        self.map.target(service)
    }

    /// Chooses the next allowed address in turn; None if no address is ready.
    fn choose(
        &self,
        service: ServicePort<'_>,
        ready: &[(IpAddr, u16)],
    ) -> Result<Option<Target>, ResolutionError> {
        let Some((first, _)) = ready.first() else { return Ok(None) };
        let allowed = |(address, port): &(IpAddr, u16)| {
            Target::at_address(Scheme::Https, *address, *port, &self.addresses).ok()
        };
        let targets: Vec<Target> = ready.iter().filter_map(allowed).collect();
        let key = format!("{}/{}:{}", service.namespace, service.name, service.port);
        let first_turn = || Arc::new(AtomicUsize::new(usize::try_from(self.rng.bits() >> 96).unwrap_or(0)));
        let turn = self.turns.get_with(key, first_turn).fetch_add(1, Ordering::Relaxed);
        let chosen = turn.checked_rem(targets.len()).and_then(|position| targets.get(position));
        chosen.cloned().map(Some).ok_or_else(|| not_allowed(service.name, *first))
    }
}

fn not_allowed(name: &str, address: IpAddr) -> ResolutionError {
    ResolutionError::NotAllowed { name: name.to_owned(), address: address.to_string() }
}

/// Returns the name of the Service port with this number, or `""` if the port has no name. None if the
/// Service does not have this port.
pub fn service_port_name(service: &Object, port: u16) -> Option<&str> {
    let ports = service.at(&["spec", "ports"]).and_then(Value::as_array)?;
    let is_port = |entry: &&Value| entry.get("port").and_then(Value::as_u64) == Some(port.into());
    let entry = ports.iter().find(is_port)?;
    Some(entry.get("name").and_then(Value::as_str).unwrap_or_default())
}

/// Returns the first IP address of each ready endpoint of a slice, with the number of the port `port_name`.
///
/// An endpoint without the condition `ready` counts as ready. Names of endpoints are not resolved.
fn ready_addresses(slice: &Object, port_name: &str) -> Vec<(IpAddr, u16)> {
    let list = |field: &str| slice.get(field).and_then(Value::as_array).into_iter().flatten();
    let port = list("ports").find_map(|port| {
        let name = port.get("name").and_then(Value::as_str).unwrap_or_default();
        let number = port.get("port").and_then(Value::as_u64).filter(|_| name == port_name)?;
        u16::try_from(number).ok()
    });
    let Some(port) = port else { return Vec::new() };
    let is_ready = |endpoint: &&Value| {
        endpoint.get("conditions").and_then(|c| c.get("ready")).and_then(Value::as_bool) != Some(false)
    };
    let first_address =
        |endpoint: &Value| endpoint.get("addresses")?.as_array()?.first()?.as_str()?.parse().ok();
    list("endpoints").filter(is_ready).filter_map(first_address).map(|address| (address, port)).collect()
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::SeededRng;
    use apimachinery::names::Preset;
    use serde_json::json;

    use super::*;

    struct Stored {
        service: Value,
        slices: Vec<Value>,
    }

    #[async_trait]
    impl ServiceLookup for Stored {
        async fn service(&self, _: &str, _: &str) -> Result<Option<Arc<Object>>, Status> {
            Ok(Object::from_value(self.service.clone()).ok().map(Arc::new))
        }

        async fn endpoint_slices(&self, _: &str) -> Result<Vec<Arc<Object>>, Status> {
            let object = |value: &Value| Arc::new(Object::from_value(value.clone()).unwrap());
            Ok(self.slices.iter().map(object).collect())
        }
    }

    fn resolver(spec: Value, addresses: &[&str]) -> ServiceResolver {
        let endpoints: Vec<Value> = addresses.iter().map(|address| json!({"addresses": [address]})).collect();
        let names = Arc::new(Names::new(Preset::Kubernetes, "").unwrap());
        let label = names.label_key("service-name");
        let slice = json!({
            "metadata": {"name": "x", "labels": {(label): "s"}},
            "ports": [{"name": "web", "port": 8443}], "endpoints": endpoints,
        });
        let stored =
            Stored { service: json!({"metadata": {"name": "s"}, "spec": spec}), slices: vec![slice] };
        let (map, rng) = (ServiceMap::default(), Arc::new(SeededRng::new(1)));
        ServiceResolver::new(Arc::new(stored), map, names, rng, Arc::default())
    }

    async fn origin(resolver: &ServiceResolver, routing: Routing) -> Result<String, String> {
        let service = ServicePort { namespace: "n", name: "s", port: 443 };
        let target = resolver.resolve(service, routing).await;
        target.map(|target| target.origin()).map_err(|error| error.to_string())
    }

    fn cluster_ip(address: &str) -> Value {
        json!({"clusterIP": address, "ports": [{"name": "web", "port": 443}]})
    }

    #[tokio::test]
    async fn ready_endpoints_are_chosen_in_turn_and_forbidden_ones_never() {
        let resolver = resolver(cluster_ip("10.0.0.9"), &["10.0.0.1", "127.0.0.1", "10.0.0.2", "name"]);
        let mut chosen = Vec::new();
        for _ in 0..4 {
            chosen.push(origin(&resolver, Routing::Endpoints).await.unwrap());
        }
        assert_eq!(chosen[0], chosen[2]);
        assert_eq!(chosen[1], chosen[3]);
        chosen.truncate(2);
        chosen.sort_unstable();
        assert_eq!(chosen, ["https://10.0.0.1:8443", "https://10.0.0.2:8443"]);
    }

    #[tokio::test]
    async fn service_with_forbidden_endpoints_only_has_no_target() {
        let resolver = resolver(cluster_ip("10.0.0.9"), &["127.0.0.1", "169.254.169.254"]);
        let error = origin(&resolver, Routing::EndpointsOrClusterIp).await.unwrap_err();
        assert!(error.contains("127.0.0.1") && error.contains("--forwarding-address-exceptions"), "{error}");
    }

    #[tokio::test]
    async fn service_without_endpoints_is_reached_at_its_cluster_ip_if_routing_allows() {
        let service = resolver(cluster_ip("10.0.0.9"), &[]);
        let reached = origin(&service, Routing::EndpointsOrClusterIp).await.unwrap();
        assert_eq!(reached, "https://10.0.0.9:443");
        assert!(origin(&service, Routing::Endpoints).await.unwrap_err().contains("no address"));
        let headless = resolver(cluster_ip("None"), &[]);
        assert!(origin(&headless, Routing::EndpointsOrClusterIp).await.unwrap_err().contains("no address"));
        let local = resolver(cluster_ip("127.0.0.1"), &[]);
        assert!(origin(&local, Routing::EndpointsOrClusterIp).await.unwrap_err().contains("not allowed"));
    }

    #[tokio::test]
    async fn external_name_and_missing_port_are_resolved() {
        let external = resolver(json!({"type": "ExternalName", "externalName": "localhost"}), &[]);
        assert_eq!(origin(&external, Routing::Endpoints).await.unwrap(), "https://localhost:443");
        let other = resolver(json!({"ports": [{"port": 80}]}), &[]);
        let error = origin(&other, Routing::Endpoints).await.unwrap_err();
        assert_eq!(error, "no service port 443 found for service \"s\"");
    }
}
