//! Resources of containers and the overhead of pods.

use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use schema::quantity;

use super::PodFacts;
use crate::resource_name;
use crate::validation::{Field, resource};

/// Validates the resources of a container.
pub(super) fn container(resources: &Field<'_, '_>, names: &Names, errors: &mut FieldErrors) {
    let (limits, requests) = (resources.child("limits"), resources.child("requests"));
    let mut has_cpu_or_memory = false;
    let mut has_huge_pages = false;
    for (is_request, amounts) in [(false, &limits), (true, &requests)] {
        for (name, amount) in amounts.entries() {
            resource::check_container_resource_name(&amount, name, names, errors);
            let nanos = self::amount(&amount, name, names, errors);
            has_cpu_or_memory |= matches!(name, "cpu" | "memory");
            has_huge_pages |= resource::is_huge_page(name);
            if is_request {
                compare_with_limit(&requests, &limits, (name, nanos), names, errors);
            }
        }
    }
    if has_huge_pages && !has_cpu_or_memory {
        errors.push(resources.forbidden("HugePages require cpu or memory"));
    }
}

/// Compares the request of a resource, given as its name and its amount in billionths, with its limit.
fn compare_with_limit(
    requests: &Field<'_, '_>,
    limits: &Field<'_, '_>,
    (name, requested): (&str, Option<i128>),
    names: &Names,
    errors: &mut FieldErrors,
) {
    let limit = limits.child(name);
    if !limit.is_present() {
        if !resource::allows_overcommit(name, names) {
            errors.push(limits.required("Limit must be set for non overcommitable resources"));
        }
        return;
    }
    let (Some(requested), Ok((allowed, _))) = (requested, quantity::nanos(limit.text())) else { return };
    let invalid = |detail: &str| requests.invalid_value(requests.child(name).text(), detail);
    if requested != allowed && !resource::allows_overcommit(name, names) {
        let detail = format!("must be equal to {name} limit of {}", limit.text());
        errors.push(invalid(&detail));
    } else if requested > allowed {
        let detail = format!("must be less than or equal to {name} limit of {}", limit.text());
        errors.push(invalid(&detail));
    }
}

/// Validates an amount of a resource. Returns the amount in billionths; None if it is not a quantity.
fn amount(amount: &Field<'_, '_>, name: &str, names: &Names, errors: &mut FieldErrors) -> Option<i128> {
    let (nanos, _) = quantity::nanos(amount.text()).ok()?;
    if nanos < 0 {
        errors.push(amount.invalid("must be greater than or equal to 0"));
    }
    const UNIT: i128 = 1_000_000_000;
    if resource_name::is_extended(name, names) && nanos % UNIT != 0 {
        errors.push(amount.invalid("must be an integer"));
    }
    if let Some(size) = name.strip_prefix(resource::HUGE_PAGES)
        && let Ok((size, _)) = quantity::nanos(size)
        && size > 0
        && nanos % size != 0
    {
        let detail = format!("{} is not positive integer multiple of {name}", amount.text());
        errors.push(amount.invalid(&detail));
    }
    Some(nanos)
}

/// Validates the overhead of a pod, which kube-apiserver validates as limits.
pub(crate) fn overhead(overhead: &Field<'_, '_>, names: &Names, errors: &mut FieldErrors) {
    let limits = overhead.child("limits");
    let (mut has_cpu_or_memory, mut has_huge_pages) = (false, false);
    for (name, value) in overhead.entries() {
        let limits = limits.entry(name, value.value());
        resource::check_container_resource_name(&limits, name, names, errors);
        amount(&limits, name, names, errors);
        has_cpu_or_memory |= matches!(name, "cpu" | "memory");
        has_huge_pages |= resource::is_huge_page(name);
    }
    if has_huge_pages && !has_cpu_or_memory {
        errors.push(overhead.forbidden("HugePages require cpu or memory"));
    }
}

/// Validates the resize policy of a container.
pub(super) fn resize_policy(policies: &Field<'_, '_>, facts: &PodFacts<'_>, errors: &mut FieldErrors) {
    let mut seen = std::collections::BTreeSet::new();
    for policy in policies.items() {
        let (resource, restart) = (policy.child("resourceName"), policy.child("restartPolicy"));
        if !seen.insert(resource.text()) {
            errors.push(policy.duplicate_value(resource.text()));
        }
        for (field, supported) in
            [(&resource, ["cpu", "memory"]), (&restart, ["NotRequired", "RestartContainer"])]
        {
            match field.text() {
                "" => errors.push(policies.required("")),
                text if supported.contains(&text) => {}
                text => errors.push(apimachinery::field::FieldError::not_supported(
                    &policies.path(),
                    text,
                    &supported,
                )),
            }
        }
        if facts.restart_policy == "Never" && restart.text() != "NotRequired" {
            let detail = "must be 'NotRequired' when pod `restartPolicy` is 'Never'";
            errors.push(policies.invalid_value(restart.text(), detail));
        }
    }
}
