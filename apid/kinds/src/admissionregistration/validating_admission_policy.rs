//! ValidatingAdmissionPolicy: CEL expressions that written objects must satisfy.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::{PathReader, UNSET};
use crate::table::{AGE, NAME, age};
use crate::{
    Column, Generation, Kind, MetadataChecks, STANDARD_VERBS, StatusWrites, Storage, Strategy, Subresource,
    Table, UnenforcedKind, unenforced,
};

pub(super) const KIND: Kind = Kind {
    group: "admissionregistration",
    versions: &["v1"],
    kind: "ValidatingAdmissionPolicy",
    resource: "validatingadmissionpolicies",
    singular: "validatingadmissionpolicy",
    short_names: &[],
    categories: &["api-extensions"],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[Subresource::status("ValidatingAdmissionPolicy")],
    schema: "admissionregistration/v1.ValidatingAdmissionPolicy",
    strategy: &ValidatingAdmissionPolicy,
};

struct ValidatingAdmissionPolicy;

impl Strategy for ValidatingAdmissionPolicy {
    fn metadata_checks(&self) -> MetadataChecks {
        MetadataChecks::Changes
    }

    fn generation(&self) -> Generation {
        Generation::Counted(&[])
    }

    fn unconditional_update(&self) -> bool {
        false
    }

    fn unenforced(&self) -> Option<&'static UnenforcedKind> {
        Some(&unenforced::ADMISSION_POLICIES)
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
        Column::integer("Validations", "Number of its expressions."),
        Column::text("ParamKind", "The kind of its parameters."),
        AGE,
    ],
    cells: |object: &Object, clock: &dyn Clock| {
        let parameters = object.find("spec.paramKind").map_or_else(
            || UNSET.to_owned(),
            |kind| format!("{}/{}", kind.text("apiVersion"), kind.text("kind")),
        );
        let validations = object.items("spec.validations").len();
        vec![json!(object.name()), json!(validations), json!(parameters), age(object, clock)]
    },
};
