//! Environment variables of containers, and references to fields and resources.

use apimachinery::field::FieldErrors;

use crate::format;
use crate::validation::{Field, resource, text};

/// Fields of a pod whose value an environment variable can have.
const VARIABLE_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// Fields of a pod whose value a file of a volume can contain.
const FILE_FIELDS: [&str; 5] =
    ["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

/// Fields of a pod that kube-apiserver knows in a `fieldRef`. A reference to another field causes a
/// conversion error.
const KNOWN_FIELDS: [&str; 14] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.phase",
    "status.podIP",
    "status.podIPs",
];

/// Resources that a `resourceFieldRef` can refer to, besides huge pages.
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// Divisors of resources that count bytes.
const BYTE_DIVISORS: [&str; 13] =
    ["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// Owner of a reference, which decides the allowed fields.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum ReferenceOwner {
    /// An environment variable.
    Variable,
    /// A file of a volume.
    File,
}

/// Validates `env`.
pub(super) fn variables(variables: &Field<'_, '_>, errors: &mut FieldErrors) {
    for variable in variables.items() {
        let name = variable.child("name");
        text::require_format(&name, format::variable_name, errors);
        let source = variable.child("valueFrom");
        if source.is_present() {
            value_source(&source, variable.child("value").text(), errors);
        }
    }
}

fn value_source(source: &Field<'_, '_>, value: &str, errors: &mut FieldErrors) {
    let mut count = 0;
    let field = source.child("fieldRef");
    if field.is_present() {
        count += 1;
        field_reference(&field, ReferenceOwner::Variable, errors);
    }
    let resource = source.child("resourceFieldRef");
    if resource.is_present() {
        count += 1;
        resource_reference(&resource, ReferenceOwner::Variable, errors);
    }
    for name in ["configMapKeyRef", "secretKeyRef"] {
        let reference = source.child(name);
        if reference.is_present() {
            count += 1;
            key_reference(&reference, errors);
        }
    }
    if count == 0 {
        let detail =
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`";
        errors.push(source.invalid_value("", detail));
    }
    if !value.is_empty() {
        if count > 0 {
            errors.push(source.invalid_value("", "may not be specified when `value` is not empty"));
        }
    } else if count > 1 {
        errors.push(source.invalid_value("", "may not have more than one field specified at a time"));
    }
}

/// Validates `envFrom`. As in kube-apiserver, the error of a wrong number of references has the path of the
/// list.
pub(super) fn sources(sources: &Field<'_, '_>, errors: &mut FieldErrors) {
    for source in sources.items() {
        text::check_nonempty_format(&source.child("prefix"), format::variable_name, errors);
        let mut count = 0;
        for name in ["configMapRef", "secretRef"] {
            let reference = source.child(name);
            if reference.is_present() {
                count += 1;
                text::require_format(&reference.child("name"), format::subdomain, errors);
            }
        }
        match count {
            0 => errors.push(sources.invalid_value("", "must specify one of: `configMapRef` or `secretRef`")),
            1 => {}
            _ => {
                errors.push(sources.invalid_value("", "may not have more than one field specified at a time"))
            }
        }
    }
}

fn key_reference(reference: &Field<'_, '_>, errors: &mut FieldErrors) {
    text::check_format(&reference.child("name"), format::subdomain, errors);
    text::require_format(&reference.child("key"), format::config_key, errors);
}

/// Validates a reference to a field of the pod.
pub(super) fn field_reference(reference: &Field<'_, '_>, owner: ReferenceOwner, errors: &mut FieldErrors) {
    let (version, field) = (reference.child("apiVersion"), reference.child("fieldPath"));
    for required in [&version, &field] {
        if required.text().is_empty() {
            errors.push(required.required(""));
            return;
        }
    }
    let subscript = field.text().strip_suffix("']").and_then(|path| path.split_once("['"));
    let conversion_error = if version.text() != "v1" {
        Some(format!("unsupported pod version: {}", version.text()))
    } else {
        let is_known = match subscript {
            Some((path, _)) => matches!(path, "metadata.annotations" | "metadata.labels"),
            None => KNOWN_FIELDS.contains(&field.text()) || field.text() == "spec.host",
        };
        (!is_known).then(|| format!("field label not supported: {}", field.text()))
    };
    if let Some(error) = conversion_error {
        errors.push(field.invalid(&format!("error converting fieldPath: {error}")));
        return;
    }
    if let Some((path, key)) = subscript {
        let key = if path == "metadata.annotations" { key.to_ascii_lowercase() } else { key.to_owned() };
        text::check_name(reference, key.as_str(), format::qualified_name, errors);
        return;
    }
    let allowed: &[&str] = if owner == ReferenceOwner::Variable { &VARIABLE_FIELDS } else { &FILE_FIELDS };
    let path = if field.text() == "spec.host" { "spec.nodeName" } else { field.text() };
    if !allowed.contains(&path) {
        errors.push(field.not_supported(allowed));
    }
}

/// Validates a reference to a resource of a container.
pub(super) fn resource_reference(reference: &Field<'_, '_>, owner: ReferenceOwner, errors: &mut FieldErrors) {
    let (container, name) = (reference.child("containerName"), reference.child("resource"));
    if owner == ReferenceOwner::File && container.text().is_empty() {
        errors.push(container.required(""));
    } else if name.text().is_empty() {
        errors.push(name.required(""));
    } else if !RESOURCES.contains(&name.text()) && !is_huge_page(name.text()) {
        errors.push(name.not_supported(&RESOURCES));
    }
    divisor(reference, errors);
}

fn is_huge_page(name: &str) -> bool {
    ["limits.", "requests."]
        .iter()
        .any(|prefix| name.strip_prefix(prefix).is_some_and(resource::is_huge_page))
}

fn divisor(reference: &Field<'_, '_>, errors: &mut FieldErrors) {
    let divisor = reference.child("divisor");
    if matches!(divisor.text(), "" | "0") {
        return;
    }
    let name = reference.child("resource").text();
    let (allowed, described): (&[&str], _) = match name {
        "limits.cpu" | "requests.cpu" => (&["1m", "1"], "1m and 1 are supported with the cpu resource"),
        "limits.memory" | "requests.memory" => (
            &BYTE_DIVISORS,
            "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the memory resource",
        ),
        "limits.ephemeral-storage" | "requests.ephemeral-storage" => (
            &BYTE_DIVISORS,
            "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the local ephemeral storage resource",
        ),
        name if is_huge_page(name) => (
            &BYTE_DIVISORS,
            "1, 1k, 1M, 1G, 1T, 1P, 1E, 1Ki, 1Mi, 1Gi, 1Ti, 1Pi, 1Ei are supported with the hugepages resource",
        ),
        _ => return,
    };
    if !allowed.contains(&divisor.text()) {
        let resource = reference.child("resource");
        errors.push(divisor.invalid_value(resource.text(), &format!("only divisor's values {described}")));
    }
}
