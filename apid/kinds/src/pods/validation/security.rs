//! Security contexts of pods and containers.

use std::collections::BTreeSet;

use apimachinery::field::FieldErrors;

use super::{PodFacts, SpecOwner, windows};
use crate::format;
use crate::validation::internal;
use crate::validation::{Field, number, path, text};

/// Maximum length, in bytes, of an AppArmor profile name.
pub(crate) const APP_ARMOR_PROFILE_MAX: usize = 4095;

/// Highest valid user or group id.
const ID_MAX: i64 = i32::MAX as i64;

/// Validates the security context of a pod, and rules between it and the spec.
pub(super) fn pod(spec: &Field<'_, '_>, owner: SpecOwner, errors: &mut FieldErrors) {
    host_network(spec, owner, errors);
    let context = spec.child("securityContext");
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        number::check_range(&context.child(field), 0, ID_MAX, errors);
    }
    for group in context.child("supplementalGroups").items() {
        number::check_range(&group, 0, ID_MAX, errors);
    }
    // kube-apiserver reports this field of the spec below the security context.
    let shared = context.child("shareProcessNamespace");
    let shared = shared.with_value(spec.child("shareProcessNamespace").value());
    if shared.flag() && spec.child("hostPID").flag() {
        errors.push(shared.invalid("ShareProcessNamespace and HostPID cannot both be enabled"));
    }
    sysctls(spec, &context.child("sysctls"), errors);
    text::check_supported(&context.child("fsGroupChangePolicy"), &["Always", "OnRootMismatch"], errors);
    seccomp(&context.child("seccompProfile"), errors);
    windows::options(&context.child("windowsOptions"), errors);
    app_armor(&context.child("appArmorProfile"), errors);
    text::check_supported(&context.child("seLinuxChangePolicy"), &["Recursive"], errors);
    text::check_supported(&context.child("supplementalGroupsPolicy"), &["Merge", "Strict"], errors);
}

/// Validates that container ports and host ports are equal in the network of the host. A port of a template may
/// lack a host port, because each pod of the template gets one by default.
fn host_network(spec: &Field<'_, '_>, owner: SpecOwner, errors: &mut FieldErrors) {
    if !spec.child("hostNetwork").flag() {
        return;
    }
    for container in spec.child("containers").items() {
        for port in container.child("ports").items() {
            let field = port.child("hostPort");
            let host_port = field.integer().unwrap_or(0);
            let is_allowed = owner == SpecOwner::Template && host_port == 0;
            if !is_allowed && host_port != port.child("containerPort").integer().unwrap_or(0) {
                let detail = "must match `containerPort` when `hostNetwork` is true";
                errors.push(field.invalid_value(host_port, detail));
            }
        }
    }
}

fn sysctls(spec: &Field<'_, '_>, sysctls: &Field<'_, '_>, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for sysctl in sysctls.items() {
        let name = sysctl.child("name");
        if name.text().is_empty() {
            errors.push(name.required(""));
        } else if !format::is_sysctl(name.text()) {
            errors.push(name.invalid(format::SYSCTL));
        } else if !seen.insert(name.text()) {
            errors.push(name.duplicate());
        }
        let normalized = normalized_sysctl(name.text());
        if spec.child("hostNetwork").flag() && normalized.starts_with("net.") {
            errors.push(name.invalid("may not be specified when 'hostNetwork' is true"));
        }
        let is_ipc =
            ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|prefix| normalized.starts_with(prefix))
                || normalized == "kernel.sem";
        if spec.child("hostIPC").flag() && is_ipc {
            errors.push(name.invalid("may not be specified when 'hostIPC' is true"));
        }
    }
}

/// The name of a sysctl with dots between its parts. In a name whose first separator is `/`, the characters `/` and `.`
/// change places.
fn normalized_sysctl(name: &str) -> String {
    if name.chars().find(|c| matches!(c, '.' | '/')) == Some('/') {
        let swap = |c| match c {
            '/' => '.',
            '.' => '/',
            c => c,
        };
        return name.chars().map(swap).collect();
    }
    name.to_owned()
}

