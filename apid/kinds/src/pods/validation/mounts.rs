//! Volume mounts and volume devices of containers.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::field::FieldErrors;
use apimachinery::object::Value;

use crate::validation::{Field, path, text};

/// The texts that the items of a list have in the field `name`.
fn texts<'v>(list: &Field<'v, '_>, name: &str) -> BTreeSet<&'v str> {
    list.items().map(|item| item.child(name).text()).collect()
}

/// Validates `volumeMounts`.
pub(super) fn mounts(container: &Field<'_, '_>, volumes: &BTreeMap<&str, &Value>, errors: &mut FieldErrors) {
    let devices = container.child("volumeDevices");
    let (device_names, device_paths) = (texts(&devices, "name"), texts(&devices, "devicePath"));
    let mut paths = BTreeSet::new();
    let mounts = container.child("volumeMounts");
    for mount in mounts.items() {
        let (name, mount_path) = (mount.child("name"), mount.child("mountPath"));
        text::require(&name, errors);
        if !volumes.contains_key(name.text()) {
            errors.push(name.not_found());
        }
        text::require(&mount_path, errors);
        if !paths.insert(mount_path.text()) {
            errors.push(mount_path.invalid("must be unique"));
        }
        if device_names.contains(name.text()) {
            errors.push(name.invalid("must not already exist in volumeDevices"));
        }
        if device_paths.contains(mount_path.text()) {
            errors.push(mount_path.invalid("must not already exist as a path in volumeDevices"));
        }
        // kube-apiserver reports errors of these fields without the index.
        let indexed = mount;
        let mount = mounts.with_value(mount.value());
        sub_path(&mount, &indexed, errors);
        propagation(&mount, container, errors);
        recursive_read_only(&mount, errors);
    }
}

fn sub_path(mount: &Field<'_, '_>, indexed: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (fixed, expanded) = (mount.child("subPath"), mount.child("subPathExpr"));
    if !fixed.text().is_empty() {
        path::check_local_descending(&fixed, errors);
    }
    if !expanded.text().is_empty() {
        if !fixed.text().is_empty() {
            // Unlike other errors of paths, this error has the index.
            errors
                .push(indexed.child("subPathExpr").invalid("subPathExpr and subPath are mutually exclusive"));
        }
        path::check_local_descending(&expanded, errors);
    }
}

fn propagation(mount: &Field<'_, '_>, container: &Field<'_, '_>, errors: &mut FieldErrors) {
    let propagation = mount.child("mountPropagation");
    text::check_supported(&propagation, &["Bidirectional", "HostToContainer", "None"], errors);
    let is_privileged = || container.child("securityContext").child("privileged").flag();
    if propagation.text() == "Bidirectional" && !is_privileged() {
        let detail = "Bidirectional mount propagation is available only to privileged containers";
        errors.push(propagation.forbidden(detail));
    }
}

fn recursive_read_only(mount: &Field<'_, '_>, errors: &mut FieldErrors) {
    let recursive = mount.child("recursiveReadOnly");
    match recursive.text() {
        _ if !recursive.is_present() => {}
        "Disabled" => {}
        "Enabled" | "IfPossible" => {
            if !mount.child("readOnly").flag() {
                errors.push(recursive.forbidden("may only be specified when readOnly is true"));
            }
            if !matches!(mount.child("mountPropagation").text(), "" | "None") {
                let detail = "may only be specified when mountPropagation is None or not specified";
                errors.push(recursive.forbidden(detail));
            }
        }
        _ => errors.push(recursive.not_supported(&["Disabled", "Enabled", "IfPossible"])),
    }
}

/// Validates `volumeDevices`.
pub(super) fn devices(container: &Field<'_, '_>, volumes: &BTreeMap<&str, &Value>, errors: &mut FieldErrors) {
    let devices = container.child("volumeDevices");
    if devices.list().is_empty() {
        return;
    }
    let mounts = container.child("volumeMounts");
    let (mount_names, mount_paths) = (texts(&mounts, "name"), texts(&mounts, "mountPath"));
    let (mut names, mut paths) = (BTreeSet::new(), BTreeSet::new());
    for device in devices.items() {
        let (name, device_path) = (device.child("name"), device.child("devicePath"));
        text::require(&name, errors);
        if names.contains(name.text()) {
            errors.push(name.invalid("must be unique"));
        }
        match volumes.get(name.text()) {
            None => errors.push(name.not_found()),
            Some(volume) if volume.get("persistentVolumeClaim").or(volume.get("ephemeral")).is_none() => {
                errors.push(name.invalid(
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
                ));
            }
            Some(_) => {}
        }
        text::require(&device_path, errors);
        if paths.contains(device_path.text()) {
            errors.push(device_path.invalid("must be unique"));
        }
        if device_path.text().split('/').any(|segment| segment == "..") {
            errors.push(device_path.invalid("can not contain backsteps ('..')"));
        } else {
            paths.insert(device_path.text());
        }
        if mount_names.contains(name.text()) {
            errors.push(name.invalid("must not already exist in volumeMounts"));
        }
        if mount_paths.contains(device_path.text()) {
            errors.push(device_path.invalid("must not already exist as a path in volumeMounts"));
        }
        if !name.text().is_empty() {
            names.insert(name.text());
        }
    }
}
