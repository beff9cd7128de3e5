//! Seccomp: the profile must not be `Unconfined` (baseline) and must be set (restricted).

use std::collections::BTreeSet;

use apimachinery::field::quote;
use apimachinery::object::Value;

use super::{Violation, format_containers, format_setters, plural, quoted};
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
pub(super) fn not_unconfined(pod: &Pod<'_>) -> Option<Violation> {
    let mut values = BTreeSet::new();
    let mut is_bad = |kind: Option<&Value>| {
        let kind = kind.map(|kind| kind.as_str().unwrap_or(""));
        let forbidden = kind.filter(|kind| !matches!(*kind, "RuntimeDefault" | "Localhost"));
        forbidden.is_some_and(|kind| {
            values.insert(kind.to_owned());
            true
        })
    };
    let is_pod_bad = is_bad(pod.security(FIELD));
    let bad_containers = pod.containers_that(|c| is_bad(c.security(FIELD)));
    let setters = format_setters(is_pod_bad, &bad_containers)?;
    let values = quoted(values.iter().map(String::as_str));
    let detail = format!("{setters} must not set securityContext.seccompProfile.type to {values}");
    Some(Violation { reason: REASON, detail })
}

/// Requires the seccomp profile `RuntimeDefault` or `Localhost` in the pod or in each container.
pub(super) fn confined(pod: &Pod<'_>) -> Option<Violation> {
    if let Some(explicit) = not_unconfined(pod) {
        return Some(explicit);
    }
    if pod.security(FIELD).is_some() {
        return None;
    }
    let unconfined = pod.containers_that(|c| c.security(FIELD).is_none());
    if unconfined.is_empty() {
        return None;
    }
    let detail = format!(
        "pod or {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"",
        format_containers(&unconfined)
    );
    Some(Violation { reason: REASON, detail })
}

/// The rule of [`confined`] since release 1.25: it exempts Windows pods, which have no seccomp.
pub(super) fn confined_1_25(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_windows() { None } else { confined(pod) }
}
