//! CertificateSigningRequest: a request to a signer for a certificate.

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use apimachinery::user::UserInfo;
use serde_json::{Value, json};

use super::certificate_signing_request_rules as rules;
use crate::defaults::{part, restore};
use crate::table::cell::{NONE, PathReader};
use crate::table::{AGE, NAME, short_duration};
use crate::{
    BuiltInKind, Column, Context, NameRule, PART_VERBS, Revalidation, Strategy, Subresource, WriteRules,
    status,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["csr"],
    subresources: &[
        Subresource::new("approval", PART_VERBS, "CertificateSigningRequest"),
        Subresource::status("CertificateSigningRequest"),
    ],
    rules: WriteRules {
        name_rule: NameRule::PathSegment,
        revalidation: Revalidation::Never,
        ..WriteRules::BUILT_IN
    },
    selectable_fields: &["spec.signerName"],
    columns: &[
        NAME,
        AGE,
        Column::text("SignerName", "Name of the signer.").text_or("spec.signerName", NONE),
        Column::text("Requestor", "User that made the request.").text_at("spec.username"),
        Column::text("RequestedDuration", "Requested duration of the certificate."),
        Column::text("Condition", "Approval state of the request, and whether the certificate was issued."),
    ],
    cells,
    strategy: &CertificateSigningRequest,
    ..BuiltInKind::cluster_scoped("certificates/v1.CertificateSigningRequest", "certificatesigningrequests")
};

struct CertificateSigningRequest;

impl Strategy for CertificateSigningRequest {
    /// Removes the requester fields from the body: the server sets them.
    fn prepare_create(&self, object: &mut Object, _ctx: &Context<'_>) {
        if let Some(Value::Object(spec)) = object.get_mut("spec") {
            spec.retain(|field, _| !matches!(field.as_str(), "username" | "uid" | "groups" | "extra"));
        }
    }

    fn record_creator(&self, object: &mut Object, creator: &UserInfo) {
        let Some(Value::Object(spec)) = object.get_mut("spec") else { return };
        for (field, text) in [("username", &creator.name), ("uid", &creator.uid)] {
            if !text.is_empty() {
                spec.insert(field.to_owned(), json!(text));
            }
        }
        if !creator.groups.is_empty() {
            spec.insert("groups".to_owned(), json!(creator.groups));
        }
        if !creator.extra.is_empty() {
            spec.insert("extra".to_owned(), json!(creator.extra));
        }
    }

    /// Keeps the spec, which is immutable.
    /// `approval` cannot change the certificate. `status` cannot change the approval conditions.
    fn prepare_update(&self, new: &mut Object, old: &Object, ctx: &Context<'_>) {
        status::restore_field(new, old, "spec");
        match ctx.subresource {
            "approval" => {
                keep_certificate(new, old);
                rules::complete_conditions(new, old, ctx.clock);
            }
            "status" => {
                rules::keep_approval(new, old);
                rules::complete_conditions(new, old, ctx.clock);
            }
            _ => {}
        }
    }

    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        rules::validate(object, ctx.names)
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        rules::validate_update(new, old, ctx.subresource)
    }
}

fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let duration = object.find("spec.expirationSeconds").and_then(Value::as_i64);
    vec![json!(duration.map_or_else(|| NONE.to_owned(), short_duration)), json!(state(object))]
}

fn state(object: &Object) -> String {
    let has_condition = |condition: &str| object.condition(condition).is_some();
    let mut state = if has_condition("Denied") {
        "Denied".to_owned()
    } else if has_condition("Approved") {
        "Approved".to_owned()
    } else {
        "Pending".to_owned()
    };
    if has_condition("Failed") {
        state.push_str(",Failed");
    }
    if !object.text("status.certificate").is_empty() {
        state.push_str(",Issued");
    }
    state
}

fn keep_certificate(new: &mut Object, old: &Object) {
    if let Some(status) = part(new, "status") {
        restore(status, "certificate", old.find("status.certificate"));
    }
}
