//! SELinux: only container types are allowed; custom users and roles are forbidden.

use std::collections::BTreeSet;

use apimachinery::object::Value;

use super::{Violation, format_setters, plural, quoted};
use crate::pod_security::pod::{Pod, text};

/// Allowed types with the minor release since which they are allowed.
const ALLOWED: &[(u64, &str)] =
    &[(0, "container_t"), (0, "container_init_t"), (0, "container_kvm_t"), (31, "container_engine_t")];

/// Rejects SELinux users, roles, and types other than those that a release allows.
pub(super) fn options(pod: &Pod<'_>, release: u64) -> Option<Violation> {
    let is_allowed =
        |kind: &str| ALLOWED.iter().any(|(since, allowed)| *since <= release && *allowed == kind);
    let (mut types, mut user, mut role) = (BTreeSet::new(), false, false);
    let mut is_bad = |options: Option<&Value>| {
        let Some(options) = options else { return false };
        let kind = text(options, &["type"]);
        let is_bad_type = !kind.is_empty() && !is_allowed(kind);
        if is_bad_type {
            types.insert(kind.to_owned());
        }
        let is_set = |field| !text(options, &[field]).is_empty();
        user |= is_set("user");
        role |= is_set("role");
        is_bad_type || is_set("user") || is_set("role")
    };
    let is_pod_bad = is_bad(pod.security(&["seLinuxOptions"]));
    let bad_containers = pod.containers_that(|c| is_bad(c.security(&["seLinuxOptions"])));
    let setters = format_setters(is_pod_bad, &bad_containers)?;
    let mut faults = Vec::new();
    if !types.is_empty() {
        let kinds = quoted(types.iter().map(String::as_str));
        faults.push(format!("{} {kinds}", plural(types.len(), "type", "types")));
    }
    for (set, field) in [(user, "user"), (role, "role")] {
        if set {
            faults.push(format!("{field} may not be set"));
        }
    }
    let detail = format!("{setters} set forbidden securityContext.seLinuxOptions: {}", faults.join("; "));
    Some(Violation { reason: "seLinuxOptions", detail })
}
