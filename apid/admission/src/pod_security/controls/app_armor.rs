//! AppArmor: neither field nor annotation may disable the runtime's default profile.

use std::collections::BTreeSet;

use apimachinery::field::quote;
use apimachinery::object::Value;

use super::{Violation, format_setters, plural, quoted};
use crate::pod_security::pod::Pod;

/// Rejects AppArmor profiles other than the default and local ones.
pub(super) fn profile(pod: &Pod<'_>) -> Option<Violation> {
    let mut forbidden_kinds = BTreeSet::new();
    let mut is_bad = |kind: Option<&Value>| {
        let kind = kind.map(|kind| kind.as_str().unwrap_or(""));
        let forbidden = kind.filter(|kind| !matches!(*kind, "RuntimeDefault" | "Localhost"));
        forbidden.is_some_and(|kind| {
            forbidden_kinds.insert(kind.to_owned());
            true
        })
    };
    let is_pod_bad = is_bad(pod.security(&["appArmorProfile", "type"]));
    let bad_containers = pod.containers_that(|c| is_bad(c.security(&["appArmorProfile", "type"])));
    let mut setters: Vec<String> = format_setters(is_pod_bad, &bad_containers).into_iter().collect();
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
    let values: Vec<String> = forbidden_kinds.into_iter().chain(annotations).collect();
    Some(Violation {
        reason: plural(values.len(), "forbidden AppArmor profile", "forbidden AppArmor profiles"),
        detail: format!(
            "{} must not set AppArmor profile type to {}",
            setters.join(" and "),
            quoted(values.iter().map(String::as_str))
        ),
    })
}

fn is_allowed_profile(profile: &str) -> bool {
    profile.is_empty() || profile == "runtime/default" || profile.starts_with("localhost/")
}
