//! Validation of certificate signing requests, and preparation of their conditions in an update.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::clock::Clock;
use apimachinery::field::{FieldError, FieldErrors};
use apimachinery::names::Names;
use apimachinery::object::Object;
use apimachinery::time;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use x509_parser::certificate::X509Certificate;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::prelude::FromDer as _;

use super::pem;
use crate::format;
use crate::table::cell::PathReader as _;
use crate::validation::{Field, text};

/// Allowed usages of keys, sorted.
pub const USAGES: [&str; 23] = [
    "any",
    "cert sign",
    "client auth",
    "code signing",
    "content commitment",
    "crl sign",
    "data encipherment",
    "decipher only",
    "digital signature",
    "email protection",
    "encipher only",
    "ipsec end system",
    "ipsec tunnel",
    "ipsec user",
    "key agreement",
    "key encipherment",
    "microsoft sgc",
    "netscape sgc",
    "ocsp signing",
    "s/mime",
    "server auth",
    "signing",
    "timestamping",
];

/// Types of the conditions that record an approval or a denial.
const APPROVAL: [&str; 2] = ["Approved", "Denied"];
/// Types of conditions that an update cannot remove, and whose status must be `True`.
const FINAL: [&str; 3] = ["Approved", "Denied", "Failed"];

/// Minimum value of `expirationSeconds`.
const EXPIRATION_MIN: i64 = 600;
/// Maximum length, in bytes, of the domain of a signer name.
const DOMAIN_MAX: usize = 253;
/// Maximum length, in bytes, of a signer name: a domain, a slash, a label, a dot and a subdomain.
const SIGNER_NAME_MAX: usize = 253 + 1 + 63 + 1 + 253;

/// Returns the conditions of a type.
fn conditions_of_type<'o>(object: &'o Object, kind: &str) -> Vec<&'o Value> {
    object.items("status.conditions").iter().filter(|condition| condition.text("type") == kind).collect()
}

/// Restores the conditions `Approved` and `Denied` from the stored request. If the update changes the number of
/// conditions of one of these types, its new conditions stay, and validation accepts or rejects them.
pub(super) fn keep_approval(new: &mut Object, old: &Object) {
    for kind in APPROVAL {
        let old_conditions = conditions_of_type(old, kind);
        if old_conditions.len() != conditions_of_type(new, kind).len() {
            continue;
        }
        let new_conditions = conditions_mut(new).filter(|condition| condition.text("type") == kind);
        for (condition, old_condition) in new_conditions.zip(old_conditions) {
            condition.clone_from(old_condition);
        }
    }
}

fn conditions_mut(object: &mut Object) -> impl Iterator<Item = &mut Value> {
    let conditions = object.get_mut("status").and_then(|status| status.get_mut("conditions"));
    conditions.and_then(Value::as_array_mut).into_iter().flatten()
}

/// Sets missing `lastUpdateTime` and `lastTransitionTime` of conditions. Without a change of status, the
/// transition time is that of the stored condition.
pub(super) fn complete_conditions(new: &mut Object, old: &Object, clock: &dyn Clock) {
    let now = time::time(clock.now());
    let identity = |condition: &Value| ["type", "status"].map(|name| condition.text(name).to_owned());
    let mut transitions = BTreeMap::new();
    for condition in old.items("status.conditions") {
        transitions.entry(identity(condition)).or_insert_with(|| condition.text("lastTransitionTime"));
    }
    for condition in conditions_mut(new) {
        let transition = transitions.get(&identity(condition)).copied().filter(|time| !time.is_empty());
        let Some(condition) = condition.as_object_mut() else { continue };
        let is_missing = |time: Option<&Value>| time.is_none_or(Value::is_null);
        if is_missing(condition.get("lastUpdateTime")) {
            condition.insert("lastUpdateTime".to_owned(), json!(now));
        }
        if is_missing(condition.get("lastTransitionTime")) {
            let time = transition.unwrap_or(&now);
            condition.insert("lastTransitionTime".to_owned(), json!(time));
        }
    }
}

/// Validates a new request.
pub(super) fn validate(object: &Object, names: &Names) -> FieldErrors {
    let spec = Field::new(object.get("spec"), "spec");
    let mut errors = FieldErrors::new();
    let request = spec.child("request");
    let bytes = STANDARD.decode(request.text()).unwrap_or_default();
    let blocks = pem::blocks(&String::from_utf8_lossy(&bytes));
    match blocks.first().filter(|block| block.label == "CERTIFICATE REQUEST") {
        None => errors.push(request.invalid("PEM block type must be CERTIFICATE REQUEST")),
        Some(block) if !is_request(&block.content) => {
            errors.push(request.invalid("the PEM block is not a certificate request in the format PKCS #10"));
        }
        Some(_) => {}
    }
    validate_usages(&spec.child("usages"), &mut errors);
    let signer = spec.child("signerName");
    if signer.text() == names.label_key("legacy-unknown") {
        errors.push(signer.invalid("the legacy signerName is not allowed via this API version"));
    } else {
        validate_signer_name(&signer, &mut errors);
    }
    let expiration = spec.child("expirationSeconds");
    if expiration.integer().is_some_and(|seconds| seconds < EXPIRATION_MIN) {
        let detail = "may not specify a duration less than 600 seconds (10 minutes)";
        errors.push(expiration.invalid(detail));
    }
    errors
}

/// Whether `der` is exactly one certificate request in DER, without further bytes.
fn is_request(der: &[u8]) -> bool {
    X509CertificationRequest::from_der(der).is_ok_and(|(rest, _)| rest.is_empty())
}

