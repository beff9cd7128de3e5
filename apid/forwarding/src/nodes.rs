//! Addresses of nodes and pods.
//!
//! # Reference
//!
//! kube-apiserver takes the first address of a node whose type comes first in `--kubelet-preferred-address-types`, and
//! the first IP address of a pod. It rejects addresses of this machine with 400 (see [`AddressPolicy`]).

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use apimachinery::object::{Object, Value};
use apimachinery::status::{Reason, Status};

use crate::target::{NameError, Scheme, Target};
use crate::{AddressNotAllowed, AddressPolicy};

/// Port of a kubelet whose node does not report a port.
pub const DEFAULT_KUBELET_PORT: u16 = 10250;

/// Address types of nodes in the order of preference, by default.
pub const DEFAULT_ADDRESS_TYPES: [&str; 5] =
    ["Hostname", "InternalDNS", "InternalIP", "ExternalDNS", "ExternalIP"];

/// Finds the addresses of nodes.
#[derive(Clone, Debug)]
pub struct NodeResolver {
    preferred_types: Vec<String>,
    addresses: Arc<AddressPolicy>,
    lookup_timeout: Duration,
}

/// The reason why a node cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeError {
    /// The node has no address of a preferred type. Contains the addresses as Go prints them.
    #[error("no preferred addresses found; known addresses: [{0}]")]
    NoAddress(String),
    /// The name of the node has no address, or one that is not allowed.
    #[error(transparent)]
    Name(#[from] NameError),
}

impl From<NodeError> for Status {
    fn from(error: NodeError) -> Status {
        match error {
            NodeError::NoAddress(_) => Status::failure(Reason::Unknown, error.to_string()),
            NodeError::Name(_) => Status::bad_request(error.to_string()),
        }
    }
}

impl NodeResolver {
    /// Creates a resolver. `preferred_types`: `--kubelet-preferred-address-types`. `lookup_timeout`: maximum time to
    /// find the addresses of a name.
    pub fn new(
        preferred_types: Vec<String>,
        addresses: Arc<AddressPolicy>,
        lookup_timeout: Duration,
    ) -> Self {
        NodeResolver { preferred_types, addresses, lookup_timeout }
    }

    /// Returns the target of the kubelet of a node.
    ///
    /// # Errors
    ///
    /// See [`NodeError`].
    pub async fn kubelet(&self, node: &Object) -> Result<Target, NodeError> {
        self.at_port(node, Scheme::Https, kubelet_port(node)).await
    }

    /// Returns the target of a port of a node.
    ///
    /// # Errors
    ///
    /// See [`NodeError`].
    pub async fn at_port(&self, node: &Object, scheme: Scheme, port: u16) -> Result<Target, NodeError> {
        let host = self.preferred_address(node)?;
        Ok(Target::at_host(scheme, &host, port, &self.addresses, self.lookup_timeout).await?)
    }

