//! Users: containers must not run as root.

use apimachinery::object::Value;

use super::{Violation, format_containers, format_setters};
use crate::pod_security::pod::Pod;

/// Requires `runAsNonRoot: true` in the pod or in each container, and forbids `false`.
pub(super) fn not_root(pod: &Pod<'_>) -> Option<Violation> {
    let flag = |value: Option<&Value>| value.and_then(Value::as_bool);
    let pod_flag = flag(pod.security(&["runAsNonRoot"]));
    let containers_with = |expected: Option<bool>| {
        pod.containers_that(|container| flag(container.security(&["runAsNonRoot"])) == expected)
    };
    const REASON: &str = "runAsNonRoot != true";
    if let Some(setters) = format_setters(pod_flag == Some(false), &containers_with(Some(false))) {
        let detail = format!("{setters} must not set securityContext.runAsNonRoot=false");
        return Some(Violation { reason: REASON, detail });
    }
    if pod_flag == Some(true) {
        return None;
    }
    let unset = format_containers(&containers_with(None))?;
    let detail = format!("pod or {unset} must set securityContext.runAsNonRoot=true");
    Some(Violation { reason: REASON, detail })
}

/// Rejects the user id 0.
pub(super) fn not_zero(pod: &Pod<'_>) -> Option<Violation> {
    let is_root = |value: Option<&Value>| value.and_then(Value::as_i64) == Some(0);
    let root_containers = pod.containers_that(|c| is_root(c.security(&["runAsUser"])));
    let setters = format_setters(is_root(pod.security(&["runAsUser"])), &root_containers)?;
    Some(Violation { reason: "runAsUser=0", detail: format!("{setters} must not set runAsUser=0") })
}
