//! ClusterTrustBundle: trust anchors of a signer, or of no signer.

use std::collections::BTreeMap;

use apimachinery::field::{FieldError, FieldErrors, FieldPath};
use apimachinery::object::Object;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;

use super::certificate_signing_request_rules::validate_signer_name;
use super::pem;
use crate::format;
use crate::same_fields::same_fields;
use crate::table::NAME;
use crate::table::cell::{NONE, PathReader};
use crate::validation::Field;
use crate::{BuiltInKind, Column, Context, MetadataChecks, NameRule, Revalidation, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    rules: WriteRules {
        name_rule: NameRule::ByStrategy,
        unconditional_update: false,
        metadata_checks: MetadataChecks::CHANGES,
        revalidation: Revalidation::Never,
        ..WriteRules::BUILT_IN
    },
    selectable_fields: &["spec.signerName"],
    columns: &[
        NAME,
        Column::text("SignerName", "Signer of the certificates.").text_or("spec.signerName", NONE),
    ],
    strategy: &ClusterTrustBundle,
    ..BuiltInKind::cluster_scoped("certificates/v1beta1.ClusterTrustBundle", "clustertrustbundles")
};

/// The kind in its alpha version.
pub(super) const V1ALPHA1: BuiltInKind = same_fields(KIND, "certificates/v1alpha1.ClusterTrustBundle");

/// Maximum size, in bytes, of `trustBundle`.
const BUNDLE_MAX: usize = 1 << 20;
/// Text that replaces a bundle in error messages.
const OMITTED: &str = "<value omitted>";

struct ClusterTrustBundle;

impl Strategy for ClusterTrustBundle {
    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        validate(object, true)
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        // An unchanged bundle is not validated again, so it stays valid if a release makes the rules
        // stricter.
        let mut errors = validate(new, new.text("spec.trustBundle") != old.text("spec.trustBundle"));
        let signer = Field::new(new.find("spec.signerName"), "spec.signerName");
        if signer.text() != old.text("spec.signerName") {
            errors.push(signer.invalid_value(signer.text(), "field is immutable"));
        }
        errors
    }
}

fn validate(object: &Object, validates_bundle: bool) -> FieldErrors {
    let mut errors = FieldErrors::new();
    let signer = Field::new(object.find("spec.signerName"), "spec.signerName");
    for (field, is_prefix) in [("generateName", true), ("name", false)] {
        let name = object.meta().and_then(|metadata| metadata.get(field));
        let name = name.and_then(|name| name.as_str()).filter(|name| !name.is_empty());
        for message in name.map_or_else(Vec::new, |name| invalid_name(name, signer.text(), is_prefix)) {
            let path = FieldPath::new("metadata").child(field);
            errors.push(FieldError::invalid(&path, name.unwrap_or_default(), &message));
        }
    }
    if !signer.text().is_empty() {
        validate_signer_name(&signer, &mut errors);
    }
    if validates_bundle {
        validate_bundle(&Field::new(object.find("spec.trustBundle"), "spec.trustBundle"), &mut errors);
    }
    errors
}

/// Error messages for a name. The name of a bundle with a signer begins with the signer.
fn invalid_name(name: &str, signer: &str, is_prefix: bool) -> Vec<String> {
    let subdomain = |name: &str| format::name(NameRule::Subdomain, name, is_prefix);
    if signer.is_empty() {
        return match name.contains(':') {
            true => vec!["ClusterTrustBundle without signer name must not have \":\" in its name".to_owned()],
            false => subdomain(name),
        };
    }
    let prefix = format!("{}:", signer.replace('/', ":"));
    match name.strip_prefix(&prefix) {
        Some(rest) => subdomain(rest),
        None => {
            vec![format!("ClusterTrustBundle for signerName {signer} must be named with prefix {prefix}")]
        }
    }
}

/// Validates the certificates of a bundle.
fn validate_bundle(field: &Field<'_, '_>, errors: &mut FieldErrors) {
    if field.text().len() > BUNDLE_MAX {
        errors.push(FieldError::too_long(&field.path(), BUNDLE_MAX));
        return;
    }
    let mut invalid = Vec::new();
    let mut anchors: BTreeMap<Vec<u8>, Vec<String>> = BTreeMap::new();
    for (index, block) in pem::blocks(field.text()).into_iter().enumerate() {
        match invalid_anchor(&block) {
            Some(reason) => invalid.push(format!("entry {index} {reason}")),
            None => anchors.entry(block.content).or_default().push(index.to_string()),
        }
    }
    if invalid.is_empty() && anchors.is_empty() {
        invalid.push("at least one trust anchor must be provided".to_owned());
    } else if invalid.is_empty() {
        let repeated = anchors.values().filter(|indexes| indexes.len() > 1);
        invalid.extend(
            repeated.map(|indexes| format!("duplicate trust anchor (indices [{}])", indexes.join(" "))),
        );
    }
    for detail in invalid {
        errors.push(field.invalid_value(OMITTED, &detail));
    }
}

/// Returns the reason why a block is no trust anchor.
fn invalid_anchor(block: &pem::Block) -> Option<String> {
    if block.label != "CERTIFICATE" {
        return Some(format!("has bad block type: {}", block.label));
    }
    if block.has_headers {
        return Some("has PEM block headers".to_owned());
    }
    let parsed = X509Certificate::from_der(&block.content);
    let certificate = parsed.ok().filter(|(rest, _)| rest.is_empty()).map(|(_, certificate)| certificate);
    let Some(certificate) = certificate else { return Some("does not parse as X.509".to_owned()) };
    (!certificate.is_ca()).then(|| "does not have the CA bit set".to_owned())
}