    fn preferred_address(&self, node: &Object) -> Result<String, NodeError> {
        let list = node.at(&["status", "addresses"]).and_then(Value::as_array);
        let text = |entry: &Value, field: &str| {
            entry.get(field).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let addresses: Vec<(String, String)> =
            list.into_iter().flatten().map(|entry| (text(entry, "type"), text(entry, "address"))).collect();
        let preferred =
            self.preferred_types.iter().find_map(|kind| addresses.iter().find(|(found, _)| found == kind));
        preferred.map(|(_, address)| address.clone()).ok_or_else(|| {
            let known: Vec<String> =
                addresses.iter().map(|(kind, address)| format!("{{{kind} {address}}}")).collect();
            NodeError::NoAddress(known.join(" "))
        })
    }
}

/// Returns the port of the kubelet of a node: from the status of the node, or [`DEFAULT_KUBELET_PORT`].
pub fn kubelet_port(node: &Object) -> u16 {
    let reported = node.at(&["status", "daemonEndpoints", "kubeletEndpoint", "Port"]).and_then(Value::as_u64);
    reported
        .and_then(|port| u16::try_from(port).ok())
        .filter(|port| *port > 0)
        .unwrap_or(DEFAULT_KUBELET_PORT)
}

/// Returns the target of a port of a pod, at the first address of its status.
///
/// # Errors
///
/// The pod has no address, or one that is not allowed.
pub fn pod_target(
    pod: &Object,
    scheme: Scheme,
    port: u16,
    addresses: &AddressPolicy,
) -> Result<Target, AddressNotAllowed> {
    let address = pod_address(pod).ok_or(AddressNotAllowed)?;
    Target::at_address(scheme, address, port, addresses)
}

/// Returns the first IP address of a pod.
pub fn pod_address(pod: &Object) -> Option<IpAddr> {
    let ips = pod.at(&["status", "podIPs"]).and_then(Value::as_array);
    let first = ips.and_then(|ips| ips.first()?.get("ip")?.as_str());
    first.or_else(|| pod.str_at(&["status", "podIP"]))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(status: Value) -> Object {
        Object::from_value(json!({"metadata": {"name": "n"}, "status": status})).unwrap()
    }

    fn resolver(types: &[&str]) -> NodeResolver {
        NodeResolver::new(
            types.iter().map(|kind| (*kind).to_owned()).collect(),
            Arc::default(),
            Duration::from_secs(30),
        )
    }

    #[tokio::test]
    async fn kubelet_is_reached_at_preferred_address_and_reported_port() {
        let addresses = json!([
            {"type": "ExternalIP", "address": "192.0.2.7"},
            {"type": "InternalIP", "address": "10.0.0.7"},
            {"type": "InternalIP", "address": "fd00::7"},
        ]);
        let reported = json!({"kubeletEndpoint": {"Port": 4444}});
        let plain = node(json!({"addresses": addresses}));
        let with_port = node(json!({"addresses": addresses, "daemonEndpoints": reported}));
        for (types, node, expected) in [
            (&DEFAULT_ADDRESS_TYPES[..], &plain, "https://10.0.0.7:10250"),
            (&["ExternalIP", "InternalIP"], &with_port, "https://192.0.2.7:4444"),
            (&["ExternalDNS", "InternalIP"], &with_port, "https://10.0.0.7:4444"),
        ] {
            assert_eq!(resolver(types).kubelet(node).await.unwrap().origin(), expected);
        }
        let error = resolver(&["Hostname"]).kubelet(&plain).await.unwrap_err();
        let known = "[{ExternalIP 192.0.2.7} {InternalIP 10.0.0.7} {InternalIP fd00::7}]";
        assert_eq!(error.to_string(), format!("no preferred addresses found; known addresses: {known}"));
        assert_eq!((Status::from(error).code, kubelet_port(&with_port)), (500, 4444));
    }

    /// CVE-2022-3294: the address of a node is checked, whatever its type is.
    #[tokio::test]
    async fn node_and_pod_at_local_address_are_rejected() {
        for address in ["127.0.0.1", "localhost", "169.254.169.254", "::ffff:127.0.0.1"] {
            let node = node(json!({"addresses": [{"type": "Hostname", "address": address}]}));
            let error = Status::from(resolver(&["Hostname"]).kubelet(&node).await.unwrap_err());
            assert_eq!((error.code, error.message.as_str()), (400, "address not allowed"), "{address}");
        }
        let policy = AddressPolicy::default();
        for (status, expected) in [
            (json!({"podIP": "10.0.0.1"}), Some("http://10.0.0.1:80")),
            (json!({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.2"}]}), Some("http://10.0.0.2:80")),
            (json!({"podIP": "127.0.0.1"}), None),
            (json!({"podIP": "::ffff:127.0.0.1"}), None),
            (json!({}), None),
        ] {
            let target = pod_target(&node(status.clone()), Scheme::Http, 80, &policy);
            assert_eq!(target.ok().map(|target| target.origin()).as_deref(), expected, "{status}");
        }
    }
}
