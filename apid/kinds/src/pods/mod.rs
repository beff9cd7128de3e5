//! Rules of pod specs, shared by pods and by all kinds with a pod template.

pub(crate) mod app_armor;
pub(crate) mod defaults;
pub(crate) mod disabled;
pub(crate) mod label_keys;
pub(crate) mod validation;
pub(crate) mod warnings;

use apimachinery::object::Object;

use crate::defaults::part;
use crate::table::cell::PathReader as _;

/// Lists of containers of a pod, in the order of kube-apiserver.
const CONTAINER_LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

/// Sub-domains of the annotations of seccomp profiles.
const SECCOMP_OF_POD: &str = "seccomp.security.alpha";
const SECCOMP_OF_CONTAINER: &str = "container.seccomp.security.alpha";

/// Removes `terminatingReplicas` from a new status unless the old status contains it: the feature is off by
/// default.
pub(crate) fn drop_terminating_replicas(new: &mut Object, old: &Object) {
    if old.find("status.terminatingReplicas").is_none()
        && let Some(status) = part(new, "status")
    {
        status.remove("terminatingReplicas");
    }
}
