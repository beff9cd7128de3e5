//! Resolution of Service references to origins, without a cluster network.

use std::sync::Arc;

use apimachinery::clock::Rng;
use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use apimachinery::status::Status;
use async_trait::async_trait;

use crate::{ServiceMap, ServiceReference};

/// Reads Services and EndpointSlices.
#[async_trait]
pub trait ServiceLookup: Send + Sync + 'static {
    /// Reads a Service; None if it does not exist.
    async fn service(&self, namespace: &str, name: &str) -> Result<Option<Arc<Object>>, Status>;

    /// Lists the EndpointSlices of a namespace.
    async fn endpoint_slices(&self, namespace: &str) -> Result<Vec<Arc<Object>>, Status>;
}

/// Resolves Service references.
pub(crate) struct ServiceResolver {
    pub(crate) lookup: Arc<dyn ServiceLookup>,
    pub(crate) map: ServiceMap,
    pub(crate) names: Arc<Names>,
    pub(crate) rng: Arc<dyn Rng>,
}

/// The reason why a Service has no address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ResolutionError {
    #[error(
        "service {name:?} not found; this server has no cluster network: add \"{namespace}/{name}:{port}\" to the file of \
         --service-resolver-file, or create the service with an external name or with EndpointSlices"
    )]
    NotFound { namespace: String, name: String, port: u16 },
    #[error("no service port {port} found for service {name:?}")]
    NoPort { name: String, port: u16 },
    #[error(
        "no address for service {name:?}: add \"{namespace}/{name}:{port}\" to the file of --service-resolver-file, set \
         the type ExternalName, or add a ready address to an EndpointSlice of the service"
    )]
    NoAddress { namespace: String, name: String, port: u16 },
    #[error("service {name:?} cannot be read: {message}")]
    Unreadable { name: String, message: String },
}

impl ServiceResolver {
    /// Returns the origin of a Service: from the [`ServiceMap`], from its external name, or from a random
    /// ready address of its EndpointSlices.
    pub(crate) async fn resolve(&self, service: &ServiceReference) -> Result<String, ResolutionError> {
        if let Some(origin) = self.map.origin(service) {
            return Ok(origin.to_owned());
        }
        let ServiceReference { namespace, name, port, .. } = service;
        let unreadable =
            |status: Status| ResolutionError::Unreadable { name: name.clone(), message: status.message };
        let found = self.lookup.service(namespace, name).await.map_err(unreadable)?;
        let Some(found) = found else {
            let (namespace, name) = (namespace.clone(), name.clone());
            return Err(ResolutionError::NotFound { namespace, name, port: *port });
        };
        if found.str_at(&["spec", "type"]) == Some("ExternalName") {
            let host = found.str_at(&["spec", "externalName"]).unwrap_or_default();
            return Ok(origin(host, *port));
        }
        let port_name = service_port_name(&found, *port)
            .ok_or_else(|| ResolutionError::NoPort { name: name.clone(), port: *port })?;
        let slices = self.lookup.endpoint_slices(namespace).await.map_err(unreadable)?;
        let label = self.names.label_key("service-name");
        let service_slices = slices.iter().filter(|slice| slice.label(&label) == Some(name.as_str()));
        let addresses: Vec<(&str, u16)> =
            service_slices.flat_map(|slice| ready_addresses(slice, port_name)).collect();
        let position = usize::try_from(self.rng.bits() % addresses.len().max(1) as u128).unwrap_or(0);
        match addresses.get(position) {
            Some((host, port)) => Ok(origin(host, *port)),
            None => Err(ResolutionError::NoAddress {
                namespace: namespace.clone(),
                name: name.clone(),
                port: *port,
            }),
        }
    }
}

/// Returns the name of the Service port with this number, or `""` if the port has no name. None if the
/// Service does not have this port.
fn service_port_name(service: &Object, port: u16) -> Option<&str> {
    let ports = service.at(&["spec", "ports"]).and_then(Value::as_array)?;
    let is_port = |entry: &&Value| entry.get("port").and_then(Value::as_u64) == Some(port.into());
    let entry = ports.iter().find(is_port)?;
    Some(entry.get("name").and_then(Value::as_str).unwrap_or_default())
}

/// Returns the first address of each ready endpoint of a slice, with the number of the port `port_name`.
///
/// An endpoint without the condition `ready` counts as ready.
fn ready_addresses<'a>(slice: &'a Object, port_name: &str) -> Vec<(&'a str, u16)> {
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
    let first_address = |endpoint: &'a Value| endpoint.get("addresses")?.as_array()?.first()?.as_str();
    list("endpoints").filter(is_ready).filter_map(first_address).map(|address| (address, port)).collect()
}

/// Returns the `https` origin of a host and port. Only the [`ServiceMap`] can give an `http` origin.
fn origin(host: &str, port: u16) -> String {
    if host.contains(':') { format!("https://[{host}]:{port}") } else { format!("https://{host}:{port}") }
}
