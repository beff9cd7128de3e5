//! Subresources that kube-apiserver forwards to nodes, pods and Services: log, exec, attach, portforward,
//! proxy.
//!
//! apid does not connect to nodes and pods. It checks what kube-apiserver checks before it connects, in the
//! same order: first admission, with the operation `CONNECT`, then the object. A request for a log is a read
//! without admission. A request that would then need a connection is answered with 501 (nodes and their containers) or
//! with 503 (addresses of pods and Services).
//!
//! INVARIANT (no connection): apid connects to no address of an object, so a client cannot reach the network of this
//! server through it.

use std::net::IpAddr;

use admission::Operation;
use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::gvk::GroupKind;
use apimachinery::object::{Object, Value};

use apimachinery::status::{Reason, Status};

use super::Call;
use super::response_object::tree;
use crate::VerbFuture;

/// Query parameters of requests for logs and of requests to containers, and the path of a proxy request.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// The streams and the terminal of exec and attach that the client requests: `stdin`, `stdout`, `stderr`,
    /// `tty`.
    pub streams: Vec<&'static str>,
    /// The command of an exec.
    pub command: Vec<String>,
    /// The ports of a port-forward.
    pub ports: Vec<i32>,
    /// The path after `proxy`, with a leading slash; `""` if there is none.
    pub path: String,
    /// Name of the container; `""` for the default or only container of the pod.
    pub container: String,
    /// Number of lines from the end of the log; None means all.
    pub tail_lines: Option<i64>,
    /// Maximum size of the log in bytes.
    pub limit_bytes: Option<i64>,
    /// Maximum age of the returned log lines in seconds.
    pub since_seconds: Option<i64>,
    /// Whether the request has `sinceTime`, the minimum time of the returned log lines.
    pub has_since_time: bool,
    /// Whether the request selects one output stream of the log, which needs a feature that is off by default.
    pub has_stream: bool,
}

/// Checks a request for a subresource that needs a connection. `Ok`: the empty log of a pod without a node.
///
/// # Errors
///
/// 403 from admission, 404 for a missing object or node, 400 for an invalid name, container or address, and for exec,
/// attach and port-forward to a pod without a node. 422 for invalid log options, 503 for a Service without endpoints. A
/// valid request returns 503 if it needs a connection to an address, and 501 if it needs one to a node.
pub fn connect<'a>(call: &'a Call<'a>, options: &'a ConnectOptions) -> VerbFuture<'a, ()> {
    Box::pin(async move {
        let resource = &call.collection.resource.group_resource;
        let container = admitted_container(call, options).await?;
        match (resource.resource.as_str(), call.subresource) {
            ("services", "proxy") => Err(service_proxy(call).await?),
            ("pods", "proxy") => Err(pod_proxy(call).await?),
            ("pods", subresource @ ("log" | "exec" | "attach" | "portforward")) => {
                let is_log = subresource == "log";
                if is_log {
                    check_log_options(call, options)?;
                }
                let pod = find_object(call).await?;
                if subresource != "portforward" {
                    check_container(call, &pod, &container)?;
                }
                match pod.str_at(&["spec", "nodeName"]).filter(|node| !node.is_empty()) {
                    Some(node) => find_core_object(call, "Node", "", node).await?,
                    None if is_log => return Ok(()),
                    None => {
                        let text = format!("pod {} does not have a host assigned", call.name);
                        return Err(Status::bad_request(text));
                    }
                };
                Err(Status::not_implemented(resource, subresource))
            }
            _ => {
                find_object(call).await?;
                Err(Status::not_implemented(resource, call.subresource))
            }
        }
    })
}

/// Runs admission for a connection. Returns the name of the container, which admission may change.
async fn admitted_container(call: &Call<'_>, options: &ConnectOptions) -> Result<String, Status> {
    let subresource = call.collection.served.kind.subresource(call.subresource);
    let Some(subresource) = subresource.filter(|_| call.subresource != "log") else {
        return Ok(options.container.clone());
    };
    let mut object = options.to_object(subresource.kind);
    let build_options = || Value::Null;
    let attributes = call.admission(Operation::Connect, false, &build_options);
    call.api_state.admission.mutate(&attributes, Some(&mut object)).await?;
    call.api_state.admission.validate(&attributes, Some(&object)).await?;
    Ok(object.get("container").and_then(Value::as_str).unwrap_or_default().to_owned())
}

