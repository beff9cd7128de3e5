//! Rules for resource names and quantities of containers.

use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use apimachinery::quantity;

use super::{Field, text};
use crate::format;
use crate::resource_name::{is_extended, is_native};

/// Prefix of resource names for huge pages.
pub(crate) const HUGE_PAGES: &str = "hugepages-";

/// Native resources of a container.
const CONTAINER_RESOURCES: [&str; 3] = ["cpu", "ephemeral-storage", "memory"];

/// Standard resources of containers and quotas, whose names have no domain.
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

/// Resources whose amounts are numbers of objects.
const COUNTABLE_RESOURCES: [&str; 9] = [
    "configmaps",
    "persistentvolumeclaims",
    "pods",
    "replicationcontrollers",
    "resourcequotas",
    "secrets",
    "services",
    "services.loadbalancers",
    "services.nodeports",
];

/// Number of billionths in a unit.
const NANOS_PER_UNIT: i128 = 1_000_000_000;

/// Validates that a quantity is not negative. The error shows the quantity as an integer, rounded away from
/// zero.
pub(crate) fn check_not_negative(amount: &Field<'_, '_>, errors: &mut FieldErrors) {
    let Ok((nanos, _)) = quantity::nanos(amount.text()) else { return };
    if nanos < 0 {
        let value = nanos / NANOS_PER_UNIT - i128::from(nanos % NANOS_PER_UNIT != 0);
        let value = i64::try_from(value).unwrap_or(i64::MIN);
        errors.push(amount.invalid_value(value, "must be a valid resource quantity"));
    }
}

/// Whether a resource is a size of huge pages.
pub(crate) fn is_huge_page(name: &str) -> bool {
    name.starts_with(HUGE_PAGES)
}

/// Whether requests of a resource may be smaller than its limits.
pub(crate) fn allows_overcommit(name: &str, names: &Names) -> bool {
    is_native(name, names) && !is_huge_page(name)
}

/// Whether a resource is a standard resource, a size of huge pages, or a request for huge pages.
fn is_standard(name: &str) -> bool {
    STANDARD_RESOURCES.contains(&name)
        || is_huge_page(name)
        || name.strip_prefix("requests.").is_some_and(is_huge_page)
}

/// Whether a quota can limit a standard resource with this name. `storage` is not such a name: quotas contain
/// `requests.storage` instead.
pub(crate) fn is_standard_quota(name: &str) -> bool {
    is_standard(name) && name != "storage"
}

/// Validates the name of a resource.
pub(crate) fn check_name(field: &Field<'_, '_>, name: &str, errors: &mut FieldErrors) {
    let is_valid = text::check_name(field, name, format::qualified_name, errors);
    if is_valid && !name.contains('/') && !is_standard(name) {
        errors.push(field.invalid_value(name, "must be a standard resource type or fully qualified"));
    }
}

/// Validates the name of a resource that a quota limits.
pub(crate) fn check_quota_name(field: &Field<'_, '_>, resource: &str, errors: &mut FieldErrors) {
    check_name(field, resource, errors);
    if !resource.contains('/') && !is_standard_quota(resource) {
        errors.push(field.invalid_value(resource, "must be a standard resource for quota"));
    }
}

/// Validates an amount: it is not negative, and amounts of countable resources are whole numbers.
pub(crate) fn check_amount(field: &Field<'_, '_>, resource: &str, names: &Names, errors: &mut FieldErrors) {
    let nanos = quantity::nanos(field.text()).map_or(0, |(nanos, _)| nanos);
    if nanos < 0 {
        errors.push(field.invalid("must be greater than or equal to 0"));
    }
    let is_countable = COUNTABLE_RESOURCES.contains(&resource) || is_extended(resource, names);
    // kube-apiserver refuses numbers above 64 bits.
    let is_whole = nanos % NANOS_PER_UNIT == 0 && nanos / NANOS_PER_UNIT <= i128::from(i64::MAX);
    if is_countable && !is_whole {
        errors.push(field.invalid("must be an integer"));
    }
}

/// Validates the name of a container resource.
pub(crate) fn check_container_resource_name(
    field: &Field<'_, '_>,
    name: &str,
    names: &Names,
    errors: &mut FieldErrors,
) {
    if CONTAINER_RESOURCES.contains(&name) {
        return;
    }
    let is_valid = text::check_name(field, name, format::qualified_name, errors);
    if !name.contains('/') {
        if is_valid && !STANDARD_RESOURCES.contains(&name) && !is_huge_page(name) {
            errors.push(field.invalid_value(name, "must be a standard resource type or fully qualified"));
        }
        if !is_huge_page(name) {
            errors.push(field.invalid_value(name, "must be a standard resource for containers"));
        }
    } else if !is_native(name, names) && !is_extended(name, names) {
        errors.push(field.invalid_value(name, "doesn't follow extended resource name standard"));
    }
}
