//! Rules of annotations of pods and pod templates: mirror pods, the deletion cost, and profiles of seccomp and
//! AppArmor. Fields have replaced the annotations of profiles.

use std::cell::LazyCell;
use std::collections::BTreeSet;

use apimachinery::field::FieldErrors;
use apimachinery::names::Names;
use apimachinery::object::Object;

use crate::pods::{CONTAINER_LISTS, SECCOMP_OF_CONTAINER, SECCOMP_OF_POD, app_armor};
use crate::table::cell::PathReader as _;
use crate::validation::{Field, path};

/// Prefix of annotation values whose profile is a file on the node.
const LOCALHOST: &str = "localhost/";
/// Values of seccomp annotations without a file.
const SECCOMP_PROFILES: [&str; 3] = ["runtime/default", "docker/default", "unconfined"];
/// Values of AppArmor annotations without a file.
const APP_ARMOR_PROFILES: [&str; 3] = ["", "runtime/default", "unconfined"];

/// Name of the annotation of pods that the node agent creates from a file.
const MIRROR: &str = "config.mirror";

/// Validates the annotations of a pod or of a pod template. `annotations` has the path of their errors.
pub(super) fn validate(
    annotations: &Field<'_, '_>,
    spec: &Field<'_, '_>,
    names: &Names,
    errors: &mut FieldErrors,
) {
    let mirror = names.label_key(MIRROR);
    let deletion_cost = names.label_sub_key("controller", "pod-deletion-cost");
    let seccomp_of_pod = names.label_sub_key(SECCOMP_OF_POD, "pod");
    for (key, annotation) in annotations.entries() {
        let value = annotation.text();
        if key == mirror {
            if spec.child("nodeName").text().is_empty() {
                let detail = "must set spec.nodeName if mirror pod annotation is set";
                errors.push(annotation.invalid(detail));
            }
        } else if key == deletion_cost {
            if !is_deletion_cost(value) {
                errors.push(annotation.invalid("must be a 32bit integer"));
            }
        } else if names.strip_label_sub_key(app_armor::ANNOTATION, key).is_some() {
            app_armor_annotation(&annotation, errors);
        } else if key == seccomp_of_pod || names.strip_label_sub_key(SECCOMP_OF_CONTAINER, key).is_some() {
            // kube-apiserver appends the key as the name of a field.
            seccomp_annotation(&annotations.child(key).with_value(annotation.value()), errors);
        }
    }
}

/// Reports AppArmor annotations of containers that a new pod or a template does not have.
pub(super) fn check_container_names(
    annotations: &Field<'_, '_>,
    spec: &Field<'_, '_>,
    names: &Names,
    errors: &mut FieldErrors,
) {
    // The names of the containers, read once for all annotations of profiles.
    let containers: LazyCell<BTreeSet<&str>, _> = LazyCell::new(|| {
        let lists = CONTAINER_LISTS.iter().flat_map(|list| spec.child(list).list());
        lists.map(|container| container.text("name")).collect()
    });
    for (key, annotation) in annotations.entries() {
        if let Some(name) = names.strip_label_sub_key(app_armor::ANNOTATION, key)
            && !containers.contains(name)
        {
            errors.push(annotation.invalid_value(name, "container not found"));
        }
    }
}

/// Whether a text is a number of 32 bits without a plus sign and without leading zeros.
fn is_deletion_cost(text: &str) -> bool {
    let has_first_digit = text == "0" || text.starts_with(['-', '1', '2', '3', '4', '5', '6', '7', '8', '9']);
    has_first_digit && text.parse::<i32>().is_ok()
}

fn app_armor_annotation(annotation: &Field<'_, '_>, errors: &mut FieldErrors) {
    let profile = annotation.text();
    if !APP_ARMOR_PROFILES.contains(&profile) && !profile.starts_with(LOCALHOST) {
        errors.push(annotation.invalid(&format!("invalid AppArmor profile name: {profile:?}")));
    }
}

