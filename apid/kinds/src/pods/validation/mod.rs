//! Validation of pod specs and pod templates.
//!
//! # Contract
//!
//! [`new_pod`] validates a new pod, [`pod`] any pod, [`template`] a pod template, and [`spec`] the rules that all share.
//! [`update`] validates the changes of a pod. One file contains the rules of one part of a pod.
//!
//! # Reference
//!
//! Rules, messages and their order are those of kube-apiserver 1.33.

mod affinity;
mod annotations;
mod container;
mod container_lists;
mod dns;
mod environment;
mod gated;
mod mounts;
mod operating_system;
mod probe;
mod resources;
mod security;
mod status;
mod topology;
mod update;
mod volume_files;
mod volumes;
mod windows;
mod workload;

pub(crate) use affinity::required_node_selector;
pub(crate) use resources::overhead;
pub(crate) use security::APP_ARMOR_PROFILE_MAX;
pub(crate) use status::status;
pub(crate) use update::update;
pub(crate) use workload::{
    WorkloadTerms, always_restarting, at_most_100_percent, count_or_percent, is_zero, matching_labels,
    replicated_status, status_counts, workload, workload_update,
};

use std::collections::BTreeMap;

use apimachinery::field::{FieldErrors, FieldPath};
use apimachinery::names::Names;
use apimachinery::object::{Object, Value};

use crate::validation::{Field, network, number, text};
use crate::{format, metadata};

/// The object that contains a pod spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SpecOwner {
    Pod,
    Template,
}

/// Facts about a pod that rules of its parts need.
struct PodFacts<'v> {
    names: &'v Names,
    /// Volumes without errors, by name.
    volumes: BTreeMap<&'v str, &'v Value>,
    restart_policy: &'v str,
    grace_period_seconds: i64,
    /// Whether the pod uses the user namespace of the host.
    has_host_users: bool,
}

impl<'v> PodFacts<'v> {
    /// Collects the facts, and validates the volumes.
    fn new(spec: &Field<'v, '_>, names: &'v Names, errors: &mut FieldErrors) -> Self {
        PodFacts {
            names,
            volumes: volumes::validate(&spec.child("volumes"), errors),
            restart_policy: spec.child("restartPolicy").text(),
            grace_period_seconds: spec.child("terminationGracePeriodSeconds").integer().unwrap_or(30),
            has_host_users: spec.child("hostUsers").value() != Some(&Value::Bool(false)),
        }
    }
}

/// Validates the metadata and the spec of a pod.
pub(crate) fn pod(pod: &Object, names: &Names) -> FieldErrors {
    let (metadata, spec) = (Field::new(pod.get("metadata"), "metadata"), Field::new(pod.get("spec"), "spec"));
    let mut errors = FieldErrors::new();
    annotations::validate(&metadata.child("annotations"), &spec, names, &mut errors);
    self::spec(&spec, SpecOwner::Pod, names, &mut errors);
    container_lists::validate_for_pod(&spec, &mut errors);
    errors
}

/// Validates a new pod.
pub(crate) fn new_pod(pod: &Object, names: &Names) -> FieldErrors {
    let (metadata, spec) = (Field::new(pod.get("metadata"), "metadata"), Field::new(pod.get("spec"), "spec"));
    let mut errors = FieldErrors::new();
    annotations::check_container_names(&metadata.child("annotations"), &spec, names, &mut errors);
    errors.extend(self::pod(pod, names));
    let ephemeral = spec.child("ephemeralContainers");
    if !ephemeral.list().is_empty() {
        errors.push(ephemeral.forbidden("cannot be set on create"));
    }
    let node = spec.child("nodeName");
    if !node.text().is_empty() && !spec.child("schedulingGates").list().is_empty() {
        errors.push(node.forbidden("cannot be set until all schedulingGates have been cleared"));
    }
    annotations::check_profiles(&metadata.child("annotations"), &spec, names, &mut errors);
    errors
}

/// Validates a pod template.
pub(crate) fn template(template: &Value, path: &FieldPath, names: &Names) -> FieldErrors {
    let mut errors = FieldErrors::new();
    template_field(&Field::new(Some(template), path.as_str()), names, &mut errors);
    errors
}

