//! SELinux: only container types are allowed; custom users and roles are forbidden.

use std::collections::BTreeSet;

use apimachinery::object::Value;

use super::{Violation, format_setters, plural, quoted};
use crate::pod_security::pod::{Pod, text};

/// Rejects SELinux users, roles, and types other than those of containers.
pub(super) fn options(pod: &Pod<'_>) -> Option<Violation> {
    check_options(pod, &["container_t", "container_init_t", "container_kvm_t"])
}

/// The rule of [`options`] since release 1.31, with one more type.
pub(super) fn options_1_31(pod: &Pod<'_>) -> Option<Violation> {
    check_options(pod, &["container_t", "container_init_t", "container_kvm_t", "container_engine_t"])
}

fn check_options(pod: &Pod<'_>, allowed: &[&str]) -> Option<Violation> {
    let (mut types, mut user, mut role) = (BTreeSet::new(), false, false);
    let mut is_bad = |options: Option<&Value>| {
        let Some(options) = options else { return false };
        let kind = text(options, &["type"]);
        let is_bad_type = !kind.is_empty() && !allowed.contains(&kind);
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