impl ConnectOptions {
    /// The options as an object of a kind such as `PodExecOptions`, for admission.
    fn to_object(&self, kind: &str) -> Object {
        let mut object = Object::default();
        object.set_type("v1", kind);
        let mut add = |field: &str, value: Value| drop(object.0.insert(field.to_owned(), value));
        if matches!(kind, "PodExecOptions" | "PodAttachOptions") {
            self.streams.iter().for_each(|stream| add(stream, true.into()));
            if !self.container.is_empty() {
                add("container", self.container.as_str().into());
            }
        }
        match kind {
            "PodExecOptions" if self.command.is_empty() => add("command", Value::Null),
            "PodExecOptions" => add("command", self.command.clone().into()),
            "PodPortForwardOptions" if !self.ports.is_empty() => add("ports", self.ports.clone().into()),
            "PodProxyOptions" | "ServiceProxyOptions" | "NodeProxyOptions" if !self.path.is_empty() => {
                add("path", self.path.as_str().into());
            }
            _ => {}
        }
        object
    }
}

/// Checks the options of a request for the log of a container.
fn check_log_options(call: &Call<'_>, options: &ConnectOptions) -> Result<(), Status> {
    let errors = log_option_errors(options);
    if errors.is_empty() {
        return Ok(());
    }
    let kind = GroupKind { group: String::new(), kind: "PodLogOptions".to_owned() };
    Err(Status::invalid(&kind, call.name, &errors))
}

fn log_option_errors(options: &ConnectOptions) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let mut require = |name: &str, value: Option<i64>, min: i64, text: &str| {
        if let Some(value) = value.filter(|value| *value < min) {
            errors.push(FieldError::invalid(&FieldPath::new(name), value, text));
        }
    };
    require("tailLines", options.tail_lines, 0, "must be greater than or equal to 0");
    require("limitBytes", options.limit_bytes, 1, "must be greater than 0");
    if options.has_since_time && options.since_seconds.is_some() {
        let text = "at most one of `sinceTime` or `sinceSeconds` may be specified";
        // As in kube-apiserver, the error names a field without a name.
        errors.push(FieldError::forbidden(&FieldPath::new("[]"), text));
    } else {
        require("sinceSeconds", options.since_seconds, 1, "must be greater than 0");
    }
    if options.has_stream {
        errors.push(FieldError::forbidden(&FieldPath::new("stream"), "may not be specified"));
    }
    errors
}

/// Rejects a container that the pod does not have, and an empty name if the pod has no default container.
fn check_container(call: &Call<'_>, pod: &Object, container: &str) -> Result<(), Status> {
    let names = |list: &str| {
        let items = pod.at(&["spec", list]).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(|item| item.get("name")?.as_str()).collect::<Vec<_>>()
    };
    let (containers, init_containers) = (names("containers"), names("initContainers"));
    let default_container = call.api_state.names.label_sub_key("kubectl", "default-container");
    let container = match container {
        "" => pod.annotation(&default_container).unwrap_or_default(),
        name => name,
    };
    let pod_name = pod.name();
    if !container.is_empty() {
        let ephemeral = names("ephemeralContainers");
        let is_known =
            containers.iter().chain(&init_containers).chain(&ephemeral).any(|name| *name == container);
        let invalid =
            || Status::bad_request(format!("container {container} is not valid for pod {pod_name}"));
        return is_known.then_some(()).ok_or_else(invalid);
    }
    if containers.len() == 1 {
        return Ok(());
    }
    let mut text = format!("a container name must be specified for pod {pod_name}");
    if !containers.is_empty() {
        text.push_str(&format!(", choose one of: [{}]", containers.join(" ")));
        if !init_containers.is_empty() {
            text.push_str(&format!(" or one of the init containers: [{}]", init_containers.join(" ")));
        }
    }
    Err(Status::bad_request(text))
}

/// Checks a proxy request to a pod. `Ok` is the 503 for an allowed request: apid does not connect.
async fn pod_proxy(call: &Call<'_>) -> Result<Status, Status> {
    let name = split_name(call.name).ok_or_else(|| invalid_name(call, "pod"))?;
    let pod = find_object(&Call { name: name.object, ..*call }).await?;
    let ips = pod.at(&["status", "podIPs"]).and_then(Value::as_array);
    let first = ips.and_then(|ips| ips.first()?.get("ip")?.as_str());
    match first.or_else(|| pod.str_at(&["status", "podIP"])).is_some_and(is_global_unicast) {
        true => Ok(unreachable()),
        false => Err(Status::bad_request("address not allowed")),
    }
}

/// Whether a text is an IP address, but not a loopback, link-local, multicast, broadcast or unspecified address.
fn is_global_unicast(text: &str) -> bool {
    match text.parse::<IpAddr>() {
        Ok(address) if address.is_loopback() || address.is_multicast() || address.is_unspecified() => false,
        Ok(IpAddr::V4(address)) => !address.is_link_local() && !address.is_broadcast(),
        Ok(IpAddr::V6(address)) => !address.is_unicast_link_local(),
        Err(_) => false,
    }
}

