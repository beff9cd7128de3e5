//! ResourceQuota: limits on the total resource usage of a namespace.

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::resource_quota_rules as rules;
use crate::table::cell::PathReader;
use crate::table::{AGE, NAME};
use crate::{BuiltInKind, Column, Context, MetadataChecks, Revalidation, Strategy, Subresource, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    short_names: &["quota"],
    subresources: &[Subresource::status("ResourceQuota")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        revalidation: Revalidation::MainResource,
        delete_returns_object: true,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::text("Request", "Used and permitted amounts, except limits."),
        Column::text("Limit", "Used and permitted limits."),
        AGE,
    ],
    cells,
    strategy: &ResourceQuota,
    ..BuiltInKind::namespaced("core/v1.ResourceQuota", "resourcequotas")
};

struct ResourceQuota;

impl Strategy for ResourceQuota {
    fn validate(&self, object: &Object, ctx: &Context<'_>) -> FieldErrors {
        rules::validate(object, ctx.names)
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        if ctx.subresource == "status" {
            rules::validate_status(new, ctx.names)
        } else {
            rules::validate_update(new, old)
        }
    }
}

fn cells(object: &Object, _clock: &dyn Clock) -> Vec<Value> {
    let hard = object.entries("status.hard");
    let used = object.find("status.used");
    let usage_text = |is_limit: bool| {
        let resources = hard.iter().filter(|(resource, _)| resource.starts_with("limits.") == is_limit);
        let texts = resources.map(|(resource, hard)| {
            let used = used.and_then(|used| used.get(resource)).and_then(Value::as_str).unwrap_or("0");
            format!("{resource}: {used}/{}", hard.as_str().unwrap_or("0"))
        });
        json!(texts.collect::<Vec<_>>().join(", "))
    };
    vec![usage_text(false), usage_text(true)]
}
