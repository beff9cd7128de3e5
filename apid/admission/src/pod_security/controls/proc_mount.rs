//! Proc mount: `/proc` must have the default masks of the runtime.

use std::collections::BTreeSet;

use apimachinery::object::Value;

use super::{Violation, format_containers, quoted};
use crate::pod_security::pod::Pod;

/// Rejects proc mounts other than the default one.
pub(super) fn default_only(pod: &Pod<'_>) -> Option<Violation> {
    let mut mounts = BTreeSet::new();
    let violating = pod.containers_that(|container| {
        let mount = container.security(&["procMount"]).and_then(Value::as_str);
        let forbidden = mount.filter(|mount| *mount != "Default");
        mounts.extend(forbidden);
        forbidden.is_some()
    });
    let (containers, mounts) = (format_containers(&violating)?, quoted(mounts));
    let detail = format!("{containers} must not set securityContext.procMount to {mounts}");
    Some(Violation { reason: "procMount", detail })
}
