//! Rules of annotations that fields have replaced: profiles of seccomp and AppArmor.

use std::collections::BTreeSet;

use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use apimachinery::object::Object;

use crate::pods::{CONTAINER_LISTS, SECCOMP_OF_CONTAINER, SECCOMP_OF_POD, app_armor};
use crate::validation::Field;

/// Sub-domains of all annotations of profiles.
const PROFILES: [&str; 3] = [SECCOMP_OF_POD, SECCOMP_OF_CONTAINER, app_armor::ANNOTATION];

/// Reports AppArmor annotations of containers that the pod does not have.
pub(super) fn check_container_names(pod: &Object, names: &Names, errors: &mut FieldErrors) {
    let metadata = Field::new(pod.get("metadata"), "metadata");
    let annotations = metadata.child("annotations");
    let annotated = annotations
        .entries()
        .filter_map(|(key, entry)| Some((names.strip_label_sub_key(app_armor::ANNOTATION, key)?, entry)));
    let annotated: Vec<_> = annotated.collect();
    if annotated.is_empty() {
        return;
    }
    let spec = pod.get("spec");
    let lists = CONTAINER_LISTS.iter().filter_map(|list| spec?.get(list)?.as_array());
    let containers: BTreeSet<&str> =
        lists.flatten().filter_map(|container| container.get("name")?.as_str()).collect();
    for (name, annotation) in annotated.into_iter().filter(|(name, _)| !containers.contains(name)) {
        errors.push(annotation.invalid_value(name, "container not found"));
    }
}

/// Reports profiles of a new pod that contradict their annotations.
pub(super) fn check_profiles(pod: &Object, names: &Names, errors: &mut FieldErrors) {
    let has_profile =
        |key: &str| PROFILES.iter().any(|profile| names.strip_label_sub_key(profile, key).is_some());
    if !pod.annotations().any(|(key, _)| has_profile(key)) {
        return;
    }
    let spec = Field::new(pod.get("spec"), "spec");
    let context = spec.child("securityContext");
    let key = names.label_sub_key(SECCOMP_OF_POD, "pod");
    compare_profile(&context.child("seccompProfile"), pod.annotation(&key), "seccomp", errors);
    // Of several containers with the same name, the annotation applies to the first.
    let mut seen = BTreeSet::new();
    for list in CONTAINER_LISTS {
        for container in spec.child(list).items() {
            let name = container.child("name").text();
            if !seen.insert(name) {
                continue;
            }
            let context = container.child("securityContext");
            let key = names.label_sub_key(SECCOMP_OF_CONTAINER, name);
            compare_profile(&context.child("seccompProfile"), pod.annotation(&key), "seccomp", errors);
            let key = names.label_sub_key(app_armor::ANNOTATION, name);
            compare_profile(&context.child("appArmorProfile"), pod.annotation(&key), "apparmor", errors);
        }
    }
}

/// Compares a profile with its annotation, if both are present.
fn compare_profile(
    profile: &Field<'_, '_>,
    annotation: Option<&str>,
    feature: &str,
    errors: &mut FieldErrors,
) {
    let Some(annotation) = annotation.filter(|_| profile.is_present()) else { return };
    let (kind, file) = (profile.child("type"), profile.child("localhostProfile"));
    let is_same_type = match kind.text() {
        "Unconfined" => annotation == "unconfined",
        "RuntimeDefault" => {
            annotation == "runtime/default" || (feature == "seccomp" && annotation == "docker/default")
        }
        "Localhost" => annotation.starts_with("localhost/"),
        _ => return,
    };
    if !is_same_type {
        errors.push(kind.forbidden(&format!("{feature} type in annotation and field must match")));
    } else if annotation.strip_prefix("localhost/").is_some_and(|annotated| annotated != file.text()) {
        errors.push(file.forbidden(&format!("{feature} profile in annotation and field must match")));
    }
}
