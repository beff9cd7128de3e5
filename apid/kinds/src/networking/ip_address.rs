//! IPAddress: an allocated address and its owner. The object name is the address.

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::format;
use crate::same_fields::same_fields;
use crate::table::NAME;
use crate::table::cell::PathReader;
use crate::validation::internal;
use crate::validation::{Field, network, text};
use crate::{BuiltInKind, Column, Context, NameRule, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["ip"],
    rules: WriteRules { name_rule: NameRule::ByStrategy, ..WriteRules::BUILT_IN },
    columns: &[NAME, Column::text("ParentRef", "Object to which the address is allocated.")],
    cells,
    strategy: &IpAddress,
    ..BuiltInKind::cluster_scoped("networking/v1.IPAddress", "ipaddresses")
};

/// The kind in its beta version.
pub(super) const V1BETA1: BuiltInKind = same_fields(KIND, "networking/v1beta1.IPAddress");

struct IpAddress;

impl Strategy for IpAddress {
    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        let name = Value::from(object.name());
        if !object.name().is_empty() {
            network::check_canonical_ip(&Field::new(Some(&name), "metadata.name"), &mut errors);
        }
        let spec = Field::new(object.get("spec"), "spec");
        let parent = spec.child("parentRef");
        if !parent.is_present() {
            errors.push(parent.required(""));
            return errors;
        }
        text::check_nonempty_format(&parent.child("group"), format::subdomain, &mut errors);
        let segment = |text: &str| format::path_segment(text, false);
        text::require_format(&parent.child("resource"), segment, &mut errors);
        text::require_format(&parent.child("name"), segment, &mut errors);
        text::check_nonempty_format(&parent.child("namespace"), segment, &mut errors);
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        if new.find("spec.parentRef") != old.find("spec.parentRef") {
            let field = Field::new(new.find("spec.parentRef"), "spec.parentRef");
            errors.push(internal::invalid_of_field(
                &field,
                "networking/v1.IPAddressSpec",
                "parentRef",
                "field is immutable",
            ));
        }
        errors
    }
}

fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let parts = ["group", "resource", "namespace", "name"];
    let parts = parts.map(|part| object.text(&format!("spec.parentRef.{part}")).to_owned());
    let parent: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    vec![json!(parent.join("/"))]
}
