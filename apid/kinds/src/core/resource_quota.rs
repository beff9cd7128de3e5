//! ResourceQuota: limits on the total resource usage of a namespace.

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::resource_quota_rules as rules;
use crate::table::cell::PathReader;
use crate::table::{AGE, NAME, age};
use crate::{Column, Context, Kind, MetadataChecks, Revalidation, Strategy, Subresource, Table};

pub(super) const KIND: Kind = Kind {
    group: "",
    kind: "ResourceQuota",
    resource: "resourcequotas",
    singular: "resourcequota",
    short_names: &["quota"],
    subresources: &[Subresource::status("ResourceQuota")],
    schema: "core/v1.ResourceQuota",
    metadata_checks: MetadataChecks::CHANGES,
    revalidation: Revalidation::MainResource,
    delete_returns_object: true,
    table: &TABLE,
    strategy: &ResourceQuota,
    ..Kind::NAMESPACED
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

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("Request", "Used and permitted amounts, except limits."),
        Column::text("Limit", "Used and permitted limits."),
        AGE,
    ],
    cells: |object: &Object, clock: &dyn Clock| {
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
        vec![json!(object.name()), usage_text(false), usage_text(true), age(object, clock)]
    },
};
