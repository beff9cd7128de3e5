//! Sysctls: only the safe sysctls of the release are allowed.

use apimachinery::object::Value;

use super::Violation;
use crate::pod_security::pod::{Pod, text};

/// Safe sysctls with the minor release since which they are safe.
const SAFE: &[(u64, &str)] = &[
    (0, "kernel.shm_rmid_forced"),
    (0, "net.ipv4.ip_local_port_range"),
    (0, "net.ipv4.tcp_syncookies"),
    (0, "net.ipv4.ping_group_range"),
    (0, "net.ipv4.ip_unprivileged_port_start"),
    (27, "net.ipv4.ip_local_reserved_ports"),
    (29, "net.ipv4.tcp_keepalive_time"),
    (29, "net.ipv4.tcp_fin_timeout"),
    (29, "net.ipv4.tcp_keepalive_intvl"),
    (29, "net.ipv4.tcp_keepalive_probes"),
    (32, "net.ipv4.tcp_rmem"),
    (32, "net.ipv4.tcp_wmem"),
];

/// Rejects sysctls other than the safe sysctls of a release.
pub(super) fn safe(pod: &Pod<'_>, release: u64) -> Option<Violation> {
    let sysctls = pod.security(&["sysctls"]).and_then(Value::as_array);
    let names = sysctls.into_iter().flatten().map(|sysctl| text(sysctl, &["name"]));
    let is_safe = |name: &str| SAFE.iter().any(|(since, safe)| *since <= release && *safe == name);
    let unsafe_names: Vec<&str> = names.filter(|name| !is_safe(name)).collect();
    if unsafe_names.is_empty() {
        return None;
    }
    Some(Violation { reason: "forbidden sysctls", detail: unsafe_names.join(", ") })
}
