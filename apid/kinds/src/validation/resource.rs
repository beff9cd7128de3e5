//! Rules for resource names and quantities of containers.

use apimachinery::field::FieldErrors;

use super::Field;
use crate::format;

/// Prefix of resource names for huge pages.
pub(crate) const HUGE_PAGES: &str = "hugepages-";

/// Native resources of a container.
const CONTAINER_RESOURCES: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];

/// Resources with a name of their own, of containers and quotas.
const STANDARD_RESOURCES: [&str; 20] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "storage",
    "pods",
    "services",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "services.nodeports",
    "services.loadbalancers",
    "requests.cpu",
    "requests.memory",
    "requests.storage",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
];

/// Whether a resource is native: its name has no domain, or the domain of the project.
pub(crate) fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

/// Whether a resource belongs to a vendor: it is not native, and its name does not begin with `requests.`.
pub(crate) fn is_extended(name: &str) -> bool {
    if is_native(name) || name.starts_with("requests.") {
        return false;
    }
    format::qualified_name(&format!("requests.{name}")).is_empty()
}

/// Whether a resource is a size of huge pages.
pub(crate) fn is_huge_page(name: &str) -> bool {
    name.starts_with(HUGE_PAGES)
}

/// Whether requests may be smaller than limits.
pub(crate) fn allows_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

/// Validates the name of a container resource.
pub(crate) fn check_container_resource_name(field: &Field<'_, '_>, name: &str, errors: &mut FieldErrors) {
    let invalid = format::qualified_name(name);
    for message in &invalid {
        errors.push(field.invalid_value(name, message));
    }
    if !name.contains('/') {
        if invalid.is_empty() && !STANDARD_RESOURCES.contains(&name) && !is_huge_page(name) {
            errors.push(field.invalid_value(name, "must be a standard resource type or fully qualified"));
        }
        if !CONTAINER_RESOURCES.contains(&name) && !is_huge_page(name) {
            errors.push(field.invalid_value(name, "must be a standard resource for containers"));
        }
    } else if !is_native(name) && !is_extended(name) {
        errors.push(field.invalid_value(name, "doesn't follow extended resource name standard"));
    }
}
