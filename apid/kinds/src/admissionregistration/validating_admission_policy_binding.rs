//! ValidatingAdmissionPolicyBinding: scope and actions of an admission policy.

use apimachinery::clock::Clock;
use apimachinery::object::Object;
use serde_json::json;

use crate::table::cell::{PathReader, UNSET, selector};
use crate::table::{AGE, NAME, age};
use crate::{
    Column, Generation, Kind, MetadataChecks, STANDARD_VERBS, Storage, Strategy, Table, UnenforcedKind,
    unenforced,
};

pub(super) const KIND: Kind = Kind {
    group: "admissionregistration",
    versions: &["v1"],
    kind: "ValidatingAdmissionPolicyBinding",
    resource: "validatingadmissionpolicybindings",
    singular: "validatingadmissionpolicybinding",
    short_names: &[],
    categories: &["api-extensions"],
    namespaced: false,
    storage: Storage::Stored,
    verbs: STANDARD_VERBS,
    subresources: &[],
    schema: "admissionregistration/v1.ValidatingAdmissionPolicyBinding",
    strategy: &ValidatingAdmissionPolicyBinding,
};

struct ValidatingAdmissionPolicyBinding;

impl Strategy for ValidatingAdmissionPolicyBinding {
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

    fn table(&self) -> Option<&'static Table> {
        Some(&TABLE)
    }
}

static TABLE: Table = Table {
    columns: &[
        NAME,
        Column::text("PolicyName", "The policy."),
        Column::text("ParamRef", "Its parameters."),
        AGE,
    ],
    cells: |object: &Object, clock: &dyn Clock| {
        let parameters = match (object.text("spec.paramRef.namespace"), object.text("spec.paramRef.name")) {
            (_, "") if object.find("spec.paramRef.selector").is_some() => {
                selector(object, "spec.paramRef.selector")
            }
            (_, "") => UNSET.to_owned(),
            ("", name) => name.to_owned(),
            (namespace, name) => format!("{namespace}/{name}"),
        };
        vec![
            json!(object.name()),
            json!(object.text("spec.policyName")),
            json!(parameters),
            age(object, clock),
        ]
    },
};
