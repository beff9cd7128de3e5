//! Capabilities: only default capabilities (baseline), or all dropped (restricted).

use std::collections::BTreeSet;

use super::{Violation, format_containers, quoted};
use crate::pod_security::pod::{Container, Pod};

/// Default capabilities of containers.
const DEFAULT: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Rejects added capabilities beyond those that container runtimes add by default.
pub(super) fn no_more_than_default(pod: &Pod<'_>) -> Option<Violation> {
    let detail = added_beyond(pod, DEFAULT)?;
    Some(Violation { reason: "non-default capabilities", detail })
}

/// Requires that each container drops all capabilities and adds at most `NET_BIND_SERVICE`.
pub(super) fn all_dropped(pod: &Pod<'_>) -> Option<Violation> {
    let keeps_capabilities =
        |c: &Container<'_>| !c.security_list(&["capabilities", "drop"]).any(|name| name == "ALL");
    let drop_detail = format_containers(&pod.containers_that(keeps_capabilities))
        .map(|containers| format!("{containers} must set securityContext.capabilities.drop=[\"ALL\"]"));
    let details: Vec<String> =
        drop_detail.into_iter().chain(added_beyond(pod, &["NET_BIND_SERVICE"])).collect();
    if details.is_empty() {
        return None;
    }
    Some(Violation { reason: "unrestricted capabilities", detail: details.join("; ") })
}

fn added_beyond(pod: &Pod<'_>, allowed: &[&str]) -> Option<String> {
    let mut forbidden = BTreeSet::new();
    let violating = pod.containers_that(|container| {
        let added = container.security_list(&["capabilities", "add"]);
        let mut not_allowed = added.filter(|name| !allowed.contains(name)).peekable();
        let adds_forbidden = not_allowed.peek().is_some();
        forbidden.extend(not_allowed);
        adds_forbidden
    });
    let (containers, forbidden) = (format_containers(&violating)?, quoted(forbidden));
    Some(format!("{containers} must not include {forbidden} in securityContext.capabilities.add"))
}
