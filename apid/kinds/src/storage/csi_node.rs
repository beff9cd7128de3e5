//! CSINode: the volume drivers on a node.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use crate::format;

use crate::table::cell::PathReader;
use crate::table::{AGE, NAME, Source};
use crate::validation::internal;
use crate::validation::{Field, number, text};
use crate::volume_sources::csi_driver_name;
use crate::{BuiltInKind, Column, Context, MetadataChecks, Strategy, WriteRules};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    rules: WriteRules {
        metadata_checks: MetadataChecks::ALL,
        unconditional_update: false,
        delete_returns_object: true,
        ..WriteRules::BUILT_IN
    },
    columns: &[
        NAME,
        Column::integer("Drivers", "Number of drivers.").with_source(Source::Length("spec.drivers")),
        AGE,
    ],
    strategy: &CsiNode,
    ..BuiltInKind::cluster_scoped("storage/v1.CSINode", "csinodes")
};

struct CsiNode;

impl Strategy for CsiNode {
    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        let mut names = BTreeSet::new();
        for driver in Field::new(object.find("spec.drivers"), "spec.drivers").items() {
            let name = driver.child("name");
            csi_driver_name(&name, &mut errors);
            validate_node_id(&driver.child("nodeID"), &mut errors);
            let allocatable = driver.child("allocatable");
            number::check_not_negative(&allocatable.child("count"), &mut errors);
            if !names.insert(name.text()) {
                errors.push(name.duplicate_value(name.text()));
            }
            validate_topology_keys(&driver, &mut errors);
        }
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        let drivers = Field::new(new.find("spec.drivers"), "spec.drivers");
        let mut by_name = BTreeMap::new();
        for driver in drivers.list() {
            by_name.entry(driver.text("name")).or_insert(driver);
        }
        for old in old.items("spec.drivers") {
            if let Some(new) = by_name.get(old.text("name")).copied()
                && new != old
            {
                let driver = drivers.with_value(Some(new));
                errors.push(internal::invalid_of_type(
                    &driver,
                    "storage/v1.CSINodeDriver",
                    "field is immutable",
                ));
            }
        }
        errors
    }
}

/// Maximum length, in bytes, of the ID of a node.
const NODE_ID_MAX: usize = 192;

fn validate_node_id(id: &Field<'_, '_>, errors: &mut FieldErrors) {
    if id.text().is_empty() {
        errors.push(id.required(""));
    }
    if id.text().len() > NODE_ID_MAX {
        errors.push(id.invalid(&format!("must be {NODE_ID_MAX} characters or less")));
    }
}

/// Validates the topology keys of a driver. As in kube-apiserver, their errors have the path of the driver.
fn validate_topology_keys(driver: &Field<'_, '_>, errors: &mut FieldErrors) {
    let mut seen = BTreeSet::new();
    for key in driver.child("topologyKeys").items() {
        let key = key.text();
        if key.is_empty() {
            errors.push(driver.required(""));
        }
        if !seen.insert(key) {
            errors.push(driver.duplicate_value(key));
        }
        text::check_name(driver, key, format::qualified_name, errors);
    }
}