/// Checks a proxy request to a Service. `Ok` is the 503 for an allowed request: apid does not connect.
async fn service_proxy(call: &Call<'_>) -> Result<Status, Status> {
    let name = split_name(call.name).ok_or_else(|| invalid_name(call, "service"))?;
    let service = find_object(&Call { name: name.object, ..*call }).await?;
    let mut port_name = name.port.to_owned();
    if let Ok(number) = name.port.parse::<i64>() {
        let ports = service.at(&["spec", "ports"]).and_then(Value::as_array);
        let has_number = |port: &&Value| port.get("port").and_then(Value::as_i64) == Some(number);
        let Some(port) = ports.and_then(|ports| ports.iter().find(has_number)) else {
            let text = format!("no service port {number} found for service {:?}", name.object);
            return Err(Status::failure(Reason::ServiceUnavailable, text));
        };
        port_name = port.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    }
    let endpoints = find_core_object(call, "Endpoints", call.namespace, name.object).await?;
    let subsets = endpoints.at(&["subsets"]).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let has_port = |subset: &&Value| {
        let ports = subset.get("ports").and_then(Value::as_array).into_iter().flatten();
        let mut names = ports.map(|port| port.get("name").and_then(Value::as_str).unwrap_or_default());
        names.any(|name| name == port_name)
    };
    let has_addresses = |subset: &&Value| {
        subset.get("addresses").and_then(Value::as_array).is_some_and(|addresses| !addresses.is_empty())
    };
    if !subsets.iter().filter(has_port).any(|subset| has_addresses(&subset)) {
        let name = if subsets.is_empty() { name.object } else { call.name };
        let text = format!("no endpoints available for service {name:?}");
        return Err(Status::failure(Reason::ServiceUnavailable, text));
    }
    Ok(unreachable())
}

/// 503 for an allowed proxy request: this server does not connect to the address.
fn unreachable() -> Status {
    let text =
        "error trying to reach service: this server does not connect to pods; use the address directly";
    Status::failure(Reason::ServiceUnavailable, text)
}

/// The name in the path of a proxy request.
#[derive(Debug, PartialEq, Eq)]
struct ProxyName<'a> {
    object: &'a str,
    /// The name or number of a port, `""` if none is given.
    port: &'a str,
}

/// Splits `NAME`, `NAME:PORT` or `SCHEME:NAME:PORT`; None for another form or scheme.
fn split_name(name: &str) -> Option<ProxyName<'_>> {
    let parts: Vec<&str> = name.split(':').collect();
    let (scheme, object, port) = match parts.as_slice() {
        [object] => ("", *object, ""),
        [object, port] => ("", *object, *port),
        [scheme, object, port] => (*scheme, *object, *port),
        _ => return None,
    };
    let is_valid = !object.is_empty() && matches!(scheme, "" | "http" | "https");
    is_valid.then_some(ProxyName { object, port })
}

fn invalid_name(call: &Call<'_>, kind: &str) -> Status {
    Status::bad_request(format!("invalid {kind} request {:?}", call.name))
}

/// Returns the object of a call, or 404.
async fn find_object(call: &Call<'_>) -> Result<Object, Status> {
    let item = Call { subresource: "", ..*call }.get_or_404().await?;
    tree(&item, item.revision())
}

/// Returns an object of another kind of the core group, or 404.
pub(super) async fn find_core_object(
    call: &Call<'_>,
    kind: &str,
    namespace: &str,
    name: &str,
) -> Result<Object, Status> {
    let collection = call.collection_of("", kind).ok_or_else(Status::unknown_resource)?;
    find_object(&Call { collection, namespace, name, ..*call }).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_and_group_addresses_are_not_proxied() {
        for (address, expected) in [
            ("10.0.0.1", true),
            ("2001:db8::1", true),
            ("", false),
            ("127.0.0.1", false),
            ("169.254.169.254", false),
            ("255.255.255.255", false),
            ("224.0.0.1", false),
            ("0.0.0.0", false),
            ("::1", false),
            ("fe80::1", false),
        ] {
            assert_eq!(is_global_unicast(address), expected, "{address}");
        }
    }

    #[test]
    fn proxy_name_splits_into_scheme_name_and_port() {
        let split = |name| split_name(name).map(|name| (name.object, name.port));
        for (name, expected) in [
            ("s", Some(("s", ""))),
            ("s:80", Some(("s", "80"))),
            ("s:", Some(("s", ""))),
            ("https:s:web", Some(("s", "web"))),
            (":s:", Some(("s", ""))),
            ("ftp:s:80", None),
            ("http::80", None),
            (":80", None),
            ("a:b:c:d", None),
        ] {
            assert_eq!(split(name), expected, "{name}");
        }
    }
}