/// Validates a pod template.
pub(crate) fn template_field(template: &Field<'_, '_>, names: &Names, errors: &mut FieldErrors) {
    let metadata = template.child("metadata");
    // kube-apiserver reports errors of the metadata at the path of the template.
    text::check_labels(&template.child("labels").with_value(metadata.child("labels").value()), errors);
    let annotations = template.child("annotations").with_value(metadata.child("annotations").value());
    metadata::validate_annotations(&annotations, errors);
    let spec = template.child("spec");
    annotations::check_container_names(&annotations, &spec, names, errors);
    annotations::validate(&annotations, &spec, names, errors);
    self::spec(&spec, SpecOwner::Template, names, errors);
    annotations::check_profiles(&annotations, &spec, names, errors);
    let ephemeral = spec.child("ephemeralContainers");
    if !ephemeral.list().is_empty() {
        errors.push(ephemeral.forbidden("ephemeral containers not allowed in pod template"));
    }
}

/// Validates a pod spec.
fn spec(spec: &Field<'_, '_>, owner: SpecOwner, names: &Names, errors: &mut FieldErrors) {
    let facts = PodFacts::new(spec, names, errors);
    container_lists::validate(spec, &facts, errors);
    text::require_supported(&spec.child("restartPolicy"), &["Always", "OnFailure", "Never"], errors);
    text::require_supported(
        &spec.child("dnsPolicy"),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        errors,
    );
    text::check_labels(&spec.child("nodeSelector"), errors);
    security::pod(spec, owner, errors);
    affinity::validate(&spec.child("affinity"), errors);
    dns::validate(spec, errors);
    for gate in spec.child("readinessGates").items() {
        text::check_format(&gate.child("conditionType"), format::qualified_name, errors);
    }
    scheduling_gates(&spec.child("schedulingGates"), errors);
    topology::validate(&spec.child("topologySpreadConstraints"), errors);
    windows::host_process(spec, errors);
    security::host_users(spec, &facts, errors);
    for (field, format) in [
        ("serviceAccountName", format::subdomain as fn(&str) -> Vec<String>),
        ("nodeName", format::subdomain),
        ("hostname", format::label),
        ("subdomain", format::label),
    ] {
        let field = spec.child(field);
        text::check_nonempty_format(&field, format, errors);
    }
    number::check_range(&spec.child("activeDeadlineSeconds"), 1, i64::from(i32::MAX), errors);
    tolerations(&spec.child("tolerations"), errors);
    for alias in spec.child("hostAliases").items() {
        network::check_ip(&alias.child("ip"), errors);
        for hostname in alias.child("hostnames").items() {
            text::check_format(&hostname, format::subdomain, errors);
        }
    }
    for field in ["priorityClassName", "runtimeClassName"] {
        text::check_nonempty_format(&spec.child(field), format::subdomain, errors);
    }
    let preemption = spec.child("preemptionPolicy");
    if preemption.is_present() {
        text::require_supported(&preemption, &["Never", "PreemptLowerPriority"], errors);
    }
    resources::overhead(&spec.child("overhead"), names, errors);
    operating_system::validate(spec, errors);
}

fn scheduling_gates(gates: &Field<'_, '_>, errors: &mut FieldErrors) {
    let mut seen = std::collections::BTreeSet::new();
    for gate in gates.items() {
        let name = gate.child("name").text();
        text::check_name(&gate, name, format::qualified_name, errors);
        if !seen.insert(name) {
            errors.push(gate.duplicate_value(name));
        }
    }
}

/// Validates tolerations.
pub(crate) fn tolerations(tolerations: &Field<'_, '_>, errors: &mut FieldErrors) {
    for toleration in tolerations.items() {
        let (key, operator) = (toleration.child("key"), toleration.child("operator"));
        let (value, effect) = (toleration.child("value"), toleration.child("effect"));
        if !key.text().is_empty() {
            text::check_format(&key, format::qualified_name, errors);
        } else if operator.text() != "Exists" {
            errors.push(operator.invalid_value(
                operator.text(),
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            ));
        }
        if toleration.child("tolerationSeconds").is_present() && effect.text() != "NoExecute" {
            errors.push(
                effect.invalid_value(
                    effect.text(),
                    "effect must be 'NoExecute' when `tolerationSeconds` is set",
                ),
            );
        }
        match operator.text() {
            "Equal" | "" => {
                let messages = format::label_value(value.text());
                if !messages.is_empty() {
                    errors.push(operator.invalid_value(value.text(), &messages.join(";")));
                }
            }
            "Exists" => {
                if !value.text().is_empty() {
                    let detail = "value must be empty when `operator` is 'Exists'";
                    errors.push(operator.invalid_value(value.text(), detail));
                }
            }
            _ => errors.push(operator.not_supported(&["Equal", "Exists"])),
        }
        if !effect.text().is_empty() {
            text::require_supported(&effect, &["NoSchedule", "PreferNoSchedule", "NoExecute"], errors);
        }
    }
}

#[cfg(test)]
mod tests;
