//! Privileges: privileged containers and privilege escalation are forbidden.

use apimachinery::object::Value;

use super::{Violation, format_containers};
use crate::pod_security::pod::Pod;

/// Rejects privileged containers.
pub(super) fn privileged(pod: &Pod<'_>) -> Option<Violation> {
    let violating =
        pod.containers_that(|c| c.security(&["privileged"]).and_then(Value::as_bool).unwrap_or(false));
    let containers = format_containers(&violating)?;
    let detail = format!("{containers} must not set securityContext.privileged=true");
    Some(Violation { reason: "privileged", detail })
}

/// Requires that each container forbids privilege escalation.
pub(super) fn escalation(pod: &Pod<'_>) -> Option<Violation> {
    let allows_escalation = |value: Option<&Value>| value.and_then(Value::as_bool) != Some(false);
    let violating = pod.containers_that(|c| allows_escalation(c.security(&["allowPrivilegeEscalation"])));
    let containers = format_containers(&violating)?;
    let detail = format!("{containers} must set securityContext.allowPrivilegeEscalation=false");
    Some(Violation { reason: "allowPrivilegeEscalation != false", detail })
}
