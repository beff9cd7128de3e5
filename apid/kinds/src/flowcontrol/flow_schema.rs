//! FlowSchema: assigns requests to a priority level.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::flow_schema_rules as rules;
use crate::defaults::part;
use crate::table::cell::{NONE, PathReader};
use crate::table::{AGE, NAME, Source};
use crate::validation::conditions;
use crate::{
    BuiltInKind, Column, Context, Generation, MetadataChecks, Revalidation, StatusWrites, Strategy,
    Subresource, WriteRules,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    group: "flowcontrol.apiserver",
    subresources: &[Subresource::status("FlowSchema")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::ALL,
        generation: Generation::Counted(&[]),
        revalidation: Revalidation::MainResource,
        status_writes: StatusWrites::NoMetadata,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::text("PriorityLevel", "Priority level of matching requests.")
            .text_at("spec.priorityLevelConfiguration.name"),
        Column::text("MatchingPrecedence", "Precedence: requests match the schema with the lowest number.")
            .with_source(Source::Number("spec.matchingPrecedence")),
        Column::text("DistinguisherMethod", "Property that distinguishes flows.")
            .text_or("spec.distinguisherMethod.type", NONE),
        AGE,
        Column::text("MissingPL", "Whether the priority level does not exist."),
    ],
    cells: |object, _| {
        let dangling = object.condition("Dangling");
        vec![json!(dangling.map_or("?", |condition| condition.text("status")))]
    },
    strategy: &FlowSchema,
    ..BuiltInKind::cluster_scoped("flowcontrol/v1.FlowSchema", "flowschemas")
};

struct FlowSchema;

impl Strategy for FlowSchema {
    fn default(&self, object: &mut Object, _ctx: &Context<'_>) {
        if let Some(spec) = part(object, "spec") {
            let precedence = spec.get("matchingPrecedence").and_then(Value::as_i64).unwrap_or(0);
            if precedence == 0 {
                spec.insert("matchingPrecedence".to_owned(), json!(1000));
            }
        }
    }

    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        rules::validate(object)
    }

    fn validate_update(&self, new: &Object, _old: &Object, ctx: &Context<'_>) -> FieldErrors {
        match ctx.subresource {
            "status" => conditions::validate_condition_types(new),
            _ => FieldErrors::new(),
        }
    }
}
