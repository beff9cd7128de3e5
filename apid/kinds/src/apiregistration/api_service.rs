//! APIService: the server of one version of an API group.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::table::cell::PathReader;
use crate::table::{AGE, NAME, age};
use crate::{
    Column, Kind, MetadataChecks, NameRule, STANDARD_VERBS, StatusWrites, Storage, Strategy, Subresource,
    Table, UnenforcedKind, unenforced,
};

pub(super) const KIND: Kind = Kind {
    group: "apiregistration",
    versions: &["v1"],
    kind: "APIService",
    resource: "apiservices",
    singular: "apiservice",
    short_names: &[],
    categories: &["api-extensions"],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::status("APIService")],
    schema: "apiregistration/v1.APIService",
    strategy: &ApiService,
};

struct ApiService;

impl Strategy for ApiService {
    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn unconditional_update(&self) -> bool {
        false
    }

    fn unenforced(&self) -> Option<&'static UnenforcedKind> {
        Some(&unenforced::AGGREGATION)
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
        Column::text("Service", "The service that serves it."),
        Column::text("Available", "Whether it answers, and why not."),
        AGE,
    ],
    cells,
};

fn cells(object: &Object, clock: &dyn Clock) -> Vec<Value> {
    let service = object.find("spec.service").map_or_else(
        || "Local".to_owned(),
        |service| format!("{}/{}", service.text("namespace"), service.text("name")),
    );
    vec![json!(object.name()), json!(service), json!(available(object)), age(object, clock)]
}

fn available(object: &Object) -> String {
    match object.condition("Available") {
        None => "Unknown".to_owned(),
        Some(condition) if condition.text("status") == "True" => "True".to_owned(),
        Some(condition) => format!("{} ({})", condition.text("status"), condition.text("reason")),
    }
}
