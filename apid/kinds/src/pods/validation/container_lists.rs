//! The lists of containers of a pod: containers, init containers and ephemeral containers.

use std::collections::BTreeSet;

use apimachinery::field::FieldErrors;
use apimachinery::object::{Map, Value};

use super::probe::{ProbeKind, lifecycle, probe};
use super::{PodFacts, container};
use crate::validation::Field;

/// Probes of a container, in the order of validation.
const PROBES: [(&str, ProbeKind); 3] = [
    ("livenessProbe", ProbeKind::Liveness),
    ("readinessProbe", ProbeKind::Readiness),
    ("startupProbe", ProbeKind::Startup),
];

/// Fields that an ephemeral container cannot have, in the order of kube-apiserver.
const FORBIDDEN_EPHEMERAL_FIELDS: [&str; 8] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

/// Validates the lists of containers.
pub(super) fn validate(spec: &Field<'_, '_>, facts: &PodFacts<'_>, errors: &mut FieldErrors) {
    let containers = spec.child("containers");
    let mut names = BTreeSet::new();
    containers.require_items("", errors);
    for container in containers.items() {
        container::validate(&container, facts, errors);
        let name = container.child("name");
        if !names.insert(name.text()) {
            errors.push(name.duplicate());
        }
        handlers(&container, facts, errors);
        container.child("restartPolicy").forbid("may not be set for non-init containers", errors);
    }
    let mut host_ports = BTreeSet::new();
    let items: Vec<_> = containers.items().collect();
    for container in &items {
        container::host_port_conflicts(container, &mut host_ports, errors);
    }
    let init_containers = spec.child("initContainers");
    for container in init_containers.items() {
        let first = init_containers.items().next().unwrap_or(container);
        init_container(&container, &first, facts, &mut names, errors);
    }
    ephemeral_containers(&spec.child("ephemeralContainers"), &names, facts, errors);
}

/// Validates the lifecycle and the probes of a container that runs as long as the pod.
fn handlers(container: &Field<'_, '_>, facts: &PodFacts<'_>, errors: &mut FieldErrors) {
    lifecycle(&container.child("lifecycle"), facts, errors);
    for (field, kind) in PROBES {
        probe(&container.child(field), kind, facts, errors);
    }
}

fn init_container<'v>(
    container: &Field<'v, '_>,
    first: &Field<'v, '_>,
    facts: &PodFacts<'_>,
    names: &mut BTreeSet<&'v str>,
    errors: &mut FieldErrors,
) {
    container::validate(container, facts, errors);
    let policy = container.child("restartPolicy");
    let name = container.child("name");
    if names.contains(name.text()) {
        errors.push(name.duplicate());
    } else if !name.text().is_empty() {
        names.insert(name.text());
    }
    // Init containers run one after another. As in kube-apiserver, the error names the first of them.
    container::host_port_conflicts(&first.with_value(container.value()), &mut BTreeSet::new(), errors);
    if policy.text() == "Always" {
        handlers(container, facts, errors);
        return;
    }
    for field in ["lifecycle", "livenessProbe", "readinessProbe", "startupProbe"] {
        container
            .child(field)
            .forbid("may not be set for init containers without restartPolicy=Always", errors);
    }
    let resize = container.child("resizePolicy");
    if !resize.list().is_empty() {
        errors.push(resize.invalid("must not be set for init containers"));
    }
}

/// Validates ephemeral containers. `names` are the names of the other containers.
fn ephemeral_containers(
    containers: &Field<'_, '_>,
    names: &BTreeSet<&str>,
    facts: &PodFacts<'_>,
    errors: &mut FieldErrors,
) {
    let mut all = names.clone();
    for container in containers.items() {
        container::validate(&container, facts, errors);
        let name = container.child("name");
        if !name.text().is_empty() && !all.insert(name.text()) {
            errors.push(name.duplicate());
        }
        let target = container.child("targetContainerName");
        if !target.text().is_empty() && !names.contains(target.text()) {
            errors.push(target.not_found());
        }
        for name in FORBIDDEN_EPHEMERAL_FIELDS {
            let field = container.child(name);
            let is_empty = field.value().and_then(Value::as_object).is_some_and(Map::is_empty);
            // Only `resources` is the same when it is empty and when it is absent.
            if field.is_present() && !(name == "resources" && is_empty) {
                errors.push(field.forbidden("cannot be set for an Ephemeral Container"));
            }
        }
        for mount in container.child("volumeMounts").items() {
            for field in ["subPath", "subPathExpr"] {
                let field = mount.child(field);
                if !field.text().is_empty() {
                    errors.push(field.forbidden("cannot be set for an Ephemeral Container"));
                }
            }
        }
    }
}

/// Reports volumes with a token of a service account, in a pod without service account.
fn token_sources(volumes: &Field<'_, '_>, errors: &mut FieldErrors) {
    for volume in volumes.items() {
        let projected = volume.child("projected");
        for source in projected.child("sources").items() {
            let token = source.child("serviceAccountToken");
            token.forbid("must not be specified when serviceAccountName is not set", errors);
        }
    }
}

/// Reports tokens of an absent service account, and image names with white space, which pod templates may have.
pub(super) fn validate_for_pod(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    if spec.child("serviceAccountName").text().is_empty() {
        token_sources(&spec.child("volumes"), errors);
    }
    for list in ["containers", "initContainers"] {
        for container in spec.child(list).items() {
            let image = container.child("image");
            if image.text().trim() != image.text() {
                errors.push(image.invalid("must not have leading or trailing whitespace"));
            }
        }
    }
}
