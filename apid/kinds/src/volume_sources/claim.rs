//! Spec of a persistent volume claim, which pods with ephemeral volumes share.

use apimachinery::field::{FieldError, FieldErrors};
use serde_json::Value;

use crate::validation::{Field, text};
use crate::{format, labels};

/// Values of `volumeMode`.
pub(crate) const VOLUME_MODES: [&str; 2] = ["Block", "Filesystem"];

/// Access modes of a volume.
const ACCESS_MODES: [&str; 4] = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

/// Validates the spec of a persistent volume claim.
pub(crate) fn claim_spec(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let modes = spec.child("accessModes");
    modes.require_items("at least 1 access mode is required", errors);
    labels::validate_selector(&spec.child("selector"), errors);
    access_modes(&modes, errors);
    validate_storage_request(spec, errors);
    text::check_nonempty_format(&spec.child("storageClassName"), format::subdomain, errors);
    text::check_supported(&spec.child("volumeMode"), &VOLUME_MODES, errors);
    validate_data_sources(spec, errors);
}

/// Validates the requested storage.
fn validate_storage_request(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let resources = spec.child("resources");
    let requests = resources.child("requests");
    let requested = requests.child("storage");
    // As in kube-apiserver, the paths of both errors lack `requests`.
    match requested.text() {
        "" => errors.push(resources.entry("storage", None).required("")),
        amount => {
            if apimachinery::quantity::nanos(amount).is_ok_and(|(nanos, _)| nanos <= 0) {
                let entry = resources.entry("storage", requested.value());
                errors.push(entry.invalid("must be greater than zero"));
            }
        }
    }
}

/// Validates `dataSource` and `dataSourceRef`, the references to the object with the initial data of the
/// volume.
fn validate_data_sources(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (source, reference) = (spec.child("dataSource"), spec.child("dataSourceRef"));
    validate_data_source(&source, errors);
    validate_data_source(&reference, errors);
    if !source.is_present() || !reference.is_present() {
        return;
    }
    let detail = if reference.child("namespace").text().is_empty() {
        let is_same = ["apiGroup", "kind", "name"]
            .iter()
            .all(|name| source.child(name).value() == reference.child(name).value());
        if is_same {
            return;
        }
        "must match dataSourceRef"
    } else {
        "may not be specified when dataSourceRef.namespace is specified"
    };
    // kube-apiserver reports these errors at the spec and shows an empty structure.
    errors.push(spec.invalid_value(serde_json::Map::new(), detail));
}

fn validate_data_source(source: &Field<'_, '_>, errors: &mut FieldErrors) {
    if !source.is_present() {
        return;
    }
    text::require(&source.child("name"), errors);
    text::require(&source.child("kind"), errors);
    let (kind, group) = (source.child("kind"), source.child("apiGroup"));
    if group.text().is_empty() {
        if kind.text() != "PersistentVolumeClaim" {
            let detail = "must be 'PersistentVolumeClaim' when referencing the default apiGroup";
            errors.push(source.invalid_value(kind.text(), detail));
        }
    } else {
        text::check_format(&group, format::subdomain, errors);
    }
    text::check_nonempty_format(&source.child("namespace"), format::label, errors);
}

/// Validates access modes. `ReadWriteOncePod` excludes other access modes.
pub(crate) fn access_modes(modes: &Field<'_, '_>, errors: &mut FieldErrors) {
    let mut has_exclusive = false;
    let mut has_other = false;
    for mode in modes.list() {
        let mode = mode.as_str().unwrap_or("");
        if !ACCESS_MODES.contains(&mode) {
            errors.push(FieldError::not_supported(&modes.path(), Value::from(mode), &ACCESS_MODES));
        }
        has_exclusive |= mode == "ReadWriteOncePod";
        has_other |= mode != "ReadWriteOncePod";
    }
    if has_exclusive && has_other {
        errors.push(modes.forbidden("may not use ReadWriteOncePod with other access modes"));
    }
}
