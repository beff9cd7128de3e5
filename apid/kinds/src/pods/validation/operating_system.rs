//! The operating system of a pod, and fields that it excludes.

use apimachinery::field::FieldErrors;

use crate::validation::{Field, text};

/// Fields of the security context of a pod that Windows does not have.
const POD_CONTEXT: [&str; 11] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seLinuxChangePolicy",
    "seccompProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "sysctls",
    "runAsUser",
    "runAsGroup",
    "supplementalGroups",
    "supplementalGroupsPolicy",
];
/// Fields of the security context of a container that Windows does not have.
const CONTAINER_CONTEXT: [&str; 10] = [
    "appArmorProfile",
    "seLinuxOptions",
    "seccompProfile",
    "capabilities",
    "readOnlyRootFilesystem",
    "privileged",
    "allowPrivilegeEscalation",
    "procMount",
    "runAsUser",
    "runAsGroup",
];

/// Validates `os` and the fields that the operating system excludes.
pub(super) fn validate(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let os = spec.child("os");
    if !os.is_present() {
        return;
    }
    let name = os.child("name");
    text::require_supported(&name, &["linux", "windows"], errors);
    match name.text() {
        "linux" => linux(spec, errors),
        "windows" => windows(spec, errors),
        _ => {}
    }
}

fn linux(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let forbid = |context: &Field<'_, '_>, errors: &mut FieldErrors| {
        context.child("windowsOptions").forbid("windows options cannot be set for a linux pod", errors);
    };
    forbid(&spec.child("securityContext"), errors);
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in spec.child(list).items() {
            forbid(&container.child("securityContext"), errors);
        }
    }
}

fn windows(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let forbid = |owner: &Field<'_, '_>, fields: &[&str], errors: &mut FieldErrors| {
        for name in fields {
            let field = owner.child(name);
            field.forbid("cannot be set for a windows pod", errors);
        }
    };
    let context = spec.child("securityContext");
    forbid(spec, &["hostUsers"], errors);
    // kube-apiserver does not distinguish an absent value of these fields from false.
    for name in ["hostPID", "hostIPC"] {
        let field = spec.child(name);
        if field.flag() {
            errors.push(field.forbidden("cannot be set for a windows pod"));
        }
    }
    forbid(&context, &POD_CONTEXT, errors);
    forbid(spec, &["shareProcessNamespace"], errors);
    for list in ["containers", "initContainers", "ephemeralContainers"] {
        for container in spec.child(list).items() {
            forbid(&container.child("securityContext"), &CONTAINER_CONTEXT, errors);
        }
    }
}