/// Validates the security context of a container.
pub(super) fn container(context: &Field<'_, '_>, facts: &PodFacts<'_>, errors: &mut FieldErrors) {
    for field in ["runAsUser", "runAsGroup"] {
        number::check_range(&context.child(field), 0, ID_MAX, errors);
    }
    seccomp(&context.child("seccompProfile"), errors);
    let escalation = context.child("allowPrivilegeEscalation");
    if escalation.is_present() && !escalation.flag() {
        if context.child("privileged").flag() {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(internal::invalid_of_type(context, "core/v1.SecurityContext", detail));
        }
        if context.child("capabilities").child("add").items().any(|name| name.text() == "CAP_SYS_ADMIN") {
            let detail =
                "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(internal::invalid_of_type(context, "core/v1.SecurityContext", detail));
        }
    }
    let mount = context.child("procMount");
    text::check_supported(&mount, &["Default", "Unmasked"], errors);
    if mount.text() == "Unmasked" && facts.has_host_users {
        errors.push(mount.invalid("`hostUsers` must be false to use `Unmasked`"));
    }
    windows::options(&context.child("windowsOptions"), errors);
    app_armor(&context.child("appArmorProfile"), errors);
}

fn seccomp(profile: &Field<'_, '_>, errors: &mut FieldErrors) {
    if !profile.is_present() {
        return;
    }
    let (kind, local) = (profile.child("type"), profile.child("localhostProfile"));
    match kind.text() {
        "" => errors.push(kind.required("type is required when seccompProfile is set")),
        "Localhost" | "RuntimeDefault" | "Unconfined" => {}
        _ => errors.push(kind.not_supported(&["Localhost", "RuntimeDefault", "Unconfined"])),
    }
    if kind.text() == "Localhost" {
        if local.is_present() {
            path::check_local_descending(&local, errors);
        } else {
            errors.push(local.required("must be set when seccomp type is Localhost"));
        }
    } else if local.is_present() {
        // As in kube-apiserver, the error at the field shows the whole profile.
        let profile = local.with_value(profile.value());
        let detail = "can only be set when seccomp type is Localhost";
        errors.push(internal::invalid_of_type(&profile, "core/v1.SeccompProfile", detail));
    }
}

fn app_armor(profile: &Field<'_, '_>, errors: &mut FieldErrors) {
    if !profile.is_present() {
        return;
    }
    let (kind, local) = (profile.child("type"), profile.child("localhostProfile"));
    match kind.text() {
        "Localhost" => {
            let trimmed = local.text().trim();
            if !local.is_present() {
                errors.push(local.required("must be set when AppArmor type is Localhost"));
            } else if trimmed != local.text() {
                errors.push(local.invalid("must not be padded with whitespace"));
            } else if trimmed.is_empty() {
                errors.push(local.required("must be set when AppArmor type is Localhost"));
            }
            text::check_length(&local, APP_ARMOR_PROFILE_MAX, errors);
        }
        "RuntimeDefault" | "Unconfined" => {
            if local.is_present() {
                errors.push(local.invalid("can only be set when AppArmor type is Localhost"));
            }
        }
        "" => errors.push(kind.required("type is required when appArmorProfile is set")),
        _ => errors.push(kind.not_supported(&["Localhost", "RuntimeDefault", "Unconfined"])),
    }
}

/// Validates that a pod with its own user namespace uses no namespace of the host.
pub(super) fn host_users(spec: &Field<'_, '_>, facts: &PodFacts<'_>, errors: &mut FieldErrors) {
    if facts.has_host_users {
        return;
    }
    for field in ["hostNetwork", "hostPID", "hostIPC"] {
        let field = spec.child(field);
        if field.flag() {
            errors.push(field.forbidden("when `pod.Spec.HostUsers` is false"));
        }
    }
}
