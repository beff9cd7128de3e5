//! Validation of ingresses.

use apimachinery::field::{FieldError, FieldErrors};
use apimachinery::object::Object;

use crate::table::cell::PathReader as _;
use crate::validation::network::{check_port, parse_ip};
use crate::validation::{Field, network, text};
use crate::{Context, format};

/// Sequences that a path of type `Exact` or `Prefix` must not contain.
const INVALID_SEQUENCES: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
/// Suffixes that a path of type `Exact` or `Prefix` must not have.
const INVALID_SUFFIXES: [&str; 2] = ["/..", "/."];

/// Validates that the deprecated class annotation of a new ingress equals `ingressClassName`, if both are
/// present.
pub(super) fn validate_class_annotation(object: &Object, ctx: &Context<'_>) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let key = ctx.names.label_key("ingress.class");
    let spec = Field::new(object.get("spec"), "spec");
    let field = spec.child("ingressClassName");
    if let Some(class) = object.annotation(&key)
        && field.is_present()
        && field.text() != class
    {
        let annotations = Field::new(None, "annotations");
        let detail = "must match `ingressClassName` when both are specified";
        errors.push(annotations.child(&key).invalid_value(class, detail));
    }
    errors
}

/// Warning about the deprecated annotation for the class.
pub(super) fn class_annotation_warning(object: &Object, ctx: &Context<'_>) -> Option<String> {
    let key = ctx.names.label_key("ingress.class");
    let is_used = object.annotation(&key).is_some() && object.find("spec.ingressClassName").is_none();
    is_used.then(|| format!("annotation \"{key}\" is deprecated, please use 'spec.ingressClassName' instead"))
}

/// Validates the spec of an ingress.
pub(super) fn validate(object: &Object) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let spec = Field::new(object.get("spec"), "spec");
    let (default, rules) = (spec.child("defaultBackend"), spec.child("rules"));
    if rules.list().is_empty() && !default.is_present() {
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.push(spec.with_value(rules.value()).invalid(detail));
    }
    if default.is_present() {
        validate_backend(&default, &mut errors);
    }
    for rule in rules.items() {
        validate_rule(&rule, &mut errors);
    }
    for tls in spec.child("tls").items() {
        for host in tls.child("hosts").items() {
            validate_host_name(&host, &mut errors);
        }
        text::check_nonempty_format(&tls.child("secretName"), format::subdomain, &mut errors);
    }
    text::check_present_format(&spec.child("ingressClassName"), format::subdomain, &mut errors);
    errors
}

fn validate_host_name(host: &Field<'_, '_>, errors: &mut FieldErrors) {
    let has_wildcard = host.text().contains('*');
    text::check_format(
        host,
        if has_wildcard { format::wildcard_subdomain } else { format::subdomain },
        errors,
    );
}

fn validate_rule(rule: &Field<'_, '_>, errors: &mut FieldErrors) {
    let host = rule.child("host");
    if !host.text().is_empty() {
        if parse_ip(host.text()).is_some() {
            errors.push(host.invalid("must be a DNS name, not an IP address"));
        }
        validate_host_name(&host, errors);
    }
    let http = rule.child("http");
    if !http.is_present() {
        return;
    }
    let paths = http.child("paths");
    paths.require_items("", errors);
    for path in paths.items() {
        validate_path(&path, errors);
    }
}

fn validate_path(path: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (kind, route) = (path.child("pathType"), path.child("path"));
    if !kind.is_present() {
        errors.push(kind.required("pathType must be specified"));
        return;
    }
    let is_absolute = route.text().starts_with('/');
    match kind.text() {
        "Exact" | "Prefix" => {
            if !is_absolute {
                errors.push(route.invalid_value(route.text(), "must be an absolute path"));
            }
            for sequence in INVALID_SEQUENCES.iter().filter(|sequence| route.text().contains(**sequence)) {
                errors.push(route.invalid(&format!("must not contain '{sequence}'")));
            }
            for suffix in INVALID_SUFFIXES.iter().filter(|suffix| route.text().ends_with(**suffix)) {
                errors.push(route.invalid(&format!("cannot end with '{suffix}'")));
            }
        }
        "ImplementationSpecific" => {
            if !route.text().is_empty() && !is_absolute {
                errors.push(route.invalid("must be an absolute path"));
            }
        }
        _ => errors.push(kind.not_supported(&["Exact", "ImplementationSpecific", "Prefix"])),
    }
    validate_backend(&path.child("backend"), errors);
}

fn validate_backend(backend: &Field<'_, '_>, errors: &mut FieldErrors) {
    let (resource, service) = (backend.child("resource"), backend.child("service"));
    match (resource.is_present(), service.is_present()) {
        (true, true) => {
            errors.push(backend.invalid_value("", "cannot set both resource and service backends"));
        }
        (true, false) => validate_object_reference(&resource, errors),
        (false, true) => validate_service_backend(backend, &service, errors),
        (false, false) => {
            errors.push(backend.invalid_value("", "resource or service backend is required"));
        }
    }
}

fn validate_service_backend(backend: &Field<'_, '_>, service: &Field<'_, '_>, errors: &mut FieldErrors) {
    text::require_format(&service.child("name"), format::label_1035, errors);
    let ports = service.child("port");
    let (name, number) = (ports.child("name"), ports.child("number"));
    let has_number = number.integer().unwrap_or(0) != 0;
    match (name.text().is_empty(), has_number) {
        (false, true) => errors.push(backend.invalid_value("", "cannot set both port name & port number")),
        (false, false) => text::check_format(&name, format::port_name, errors),
        (true, true) => check_port(&number, errors),
        (true, false) => errors.push(backend.required("port name or number is required")),
    }
}

/// Validates a reference to an object of a group and kind.
pub(super) fn validate_object_reference(reference: &Field<'_, '_>, errors: &mut FieldErrors) {
    text::check_present_format(&reference.child("apiGroup"), format::subdomain, errors);
    for name in ["kind", "name"] {
        text::require_format(&reference.child(name), |text| format::path_segment(text, false), errors);
    }
}

/// Validates the status.
pub(super) fn validate_status(object: &Object) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let status = Field::new(object.get("status"), "status");
    let balancer = status.child("loadBalancer");
    for ingress in balancer.child("ingress").items() {
        let (address, host) = (ingress.child("ip"), ingress.child("hostname"));
        if !address.text().is_empty() {
            network::check_ip(&address, &mut errors);
        }
        network::check_host_name(&host, &mut errors);
    }
    errors
}

/// Validates the parameters of an ingress class.
pub(super) fn validate_class_parameters(parameters: &Field<'_, '_>, errors: &mut FieldErrors) {
    validate_object_reference(parameters, errors);
    let (scope, namespace) = (parameters.child("scope"), parameters.child("namespace"));
    if !scope.is_present() {
        errors.push(scope.required(""));
        return;
    }
    match scope.text() {
        "Namespace" if !namespace.is_present() => {
            errors.push(namespace.required("`parameters.scope` is set to 'Namespace'"));
        }
        "Namespace" => text::check_format(&namespace, format::label, errors),
        "Cluster" if namespace.is_present() => {
            errors.push(namespace.forbidden("`parameters.scope` is set to 'Cluster'"));
        }
        "Cluster" => {}
        _ => errors.push(FieldError::not_supported(&scope.path(), scope.text(), &["Cluster", "Namespace"])),
    }
}
