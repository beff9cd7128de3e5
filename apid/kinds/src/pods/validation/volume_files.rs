//! Volumes with files from the API: secrets, config maps, pod fields and projections of these.

use std::collections::BTreeSet;

use apimachinery::field::FieldErrors;

use super::environment::{ReferenceOwner, field_reference, resource_reference};
use crate::validation::{Field, path, text};
use crate::volume_sources::SourceOwner;

/// Message for an invalid file mode.
const MODE: &str = "must be a number between 0 and 0777 (octal), both inclusive";

/// Minimum lifetime of a projected token in seconds.
const TOKEN_SECONDS_MIN: i64 = 10 * 60;

pub(super) fn secret(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    text::require(&source.child("secretName"), errors);
    mode(&source.child("defaultMode"), errors);
    keys(&source.child("items"), errors);
}

pub(super) fn config_map(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    text::require(&source.child("name"), errors);
    mode(&source.child("defaultMode"), errors);
    keys(&source.child("items"), errors);
}

pub(super) fn downward_api(source: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    mode(&source.child("defaultMode"), errors);
    downward_files(source, errors);
}

/// Validates files with fields of a pod. kube-apiserver reports their errors without the index.
fn downward_files(source: &Field<'_, '_>, errors: &mut FieldErrors) {
    for file in source.child("items").items() {
        downward_file(&source.with_value(file.value()), errors);
    }
}

fn mode(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if field.integer().is_some_and(|mode| !(0..=0o777).contains(&mode)) {
        errors.push(field.invalid(MODE));
    }
}

fn keys(items: &Field<'_, '_>, errors: &mut FieldErrors) {
    for item in items.items() {
        key_to_path(&item, errors);
    }
}

fn key_to_path(item: &Field<'_, '_>, errors: &mut FieldErrors) {
    text::require(&item.child("key"), errors);
    let file = item.child("path");
    text::require(&file, errors);
    path::check_local_non_reserved(&file, errors);
    mode(&item.child("mode"), errors);
}

fn downward_file(file: &Field<'_, '_>, errors: &mut FieldErrors) {
    let file_path = file.child("path");
    text::require(&file_path, errors);
    path::check_local_non_reserved(&file_path, errors);
    let (field, resource) = (file.child("fieldRef"), file.child("resourceFieldRef"));
    match (field.is_present(), resource.is_present()) {
        (true, both) => {
            field_reference(&field, ReferenceOwner::File, errors);
            if both {
                let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
                errors.push(file.invalid_value("resource", detail));
            }
        }
        (false, true) => resource_reference(&resource, ReferenceOwner::File, errors),
        (false, false) => errors.push(file.required("one of fieldRef and resourceFieldRef is required")),
    }
    mode(&file.child("mode"), errors);
}

pub(super) fn projected(volume: &Field<'_, '_>, _owner: SourceOwner, errors: &mut FieldErrors) {
    mode(&volume.child("defaultMode"), errors);
    let mut paths = BTreeSet::new();
    for source in volume.child("sources").items() {
        let mut count = 0;
        for (name, rule) in [
            ("secret", keys_projection as fn(&Field<'_, '_>, &mut FieldErrors)),
            ("configMap", keys_projection),
            ("downwardAPI", downward_files),
            ("serviceAccountToken", token_projection),
        ] {
            let projection = source.child(name);
            if !projection.is_present() {
                continue;
            }
            count += 1;
            rule(&projection, errors);
            if name == "serviceAccountToken" {
                // kube-apiserver reports errors of the file at the path of the volume.
                token_file(&volume.with_value(projection.value()), errors);
                continue;
            }
            unique_paths(volume, name, &projection, &mut paths, errors);
        }
        if count > 1 {
            errors.push(source.forbidden("may not specify more than 1 volume type per source"));
        }
    }
}

/// Reports files of a projection whose path is already the path of another file of the volume.
fn unique_paths(
    volume: &Field<'_, '_>,
    name: &str,
    projection: &Field<'_, '_>,
    paths: &mut BTreeSet<String>,
    errors: &mut FieldErrors,
) {
    let mut check = |path: &str, shown: &str| {
        if !path.is_empty() && !paths.insert(path.to_owned()) {
            errors.push(volume.invalid_value(shown, "conflicting duplicate paths"));
        }
    };
    for item in projection.child("items").items() {
        let path = item.child("path").text();
        let owner = projection.child("name").text();
        check(path, if name == "downwardAPI" { path } else { owner });
    }
}

fn keys_projection(projection: &Field<'_, '_>, errors: &mut FieldErrors) {
    text::require(&projection.child("name"), errors);
    keys(&projection.child("items"), errors);
}

fn token_projection(projection: &Field<'_, '_>, errors: &mut FieldErrors) {
    let seconds = projection.child("expirationSeconds");
    if let Some(number) = seconds.integer() {
        if number < TOKEN_SECONDS_MIN {
            errors.push(seconds.invalid("may not specify a duration less than 10 minutes"));
        }
        if number > 1 << 32 {
            errors.push(seconds.invalid("may not specify a duration larger than 2^32 seconds"));
        }
    }
}

fn token_file(projection: &Field<'_, '_>, errors: &mut FieldErrors) {
    let file = projection.child("path");
    if file.text().is_empty() {
        errors.push(file.required(""));
    } else {
        path::check_local_non_reserved(&file, errors);
    }
}
