//! FlowSchema: assigns requests to a priority level.

use apimachinery::clock::Clock;
use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use super::flow_schema_rules as rules;
use crate::defaults::part;
use crate::table::cell::{NONE, PathReader};
use crate::table::{AGE, NAME, age};
use crate::validation::conditions;
use crate::{
    Column, Context, Generation, Kind, MetadataChecks, STANDARD_VERBS, StatusWrites, Storage, Strategy,
    Subresource, Table,
};

pub(super) const KIND: Kind = Kind {
    group: "flowcontrol.apiserver",
    versions: &["v1"],
    kind: "FlowSchema",
    resource: "flowschemas",
    singular: "flowschema",
    short_names: &[],
    categories: &[],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::status("FlowSchema")],
    schema: "flowcontrol/v1.FlowSchema",
    strategy: &FlowSchema,
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

    fn revalidates(&self, subresource: &str) -> bool {
        subresource.is_empty()
    }

    fn validate_update(&self, new: &Object, _old: &Object, ctx: &Context<'_>) -> FieldErrors {
        match ctx.subresource {
            "status" => conditions::status_with_unique_types(new),
            _ => FieldErrors::new(),
        }
    }

    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn generation(&self) -> Generation {
        Generation::Counted(&[])
    }

    fn status_writes(&self) -> StatusWrites {
        StatusWrites::StatusOnly
    }

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("PriorityLevel", "Priority level of matching requests."),
        Column::text("MatchingPrecedence", "Precedence: requests match the schema with the lowest number."),
        Column::text("DistinguisherMethod", "Property that distinguishes flows."),
        AGE,
        Column::text("MissingPL", "Whether the priority level does not exist."),
    ],
    cells: |object: &Object, clock: &dyn Clock| {
        let dangling = object.condition("Dangling");
        vec![
            json!(object.name()),
            json!(object.text("spec.priorityLevelConfiguration.name")),
            json!(object.integer("spec.matchingPrecedence")),
            json!(object.text_or("spec.distinguisherMethod.type", NONE)),
            age(object, clock),
            json!(dangling.map_or("?", |condition| condition.text("status"))),
        ]
    },
};