fn validate_usages(usages: &Field<'_, '_>, errors: &mut FieldErrors) {
    usages.require_items("", errors);
    for usage in usages.items() {
        if !USAGES.contains(&usage.text()) {
            errors.push(usage.not_supported(&USAGES));
        }
    }
    let mut seen = BTreeSet::new();
    for usage in usages.items() {
        if !seen.insert(usage.text()) {
            errors.push(usage.duplicate());
        }
    }
}

/// Validates the name of a signer: a domain and a path.
pub(super) fn validate_signer_name(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if field.text().is_empty() {
        errors.push(field.required(""));
        return;
    }
    let Some((domain, path)) = field.text().split_once('/').filter(|(_, path)| !path.contains('/')) else {
        let detail = "must be a fully qualified domain and path of the form 'example.com/signer-name'";
        errors.push(field.invalid(detail));
        return;
    };
    if domain.len() > DOMAIN_MAX {
        errors.push(FieldError::too_long(&field.path(), DOMAIN_MAX));
    }
    validate_labels(field, domain, format::label, errors);
    if !domain.contains('.') {
        let detail = "should be a domain with at least two segments separated by dots";
        errors.push(field.invalid_value(domain, detail));
    }
    validate_labels(field, path, format::subdomain, errors);
    text::check_length(field, SIGNER_NAME_MAX, errors);
}

fn validate_labels(
    field: &Field<'_, '_>,
    text: &str,
    format: impl Fn(&str) -> Vec<String>,
    errors: &mut FieldErrors,
) {
    for label in text.split('.') {
        for message in format(label) {
            errors.push(field.invalid_value(text, &format!("validating label {label:?}: {message}")));
        }
    }
}

/// Validates an update, of the main resource or a subresource.
pub(super) fn validate_update(new: &Object, old: &Object, subresource: &str) -> FieldErrors {
    let mut errors = FieldErrors::new();
    if subresource.is_empty() {
        return errors;
    }
    let status = Field::new(new.get("status"), "status");
    let list = status.child("conditions");
    validate_conditions(&list, &mut errors);
    let certificate = status.child("certificate");
    let old_certificate = old.text("status.certificate");
    if certificate.text() != old_certificate
        && let Some(detail) = invalid_certificate(certificate.text())
    {
        errors.push(certificate.invalid_value("<certificate data>", &detail));
    }
    for kind in FINAL {
        if conditions_of_type(new, kind).len() < conditions_of_type(old, kind).len() {
            let detail = format!("updates may not remove a condition of type {kind:?}");
            errors.push(list.forbidden(&detail));
        }
    }
    if subresource != "approval" {
        for kind in APPROVAL {
            if conditions_of_type(new, kind).len() > conditions_of_type(old, kind).len() {
                errors.push(list.forbidden(&format!("updates may not add a condition of type {kind:?}")));
            }
        }
    }
    if !old_certificate.is_empty() && certificate.text() != old_certificate {
        errors.push(certificate.forbidden("updates may not modify existing certificate content"));
    }
    errors
}

fn validate_conditions(conditions: &Field<'_, '_>, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for condition in conditions.items() {
        let (kind, status) = (condition.child("type"), condition.child("status"));
        text::require(&kind, errors);
        let supported: &[&str] =
            if FINAL.contains(&kind.text()) { &["True"] } else { &["False", "True", "Unknown"] };
        text::require_supported(&status, supported, errors);
        let opposite = match kind.text() {
            "Approved" => "Denied",
            "Denied" => "Approved",
            _ => "",
        };
        if seen.contains(opposite) {
            errors.push(kind.invalid("Approved and Denied conditions are mutually exclusive"));
        }
        if !seen.insert(kind.text()) {
            errors.push(kind.duplicate());
        }
    }
}

/// The reason why a certificate is invalid. An empty certificate is valid.
fn invalid_certificate(text: &str) -> Option<String> {
    if text.is_empty() {
        return None;
    }
    let bytes = STANDARD.decode(text).unwrap_or_default();
    let blocks = pem::blocks(&String::from_utf8_lossy(&bytes));
    if blocks.is_empty() {
        return Some("must contain at least one CERTIFICATE PEM block".to_owned());
    }
    blocks.iter().find_map(|block| {
        if block.label != "CERTIFICATE" {
            return Some(format!("only CERTIFICATE PEM blocks are allowed, found {:?}", block.label));
        }
        if block.has_headers {
            return Some("no PEM block headers are permitted".to_owned());
        }
        match count_certificates(&block.content) {
            None => Some("x509: malformed certificate".to_owned()),
            Some(0) => Some("found CERTIFICATE PEM block containing 0 certificates".to_owned()),
            Some(_) => None,
        }
    })
}

/// Number of certificates in DER one after another; None if a part is no certificate.
fn count_certificates(mut der: &[u8]) -> Option<usize> {
    let mut count = 0;
    while !der.is_empty() {
        (der, _) = X509Certificate::from_der(der).ok()?;
        count += 1;
    }
    Some(count)
}

#[cfg(test)]
mod tests {
    use apimachinery::names::Preset;

    use super::*;

    #[test]
    fn block_without_request_is_rejected() {
        let names = Names::new(Preset::Kubernetes, "").unwrap();
        let text = "-----BEGIN CERTIFICATE REQUEST-----\nYWJj\n-----END CERTIFICATE REQUEST-----\n";
        let spec = json!({
            "request": STANDARD.encode(text), "usages": ["client auth"], "signerName": "a.example/signer",
        });
        let errors = validate(&Object::from_value(json!({ "spec": spec })).unwrap(), &names);
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        let [text] = texts.as_slice() else { panic!("{texts:?}") };
        assert!(text.ends_with("is not a certificate request in the format PKCS #10"), "{text}");
    }
}
