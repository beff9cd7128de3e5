//! Privileges: privileged containers and privilege escalation are forbidden.

use apimachinery::object::Value;

use super::{Violation, format_containers};
use crate::pod_security::pod::Pod;

/// Rejects privileged containers.
pub(super) fn privileged(pod: &Pod<'_>) -> Option<Violation> {
    let violating =
        pod.containers_that(|c| c.security(&["privileged"]).and_then(Value::as_bool).unwrap_or(false));
    if violating.is_empty() {
        return None;
    }
    let detail = format!("{} must not set securityContext.privileged=true", format_containers(&violating));
    Some(Violation { reason: "privileged", detail })
}

/// Requires that each container forbids privilege escalation.
pub(super) fn escalation(pod: &Pod<'_>) -> Option<Violation> {
    let allows_escalation = |value: Option<&Value>| value.and_then(Value::as_bool) != Some(false);
    let violating = pod.containers_that(|c| allows_escalation(c.security(&["allowPrivilegeEscalation"])));
    if violating.is_empty() {
        return None;
    }
    let detail =
        format!("{} must set securityContext.allowPrivilegeEscalation=false", format_containers(&violating));
    Some(Violation { reason: "allowPrivilegeEscalation != false", detail })
}

/// The rule of [`escalation`] since release 1.25: it exempts Windows pods, which have no privilege
/// escalation.
pub(super) fn escalation_1_25(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_windows() { None } else { escalation(pod) }
}