fn seccomp_annotation(annotation: &Field<'_, '_>, errors: &mut FieldErrors) {
    let profile = annotation.text();
    if SECCOMP_PROFILES.contains(&profile) {
        return;
    }
    match profile.strip_prefix(LOCALHOST) {
        Some(file) => path::check_local_descending(&annotation.with_value(Some(&file.into())), errors),
        None => errors.push(annotation.invalid("must be a valid seccomp profile")),
    }
}

/// Validates the changes of annotations: those of AppArmor profiles and of mirror pods are immutable.
pub(super) fn validate_update(new: &Object, old: &Object, names: &Names, errors: &mut FieldErrors) {
    let mirror = names.label_key(MIRROR);
    let metadata = Field::new(new.get("metadata"), "metadata");
    let annotations = metadata.child("annotations");
    let mut forbid = |key: &str, app_armor: &str, mirror_pod: &str| {
        let field = annotations.entry(key, None);
        if names.strip_label_sub_key(app_armor::ANNOTATION, key).is_some() {
            errors.push(field.forbidden(app_armor));
        } else if key == mirror {
            errors.push(field.forbidden(mirror_pod));
        }
    };
    for (key, value) in old.annotations() {
        if new.annotation(key) != Some(value) {
            forbid(
                key,
                "may not remove or update AppArmor annotations",
                "may not remove or update mirror pod annotation",
            );
        }
    }
    for (key, _) in new.annotations().filter(|(key, _)| old.annotation(key).is_none()) {
        forbid(key, "may not add AppArmor annotations", "may not add mirror pod annotation");
    }
}

/// Reports profiles of a new pod or of a template that contradict their annotations. `annotations` are the
/// annotations of the pod or the template.
pub(super) fn check_profiles(
    annotations: &Field<'_, '_>,
    spec: &Field<'_, '_>,
    names: &Names,
    errors: &mut FieldErrors,
) {
    let is_profile = |key: &str| {
        [SECCOMP_OF_POD, SECCOMP_OF_CONTAINER, app_armor::ANNOTATION]
            .iter()
            .any(|profile| names.strip_label_sub_key(profile, key).is_some())
    };
    if !annotations.entries().any(|(key, _)| is_profile(key)) {
        return;
    }
    let annotation = |key: &str| annotations.value()?.get(key)?.as_str();
    let context = spec.child("securityContext");
    let key = names.label_sub_key(SECCOMP_OF_POD, "pod");
    compare_profile(&context.child("seccompProfile"), annotation(&key), "seccomp", errors);
    let is_windows = spec.child("os").child("name").text() == "windows";
    // Of several containers with the same name, the annotation applies to the first.
    let mut seen = BTreeSet::new();
    for list in CONTAINER_LISTS {
        for container in spec.child(list).items() {
            let name = container.child("name").text();
            if !seen.insert(name) {
                continue;
            }
            let own_context = container.child("securityContext");
            let key = names.label_sub_key(SECCOMP_OF_CONTAINER, name);
            compare_profile(&own_context.child("seccompProfile"), annotation(&key), "seccomp", errors);
            let key = names.label_sub_key(app_armor::ANNOTATION, name);
            let mut profile = own_context.child("appArmorProfile");
            if !profile.is_present() {
                // The error at the field of the container is about the profile of the pod.
                profile = profile.with_value(context.child("appArmorProfile").value());
            }
            let annotation = annotation(&key).filter(|_| !is_windows);
            compare_profile(&profile, annotation, "apparmor", errors);
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
        "Localhost" => annotation.starts_with(LOCALHOST),
        _ => return,
    };
    let is_file = kind.text() == "Localhost";
    if !is_same_type {
        errors.push(kind.forbidden(&format!("{feature} type in annotation and field must match")));
    } else if is_file && annotation.strip_prefix(LOCALHOST) != Some(file.text()) {
        errors.push(file.forbidden(&format!("{feature} profile in annotation and field must match")));
    }
}
