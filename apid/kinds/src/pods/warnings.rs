//! Warnings about pod specs.
//!
//! # Contract
//!
//! [`template`] returns the warnings about a pod template, [`pod`] those about a new pod. An object with
//! warnings is accepted: the warnings name deprecated fields, and values that other values hide.
//!
//! # Reference
//!
//! Texts and their order are those of kube-apiserver 1.33.

mod containers;
mod paths;
mod scheduling;
mod volumes;

use std::collections::BTreeSet;

use apimachinery::names::Names;
use apimachinery::object::{Object, Value};

pub(crate) use scheduling::{label_deprecation, selector_labels};
pub(crate) use volumes::{claim, claim_spec, persistent_volume};

use super::{CONTAINER_LISTS, SECCOMP_OF_CONTAINER, SECCOMP_OF_POD, app_armor};
use crate::format;
use crate::table::cell::PathReader as _;
use crate::validation::{Field, address_form};

/// Whether a write creates an object or changes its generation. As in kube-apiserver, such a write repeats the warnings
/// about the whole pod template.
pub(crate) fn is_new_generation(new: &Object, old: Option<&Object>) -> bool {
    old.is_none_or(|old| old.generation() != new.generation())
}

/// Warnings about the pod template at a path, if the object is new or has a new generation.
pub(crate) fn template(new: &Object, old: Option<&Object>, path: &str, names: &Names) -> Vec<String> {
    if !is_new_generation(new, old) {
        return Vec::new();
    }
    let template = Field::new(new.find(path), path);
    let mut warnings = Vec::new();
    let (metadata, spec) = (template.child("metadata"), template.child("spec"));
    parts(&metadata, &spec, names, &mut warnings);
    app_armor_annotations(&metadata, &spec, names, &mut warnings);
    warnings
}

/// Warnings about a new pod.
pub(crate) fn pod(pod: &Object, names: &Names) -> Vec<String> {
    let mut warnings = Vec::new();
    let name = format::label(pod.name());
    if !name.is_empty() {
        warnings.push(format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is \
             recommended: [{}]",
            name.join(" ")
        ));
    }
    let metadata = Field::new(pod.get("metadata"), "metadata");
    parts(&metadata, &Field::new(pod.get("spec"), "spec"), names, &mut warnings);
    warnings
}

/// Warning about the name of a new workload, which becomes a part of the names of its pods.
pub(crate) fn workload_name(new: &Object, old: Option<&Object>) -> Option<String> {
    let messages = format::label(new.name());
    (old.is_none() && !messages.is_empty()).then(|| {
        format!(
            "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label \
             is recommended: [{}]",
            messages.join(" ")
        )
    })
}

fn parts(metadata: &Field<'_, '_>, spec: &Field<'_, '_>, names: &Names, warnings: &mut Vec<String>) {
    scheduling::node_labels(spec, names, warnings);
    annotations(metadata, spec, names, warnings);
    volumes::deprecated(&spec.child("volumes"), warnings);
    host_aliases(&spec.child("hostAliases"), warnings);
    pull_secrets(&spec.child("imagePullSecrets"), warnings);
    containers::resources_and_variables(spec, warnings);
    containers::ports(spec, warnings);
    let seconds = spec.child("terminationGracePeriodSeconds");
    if seconds.integer().is_some_and(|seconds| seconds < 0) {
        let path = seconds.path();
        warnings.push(format!("{path}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    scheduling::null_selectors(spec, warnings);
    paths::overlapping_files(&spec.child("volumes"), warnings);
    addresses(spec, warnings);
}

/// Reports annotations that fields have replaced.
fn annotations(metadata: &Field<'_, '_>, spec: &Field<'_, '_>, names: &Names, warnings: &mut Vec<String>) {
    let list = metadata.child("annotations");
    let mut report = |key: &str, since: &str, field: &str| {
        let entry = list.entry(key, list.value().and_then(|annotations| annotations.get(key)));
        if entry.is_present() {
            warnings.push(format!(
                "{}: non-functional in {since}+; use the {field:?} field instead",
                entry.path()
            ));
        }
    };
    let profile = |owner: &Field<'_, '_>| owner.child("securityContext").child("seccompProfile").is_present();
    if !profile(spec) {
        report(&names.label_sub_key(SECCOMP_OF_POD, "pod"), "v1.27", "seccompProfile");
    }
    for list in ["initContainers", "containers"] {
        for container in spec.child(list).items().filter(|container| !profile(container)) {
            let name = container.child("name");
            let key = names.label_sub_key(SECCOMP_OF_CONTAINER, name.text());
            report(&key, "v1.27", "seccompProfile");
        }
    }
    for (sub, name, since, field) in [
        ("scheduler.alpha", "critical-pod", "v1.16", "priorityClassName"),
        ("security.alpha", "sysctls", "v1.11", "sysctls"),
        ("security.alpha", "unsafe-sysctls", "v1.11", "sysctls"),
    ] {
        report(&names.label_sub_key(sub, name), since, field);
    }
}

/// Reports annotations of a template with the AppArmor profile of a container that has no profile as a field.
/// For pods, [`app_armor::warnings`] reports them.
fn app_armor_annotations(
    metadata: &Field<'_, '_>,
    spec: &Field<'_, '_>,
    names: &Names,
    warnings: &mut Vec<String>,
) {
    let annotations = metadata.child("annotations");
    let profile =
        |owner: &Field<'_, '_>| owner.child("securityContext").child("appArmorProfile").is_present();
    if profile(spec) {
        return;
    }
    for list in CONTAINER_LISTS {
        for container in spec.child(list).items().filter(|container| !profile(container)) {
            let key = names.label_sub_key(app_armor::ANNOTATION, container.child("name").text());
            if annotations.value().is_some_and(|annotations| annotations.get(&key).is_some()) {
                warnings.push(app_armor::deprecation(&metadata.path().to_string(), &key));
            }
        }
    }
}

/// Reports addresses that are not in canonical form.
fn addresses(spec: &Field<'_, '_>, warnings: &mut Vec<String>) {
    let dns = spec.child("dnsConfig");
    for server in dns.child("nameservers").items() {
        address_form::ip(&server, warnings);
    }
    for alias in spec.child("hostAliases").items() {
        address_form::ip(&alias.child("ip"), warnings);
    }
}

/// Warnings about a new status of a pod.
pub(crate) fn pod_status(pod: &Object) -> Vec<String> {
    let (status, mut warnings) = (Field::new(pod.get("status"), "status"), Vec::new());
    for list in ["podIPs", "hostIPs"] {
        for address in status.child(list).items() {
            address_form::ip(&address.child("ip"), &mut warnings);
        }
    }
    warnings
}

fn host_aliases(aliases: &Field<'_, '_>, warnings: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for alias in aliases.items() {
        let address = alias.child("ip");
        if !seen.insert(address.text()) {
            warnings.push(format!("{}: duplicate ip {:?}", address.path(), address.text()));
        }
    }
}

fn pull_secrets(secrets: &Field<'_, '_>, warnings: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for secret in secrets.items() {
        let name = secret.child("name");
        let path = name.path();
        if name.text().is_empty() {
            warnings.push(format!("{path}: invalid empty name \"\""));
        } else if !seen.insert(name.text()) {
            warnings.push(format!("{path}: duplicate name {}", Value::from(name.text())));
        }
    }
}

#[cfg(test)]
mod tests;
