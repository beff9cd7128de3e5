//! Seccomp: the profile must not be `Unconfined` (baseline) and must be set (restricted).

use std::collections::BTreeSet;

use apimachinery::field::quote;

use super::{Violation, forbidden_profile_types, format_containers, plural, quoted};
use crate::pod_security::pod::Pod;

const REASON: &str = "seccompProfile";
const FIELD: &[&str] = &["seccompProfile", "type"];

/// Rule for releases up to 1.18, which have profiles in annotations.
pub(super) fn annotations(pod: &Pod<'_>) -> Option<Violation> {
    let container_keys = pod.containers().map(|c| format!("{}{}", pod.keys.seccomp_prefix, c.name));
    let mut forbidden = BTreeSet::new();
    for key in std::iter::once(pod.keys.seccomp_pod.clone()).chain(container_keys) {
        if let Some(profile) = pod.annotation(&key).filter(|profile| !is_allowed_profile(profile)) {
            forbidden.insert(format!("{key}={}", quote(profile)));
        }
    }
    if forbidden.is_empty() {
        return None;
    }
    let noun = plural(forbidden.len(), "annotation", "annotations");
    let forbidden: Vec<String> = forbidden.into_iter().collect();
    Some(Violation { reason: REASON, detail: format!("forbidden {noun} {}", forbidden.join(", ")) })
}

fn is_allowed_profile(profile: &str) -> bool {
    matches!(profile, "runtime/default" | "docker/default") || profile.starts_with("localhost/")
}

/// Rejects seccomp profiles other than `RuntimeDefault` and `Localhost`; a profile can be absent.
pub(super) fn reject_unconfined(pod: &Pod<'_>) -> Option<Violation> {
    let (setters, types) = forbidden_profile_types(pod, FIELD);
    let (setters, types) = (setters?, quoted(types));
    let detail = format!("{setters} must not set securityContext.seccompProfile.type to {types}");
    Some(Violation { reason: REASON, detail })
}

/// Requires the seccomp profile `RuntimeDefault` or `Localhost` in the pod or in each container.
pub(super) fn require_profile(pod: &Pod<'_>) -> Option<Violation> {
    if let Some(explicit) = reject_unconfined(pod) {
        return Some(explicit);
    }
    if pod.security(FIELD).is_some() {
        return None;
    }
    let unconfined = format_containers(&pod.containers_that(|c| c.security(FIELD).is_none()))?;
    let detail = format!(
        "pod or {unconfined} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\""
    );
    Some(Violation { reason: REASON, detail })
}
