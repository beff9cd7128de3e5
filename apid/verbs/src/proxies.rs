//! Proxies: requests that pods, Services and nodes answer.
//!
//! # Contract
//!
//! [`proxy_request`] checks a request as kube-apiserver does before it connects, in the same order: admission with the
//! operation `CONNECT`, the name, the object, the address. The name is `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT`. The
//! result says where to connect and what to ask for; the caller connects.
//!
//! # Invariants
//!
//! INVARIANT (own endpoints): a request to a Service reaches only the address of `--service-resolver-file`, or
//! an address in its Endpoints. Such an address belongs to an existing pod in the namespace of the Service. Who
//! may write Endpoints can therefore direct no connection to another machine.
//!
//! # Reference
//!
//! The storage of pods, Services and nodes of kube-apiserver. Unlike kube-apiserver, which panics, a port of a pod may
//! have a name.

use std::net::IpAddr;

use apimachinery::object::{Object, Value};
use apimachinery::status::{Reason, Status};
use forwarding::{AddressNotAllowed, Forwarding, Scheme, ServicePort, Target, kubelet_port, pod_target};

use super::Call;
use super::connect::{ConnectOptions, admitted_options, find_core_object, find_object};
use crate::VerbFuture;

/// The backend of a proxy request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyTarget {
    /// The target of the connection.
    pub target: Target,
    /// Whether the backend is a kubelet, which verifies the client certificate of this server.
    pub is_kubelet: bool,
}

/// A request to a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyRequest {
    /// The backend.
    pub backend: ProxyTarget,
    /// The decoded path at the backend after admission; equal to [`ConnectOptions::path`] if admission left it alone.
    pub path: String,
}

/// Checks a request for the subresource `proxy`, and returns its backend and path.
///
/// # Errors
///
/// 403 from admission; 404 for a missing object; 400 for an invalid name or a forbidden address; 503 for a Service
/// without the port or without endpoints. 500 for a node without an address.
pub fn proxy_request<'a>(call: &'a Call<'a>, options: &'a ConnectOptions) -> VerbFuture<'a, ProxyRequest> {
    Box::pin(async move {
        let path = admitted_options(call, options).await?.path;
        let backend = match call.collection.kind.internal().group_resource.resource.as_str() {
            "services" => service(call).await,
            "pods" => pod(call).await,
            "nodes" => node(call).await,
            _ => Err(Status::not_implemented(
                &call.collection.kind.internal().group_resource,
                call.subresource,
            )),
        }?;
        Ok(ProxyRequest { backend, path })
    })
}

async fn pod(call: &Call<'_>) -> Result<ProxyTarget, Status> {
    let name = ProxyName::parse(call.name).ok_or_else(|| invalid_name(call, "pod"))?;
    let pod = find_object(&Call { name: name.object, ..*call }).await?;
    let port = pod_port(&pod, &name);
    // As in kube-apiserver, a pod without an allowed address is rejected whatever its port is.
    let target =
        pod_target(&pod, name.scheme, port.as_ref().map_or(0, |port| *port), &forwarding(call).addresses);
    let target = target.map_err(not_allowed)?;
    port?;
    Ok(ProxyTarget { target, is_kubelet: false })
}

/// Returns the requested port of a pod, or the first port of its containers, or the default port of the scheme.
fn pod_port(pod: &Object, name: &ProxyName<'_>) -> Result<u16, Status> {
    let containers = pod.at(&["spec", "containers"]).and_then(Value::as_array).into_iter().flatten();
    let mut ports =
        containers.filter_map(|container| container.get("ports")?.as_array()).flatten().filter_map(|port| {
            Some((port.get("name").and_then(Value::as_str), port.get("containerPort")?.as_u64()?))
        });
    let invalid = || Status::bad_request(format!("no port {:?} found for pod {:?}", name.port, name.object));
    let number = match name.port {
        "" => ports.next().map(|(_, number)| number),
        port => match port.parse() {
            Ok(number) => Some(number),
            Err(_) => {
                let named = ports.find(|(found, _)| *found == Some(port)).map(|(_, number)| number);
                Some(named.ok_or_else(invalid)?)
            }
        },
    };
    let default = if name.scheme == Scheme::Https { 443 } else { 80 };
    u16::try_from(number.unwrap_or(default)).ok().filter(|port| *port > 0).ok_or_else(invalid)
}

