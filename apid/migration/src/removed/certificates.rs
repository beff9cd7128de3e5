//! CertificateSigningRequest of `certificates/v1beta1`, whose signer and usages have defaults.

use std::collections::BTreeSet;

use apimachinery::names::Names;
use apimachinery::object::{Object, Value};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::FromDer as _;

use super::fields::{default, is_set, items, part};
use super::{FieldChanges, Notes};

pub(super) const VERSIONS: &[FieldChanges] =
    &[FieldChanges::new(("certificates", "v1beta1", "CertificateSigningRequest"), upgrade, |_, _| {})];

fn upgrade(object: &mut Object, names: &Names, notes: &mut Notes) {
    if let Some(spec) = part(object, "spec") {
        if default(spec, "usages", json!(["digital signature", "key encipherment"])) {
            notes.add("spec.usages", "these are the defaults of the old version; v1 requires the usages");
        }
        if !is_set(spec, "signerName") {
            let request = spec.get("request").and_then(Value::as_str).unwrap_or_default();
            let usages = spec.get("usages").and_then(Value::as_array).into_iter().flatten();
            let signer = default_signer(request, &usages.filter_map(Value::as_str).collect());
            spec.insert("signerName".to_owned(), names.label_key(signer).into());
            notes.add("spec.signerName", "this is the default of the old version; v1 requires the signer");
        }
    }
    if let Some(status) = part(object, "status") {
        for condition in items(status, "conditions") {
            default(condition, "status", "True");
        }
    }
}

/// The signer that `v1beta1` derives from a request, as a name without its domain.
fn default_signer(request: &str, usages: &BTreeSet<&str>) -> &'static str {
    const UNKNOWN: &str = "legacy-unknown";
    let Some(node) = NodeRequest::parse(request) else { return UNKNOWN };
    let has_usages_of = |usage: &str| {
        let required = BTreeSet::from(["digital signature", usage]);
        let mut with_encipherment = required.clone();
        with_encipherment.insert("key encipherment");
        *usages == required || *usages == with_encipherment
    };
    match node {
        NodeRequest { has_names: false, has_other_names: false } if has_usages_of("client auth") => {
            "kube-apiserver-client-kubelet"
        }
        NodeRequest { has_names: true, has_other_names: false } if has_usages_of("server auth") => {
            "kubelet-serving"
        }
        _ => UNKNOWN,
    }
}

/// A certificate request of a node, with the forms of its alternative names.
struct NodeRequest {
    /// Whether the request has DNS names or addresses.
    has_names: bool,
    /// Whether the request has mail addresses or URIs.
    has_other_names: bool,
}

impl NodeRequest {
    /// Parses a request that is PEM text in base64. None if the request is malformed or its subject is not a
    /// node.
    fn parse(encoded: &str) -> Option<Self> {
        let text = STANDARD.decode(encoded).ok()?;
        let (_, pem) = x509_parser::pem::parse_x509_pem(&text).ok()?;
        let (_, request) = X509CertificationRequest::from_der(&pem.contents).ok()?;
        let subject = &request.certification_request_info.subject;
        let organizations: Vec<&str> =
            subject.iter_organization().filter_map(|name| name.as_str().ok()).collect();
        let common_name = subject.iter_common_name().find_map(|name| name.as_str().ok())?;
        if organizations != ["system:nodes"] || !common_name.starts_with("system:node:") {
            return None;
        }
        let mut node = NodeRequest { has_names: false, has_other_names: false };
        for extension in request.requested_extensions().into_iter().flatten() {
            let ParsedExtension::SubjectAlternativeName(alternative) = extension else { continue };
            for name in &alternative.general_names {
                match name {
                    GeneralName::DNSName(_) | GeneralName::IPAddress(_) => node.has_names = true,
                    GeneralName::RFC822Name(_) | GeneralName::URI(_) => node.has_other_names = true,
                    _ => {}
                }
            }
        }
        Some(node)
    }
}
