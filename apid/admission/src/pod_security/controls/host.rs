//! Host access: host namespaces, host ports and, on Windows, host processes are forbidden.

use std::collections::BTreeSet;

use apimachinery::object::Value;

use super::{Violation, format_containers, format_setters, plural};
use crate::pod_security::pod::Pod;

/// Rejects the network, PID and IPC namespaces of the host.
pub(super) fn namespaces(pod: &Pod<'_>) -> Option<Violation> {
    let shared = ["hostNetwork", "hostPID", "hostIPC"].into_iter().filter(|field| pod.flag(field));
    let shared: Vec<String> = shared.map(|field| format!("{field}=true")).collect();
    if shared.is_empty() {
        return None;
    }
    Some(Violation { reason: "host namespaces", detail: shared.join(", ") })
}

/// Rejects ports of the host.
pub(super) fn ports(pod: &Pod<'_>) -> Option<Violation> {
    let mut used_ports = BTreeSet::new();
    let violating = pod.containers_that(|container| {
        let ports = container.ports().filter_map(|port| port.get("hostPort").and_then(Value::as_i64));
        let mut host_ports = ports.filter(|port| *port != 0).map(|port| port.to_string()).peekable();
        let has_host_port = host_ports.peek().is_some();
        used_ports.extend(host_ports);
        has_host_port
    });
    let containers = format_containers(&violating)?;
    let verb = plural(violating.len(), "uses", "use");
    let noun = plural(used_ports.len(), "hostPort", "hostPorts");
    let used_ports: Vec<String> = used_ports.into_iter().collect();
    let detail = format!("{containers} {verb} {noun} {}", used_ports.join(", "));
    Some(Violation { reason: "hostPort", detail })
}

/// Rejects Windows HostProcess containers.
pub(super) fn process(pod: &Pod<'_>) -> Option<Violation> {
    const PATH: &[&str] = &["windowsOptions", "hostProcess"];
    let is_set = |value: Option<&Value>| value.and_then(Value::as_bool) == Some(true);
    let setters =
        format_setters(is_set(pod.security(PATH)), &pod.containers_that(|c| is_set(c.security(PATH))))?;
    let detail = format!("{setters} must not set securityContext.windowsOptions.hostProcess=true");
    Some(Violation { reason: "hostProcess", detail })
}