async fn node(call: &Call<'_>) -> Result<ProxyTarget, Status> {
    let name = ProxyName::parse(call.name).ok_or_else(|| invalid_name(call, "node"))?;
    let node = find_object(&Call { name: name.object, ..*call }).await?;
    let nodes = &forwarding(call).nodes;
    let kubelet = kubelet_port(&node);
    if name.port.is_empty() || name.port == kubelet.to_string() {
        return Ok(ProxyTarget { target: nodes.kubelet(&node).await?, is_kubelet: true });
    }
    let invalid = || Status::bad_request(format!("invalid port {:?} of node {:?}", name.port, name.object));
    let port = name.port.parse().ok().filter(|port| *port > 0).ok_or_else(invalid)?;
    Ok(ProxyTarget { target: nodes.at_port(&node, name.scheme, port).await?, is_kubelet: false })
}

async fn service(call: &Call<'_>) -> Result<ProxyTarget, Status> {
    let name = ProxyName::parse(call.name).ok_or_else(|| invalid_name(call, "service"))?;
    let service = find_object(&Call { name: name.object, ..*call }).await?;
    let ports: Vec<(&str, u16)> = service_ports(&service).collect();
    let (port_name, number) = match name.port.parse::<i64>() {
        Ok(number) => {
            let found = ports.iter().find(|(_, port)| i64::from(*port) == number);
            let Some((port_name, number)) = found else {
                return Err(unavailable(format!(
                    "no service port {number} found for service {:?}",
                    name.object
                )));
            };
            (*port_name, Some(*number))
        }
        Err(_) => (name.port, ports.iter().find(|(found, _)| *found == name.port).map(|(_, number)| *number)),
    };
    if let Some(port) = number {
        let port = ServicePort { namespace: call.namespace, name: name.object, port };
        if let Some(target) = forwarding(call).service_map.target(port) {
            return Ok(ProxyTarget { target, is_kubelet: false });
        }
    }
    let endpoints = find_core_object(call, "Endpoints", call.namespace, name.object).await;
    let endpoints = endpoints.map_err(|status| match status.reason {
        // As in kube-apiserver, the missing Endpoints are reported as a missing Service.
        Reason::NotFound => Status::not_found(&call.collection.kind.internal().group_resource, name.object),
        _ => status,
    })?;
    let subsets = endpoints.at(&["subsets"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let no_endpoints = |name: &str| unavailable(format!("no endpoints available for service {name:?}"));
    if subsets.is_empty() {
        return Err(no_endpoints(name.object));
    }
    let candidates: Vec<Endpoint<'_>> =
        subsets.iter().flat_map(|subset| endpoints_of(subset, port_name)).collect();
    let first = usize::try_from(call.api_state.rng.bits() % candidates.len().max(1) as u128).unwrap_or(0);
    for endpoint in candidates.iter().cycle().skip(first).take(candidates.len()) {
        if endpoint.is_of_pod(call).await? {
            let policy = &forwarding(call).addresses;
            if let Ok(target) = Target::at_address(name.scheme, endpoint.address, endpoint.port, policy) {
                return Ok(ProxyTarget { target, is_kubelet: false });
            }
        }
    }
    Err(no_endpoints(call.name))
}

fn service_ports(service: &Object) -> impl Iterator<Item = (&str, u16)> {
    let ports = service.at(&["spec", "ports"]).and_then(Value::as_array).into_iter().flatten();
    ports.filter_map(|port| {
        let name = port.get("name").and_then(Value::as_str).unwrap_or_default();
        Some((name, u16::try_from(port.get("port")?.as_u64()?).ok()?))
    })
}

/// A ready address of Endpoints, with its port.
struct Endpoint<'a> {
    address: IpAddr,
    port: u16,
    /// Namespace and name of the pod at the address.
    pod: Option<(&'a str, &'a str)>,
}

/// Returns the ready addresses of a subset that has the port.
fn endpoints_of<'a>(subset: &'a Value, port_name: &str) -> Vec<Endpoint<'a>> {
    let list = |field: &str| subset.get(field).and_then(Value::as_array).into_iter().flatten();
    let port = list("ports").find_map(|port| {
        let name = port.get("name").and_then(Value::as_str).unwrap_or_default();
        let number = port.get("port").and_then(Value::as_u64).filter(|_| name == port_name)?;
        u16::try_from(number).ok()
    });
    let Some(port) = port else { return Vec::new() };
    let text = |value: &'a Value, field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
    list("addresses")
        .filter_map(|address| {
            let reference = address.get("targetRef");
            let pod = reference.map(|reference| (text(reference, "namespace"), text(reference, "name")));
            Some(Endpoint { address: text(address, "ip").parse().ok()?, port, pod })
        })
        .collect()
}

