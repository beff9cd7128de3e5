//! Users: containers must not run as root.

use apimachinery::object::Value;

use super::{Violation, containers, setters};
use crate::pod_security::pod::Pod;

/// Requires that each container runs as a user other than root.
pub(super) fn not_root(pod: &Pod<'_>) -> Option<Violation> {
    let says = |value: Option<&Value>| value.and_then(Value::as_bool);
    let of_pod = says(pod.security(&["runAsNonRoot"]));
    let of_container = |expected: Option<bool>| {
        pod.containers_that(|container| says(container.security(&["runAsNonRoot"])) == expected)
    };
    const REASON: &str = "runAsNonRoot != true";
    if let Some(setters) = setters(of_pod == Some(false), &of_container(Some(false))) {
        let detail = format!("{setters} must not set securityContext.runAsNonRoot=false");
        return Some(Violation { reason: REASON, detail });
    }
    let silent = of_container(None);
    if of_pod == Some(true) || silent.is_empty() {
        return None;
    }
    let detail = format!("pod or {} must set securityContext.runAsNonRoot=true", containers(&silent));
    Some(Violation { reason: REASON, detail })
}

/// Rejects the user id 0.
pub(super) fn not_zero(pod: &Pod<'_>) -> Option<Violation> {
    let is_root = |value: Option<&Value>| value.and_then(Value::as_i64) == Some(0);
    let of_containers = pod.containers_that(|c| is_root(c.security(&["runAsUser"])));
    let setters = setters(is_root(pod.security(&["runAsUser"])), &of_containers)?;
    Some(Violation { reason: "runAsUser=0", detail: format!("{setters} must not set runAsUser=0") })
}
