//! AppArmor profiles of new pods, as fields and as the older annotations.
//!
//! # Contract
//!
//! Node agents of older releases read the profile of a container from an annotation of the pod, so a new pod
//! gets both forms. A missing annotation gets the profile in the security context of the container, or else
//! of the pod. A missing field of a container gets the profile in the annotation, unless the pod has the same
//! profile. [`warnings`] names the annotations that such a pod should not have.
//!
//! # Reference
//!
//! The method `applyAppArmorVersionSkew` of kube-apiserver 1.33.

use std::collections::HashSet;

use apimachinery::names::Names;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::CONTAINER_LISTS;
use super::validation::APP_ARMOR_PROFILE_MAX;
use crate::defaults::{map_or_insert, maps_in_list, part};
use crate::format;
use crate::metadata::ANNOTATIONS_MAX;
use crate::table::cell::PathReader as _;

/// Sub-domain of the annotation keys. The part of a key after the slash is the name of a container.
pub(crate) const ANNOTATION: &str = "container.apparmor.security.beta";
/// Prefix of annotation values whose profile is a file on the node.
const LOCALHOST: &str = "localhost/";

/// Completes the profiles of the containers of a new pod.
pub(crate) fn complete_profiles(pod: &mut Object, names: &Names) {
    if !has_profile(pod, names) || pod.text("spec.os.name") == "windows" {
        return;
    }
    let shared = pod.find("spec.securityContext.appArmorProfile").cloned();
    let mut annotations = pod.meta().and_then(|metadata| metadata.get("annotations")).cloned();
    // Of several containers with the same name, only the first is completed, and no annotations are added
    // above their maximum size: validation rejects such pods.
    let (mut names_seen, mut size) = (HashSet::new(), 0);
    let Some(spec) = part(pod, "spec") else { return };
    for list in CONTAINER_LISTS {
        for container in maps_in_list(spec, list) {
            let name = container.get("name").and_then(Value::as_str).unwrap_or("");
            // For an invalid container name, the annotation key would cause a second error.
            if !format::label(name).is_empty() {
                continue;
            }
            if !names_seen.insert(name.to_owned()) || size > ANNOTATIONS_MAX {
                continue;
            }
            let key = names.label_sub_key(ANNOTATION, name);
            let own = container.get("securityContext").and_then(|context| context.get("appArmorProfile"));
            match annotations.as_ref().and_then(|all| all.get(&key)?.as_str()) {
                Some(annotation) => {
                    let profile = profile_of(annotation).filter(|profile| Some(profile) != shared.as_ref());
                    if let Some(profile) = profile.filter(|_| own.is_none_or(Value::is_null))
                        && let Some(context) = map_or_insert(container, "securityContext")
                    {
                        context.insert("appArmorProfile".to_owned(), profile);
                    }
                }
                None => {
                    if let Some(annotation) = own.or(shared.as_ref()).and_then(annotation_of)
                        && let Value::Object(all) = annotations.get_or_insert_with(|| json!({}))
                    {
                        size += key.len() + annotation.len();
                        all.insert(key, annotation.into());
                    }
                }
            }
        }
    }
    if let Some(annotations) = annotations.filter(|_| size > 0) {
        pod.set_meta("annotations", annotations);
    }
}

/// Whether a pod has a profile in any form.
fn has_profile(pod: &Object, names: &Names) -> bool {
    let spec = pod.get("spec");
    let has_field = |owner: &Value| {
        owner.get("securityContext").is_some_and(|context| context.get("appArmorProfile").is_some())
    };
    let mut containers = CONTAINER_LISTS.iter().filter_map(|list| spec?.get(list)?.as_array()).flatten();
    containers.any(has_field)
        || spec.is_some_and(has_field)
        || pod.annotations().any(|(key, _)| names.strip_label_sub_key(ANNOTATION, key).is_some())
}

/// Warnings about annotations of a new pod, before [`complete_profiles`]. The container has no profile of its
/// own, and the annotation is invalid or differs from the profile of the pod.
pub(crate) fn warnings(pod: &Object, names: &Names) -> Vec<String> {
    let mut warnings = Vec::new();
    if pod.text("spec.os.name") == "windows" {
        return warnings;
    }
    let shared = pod.find("spec.securityContext.appArmorProfile");
    for list in CONTAINER_LISTS {
        for container in pod.items(&format!("spec.{list}")) {
            let key = names.label_sub_key(ANNOTATION, container.text("name"));
            let is_replaced = container.find("securityContext.appArmorProfile").is_some();
            if let Some(annotation) = pod.annotation(&key).filter(|_| !is_replaced)
                && profile_of(annotation).is_none_or(|profile| Some(&profile) != shared)
            {
                warnings.push(deprecation("metadata", &key));
            }
        }
    }
    warnings
}

/// Warning about an annotation for which a field exists. `metadata` is the path of the metadata.
pub(crate) fn deprecation(metadata: &str, key: &str) -> String {
    format!(
        "{metadata}.annotations[{key}]: deprecated since v1.30; use the \"appArmorProfile\" field instead"
    )
}

/// The profile that an annotation names. None for an invalid annotation.
fn profile_of(annotation: &str) -> Option<Value> {
    match annotation {
        "runtime/default" => Some(json!({"type": "RuntimeDefault"})),
        "unconfined" => Some(json!({"type": "Unconfined"})),
        _ => {
            let file = annotation.strip_prefix(LOCALHOST)?;
            let is_valid = !file.is_empty() && file.trim() == file && file.len() <= APP_ARMOR_PROFILE_MAX;
            is_valid.then(|| json!({"type": "Localhost", "localhostProfile": file}))
        }
    }
}

/// The annotation of a profile. None for an invalid profile, which validation reports.
fn annotation_of(profile: &Value) -> Option<String> {
    match profile.text("type") {
        "RuntimeDefault" => Some("runtime/default".to_owned()),
        "Unconfined" => Some("unconfined".to_owned()),
        "Localhost" => Some(format!("{LOCALHOST}{}", profile.get("localhostProfile")?.as_str()?)),
        _ => None,
    }
}