impl Endpoint<'_> {
    /// Whether the address belongs to the pod that the endpoint names, in the namespace of the Service.
    async fn is_of_pod(&self, call: &Call<'_>) -> Result<bool, Status> {
        let Some((namespace, name)) = self.pod.filter(|(namespace, _)| *namespace == call.namespace) else {
            return Ok(false);
        };
        let pod = match find_core_object(call, "Pod", namespace, name).await {
            Ok(pod) => pod,
            Err(status) if status.reason == Reason::NotFound => return Ok(false),
            Err(status) => return Err(status),
        };
        let ips = pod.at(&["status", "podIPs"]).and_then(Value::as_array).into_iter().flatten();
        let mut ips = ips.filter_map(|ip| ip.get("ip")?.as_str()?.parse::<IpAddr>().ok());
        Ok(ips.any(|ip| ip == self.address))
    }
}

/// The name in the path of a proxy request.
#[derive(Debug, PartialEq, Eq)]
struct ProxyName<'a> {
    scheme: Scheme,
    object: &'a str,
    /// The name or number of a port, `""` if none is given.
    port: &'a str,
}

impl<'a> ProxyName<'a> {
    /// Splits `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT`; None for another form or scheme.
    fn parse(name: &'a str) -> Option<Self> {
        let parts: Vec<&str> = name.split(':').collect();
        let (scheme, object, port) = match parts.as_slice() {
            [object] => ("", *object, ""),
            [object, port] => ("", *object, *port),
            [scheme, object, port] => (*scheme, *object, *port),
            _ => return None,
        };
        let scheme = match scheme {
            "" | "http" => Scheme::Http,
            "https" => Scheme::Https,
            _ => return None,
        };
        (!object.is_empty()).then_some(ProxyName { scheme, object, port })
    }
}

fn forwarding<'a>(call: &Call<'a>) -> &'a Forwarding {
    &call.api_state.forwarding
}

fn invalid_name(call: &Call<'_>, kind: &str) -> Status {
    Status::bad_request(format!("invalid {kind} request {:?}", call.name))
}

fn not_allowed(error: AddressNotAllowed) -> Status {
    Status::bad_request(error.to_string())
}

fn unavailable(text: String) -> Status {
    Status::failure(Reason::ServiceUnavailable, text)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn proxy_name_splits_into_scheme_name_and_port() {
        let parse = |name| ProxyName::parse(name).map(|name| (name.scheme, name.object, name.port));
        for (name, expected) in [
            ("s", Some((Scheme::Http, "s", ""))),
            ("s:80", Some((Scheme::Http, "s", "80"))),
            ("s:", Some((Scheme::Http, "s", ""))),
            ("https:s:web", Some((Scheme::Https, "s", "web"))),
            (":s:", Some((Scheme::Http, "s", ""))),
            ("ftp:s:80", None),
            ("http::80", None),
            (":80", None),
            ("a:b:c:d", None),
        ] {
            assert_eq!(parse(name), expected, "{name}");
        }
    }

    #[test]
    fn pod_port_is_the_requested_or_first_or_default_port() {
        let pod = |ports| {
            let containers = json!([{"name": "a"}, {"name": "b", "ports": ports}]);
            Object::from_value(json!({"spec": {"containers": containers}})).unwrap()
        };
        let with_ports =
            pod(json!([{"name": "web", "containerPort": 8080}, {"name": "tls", "containerPort": 8443}]));
        let without = pod(json!([]));
        for (name, pod, expected) in [
            ("p", &with_ports, Some(8080)),
            ("p:9", &with_ports, Some(9)),
            ("p:tls", &with_ports, Some(8443)),
            ("p:other", &with_ports, None),
            ("p:70000", &with_ports, None),
            ("p:0", &with_ports, None),
            ("p", &without, Some(80)),
            ("https:p:", &without, Some(443)),
        ] {
            assert_eq!(pod_port(pod, &ProxyName::parse(name).unwrap()).ok(), expected, "{name}");
        }
    }
}
