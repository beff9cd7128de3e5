//! CSIStorageCapacity: available storage capacity of a topology segment.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use apimachinery::quantity;

use crate::{format, labels, pods};

use crate::table::cell::UNSET;
use crate::table::{NAME, Source};
use crate::validation::{Field, text};
use crate::{BuiltInKind, Column, Context, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    rules: WriteRules { unconditional_update: false, ..WriteRules::BUILT_IN },
    columns: &[
        NAME,
        Column::text("StorageClassName", "Storage class.").text_at("storageClassName"),
        Column::text("Capacity", "Available capacity.").with_source(Source::TextOrNumber("capacity", UNSET)),
    ],
    strategy: &CsiStorageCapacity,
    ..BuiltInKind::namespaced("storage/v1.CSIStorageCapacity", "csistoragecapacities")
};

struct CsiStorageCapacity;

impl Strategy for CsiStorageCapacity {
    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        let class = Field::new(object.get("storageClassName"), "storageClassName");
        text::check_format(&class, format::subdomain, &mut errors);
        labels::validate_selector(&Field::new(object.get("nodeTopology"), "nodeTopology"), &mut errors);
        let amount = Field::new(object.get("capacity"), "capacity");
        if quantity::nanos(amount.text()).is_ok_and(|(nanos, _)| nanos < 0) {
            errors.push(amount.invalid("must be greater than or equal to 0"));
        }
        errors
    }

    fn warnings(&self, new: &Object, _old: Option<&Object>, ctx: &Context<'_>) -> Vec<String> {
        let mut warnings = Vec::new();
        let topology = Field::new(new.get("nodeTopology"), "nodeTopology");
        pods::warnings::selector_labels(&topology, ctx.names, &mut warnings);
        warnings
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        for name in ["nodeTopology", "storageClassName"] {
            let field = Field::new(new.get(name), name);
            if field.value() != Field::new(old.get(name), name).value() {
                errors.push(match name {
                    "nodeTopology" => labels::invalid_selector(&field, "field is immutable"),
                    _ => field.invalid("field is immutable"),
                });
            }
        }
        errors
    }
}
