//! AppArmor: neither field nor annotation may disable the runtime's default profile.

use apimachinery::field::quote;

use super::{Violation, forbidden_profile_types, plural, quoted};
use crate::pod_security::pod::Pod;

/// Rejects AppArmor profiles other than the default and local ones.
pub(super) fn profile(pod: &Pod<'_>) -> Option<Violation> {
    let (setters, forbidden_types) = forbidden_profile_types(pod, &["appArmorProfile", "type"]);
    let mut setters: Vec<String> = setters.into_iter().collect();
    let mut annotations: Vec<String> = pod
        .annotations()
        .filter(|(key, value)| key.starts_with(&pod.keys.app_armor_prefix) && !is_allowed_profile(value))
        .map(|(key, value)| format!("{key}={}", quote(value)))
        .collect();
    annotations.sort_unstable();
    if !annotations.is_empty() {
        setters.push(plural(annotations.len(), "annotation", "annotations").to_owned());
    }
    if setters.is_empty() {
        return None;
    }
    let values: Vec<&str> =
        forbidden_types.into_iter().chain(annotations.iter().map(String::as_str)).collect();
    Some(Violation {
        reason: plural(values.len(), "forbidden AppArmor profile", "forbidden AppArmor profiles"),
        detail: format!("{} must not set AppArmor profile type to {}", setters.join(" and "), quoted(values)),
    })
}

fn is_allowed_profile(profile: &str) -> bool {
    profile.is_empty() || profile == "runtime/default" || profile.starts_with("localhost/")
}
