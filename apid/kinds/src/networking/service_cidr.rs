//! ServiceCIDR: address ranges for services.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;
use serde_json::{Value, json};

use crate::same_fields::same_fields;
use crate::table::cell::{PathReader, join};
use crate::table::{AGE, NAME};
use crate::validation::{Field, internal, network};
use crate::{
    BuiltInKind, Column, Context, MetadataChecks, Revalidation, StatusWrites, Strategy, Subresource,
    WriteRules,
};

pub(super) const KIND: BuiltInKind = BuiltInKind {
    subresources: &[Subresource::status("ServiceCIDR")],
    rules: WriteRules {
        metadata_checks: MetadataChecks::CHANGES,
        // `validate_update` applies all rules: an update may only add a range of the other IP family.
        revalidation: Revalidation::Never,
        status_writes: StatusWrites::StatusOnly,
        ..WriteRules::BUILT_IN
    },
    columns: &[NAME, Column::text("CIDRs", "Address ranges."), AGE],
    cells: |object, _| vec![json!(join(object.items("spec.cidrs")))],
    strategy: &ServiceCidr,
    ..BuiltInKind::cluster_scoped("networking/v1.ServiceCIDR", "servicecidrs")
};

/// The kind in its beta version.
pub(super) const V1BETA1: BuiltInKind = same_fields(KIND, "networking/v1beta1.ServiceCIDR");

struct ServiceCidr;

impl Strategy for ServiceCidr {
    fn validate(&self, object: &Object, _ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        validate_ranges(&Field::new(object.find("spec.cidrs"), "spec.cidrs"), &mut errors);
        errors
    }

    fn validate_update(&self, new: &Object, old: &Object, ctx: &Context<'_>) -> FieldErrors {
        let mut errors = FieldErrors::new();
        if ctx.subresource == "status" {
            return errors;
        }
        let cidrs = Field::new(new.find("spec.cidrs"), "spec.cidrs");
        let old = old.items("spec.cidrs");
        match (old.len(), cidrs.list().len()) {
            (1, 2) => {
                check_unchanged(&cidrs, old, &mut errors);
                validate_ranges(&cidrs, &mut errors);
            }
            (before, after) if before == after => check_unchanged(&cidrs, old, &mut errors),
            _ => errors.push(cidrs.invalid("field is immutable")),
        }
        errors
    }
}

/// Maximum number of ranges: one for each IP family.
const RANGES_MAX: usize = 2;

fn validate_ranges(cidrs: &Field<'_, '_>, errors: &mut FieldErrors) {
    let count = cidrs.list().len();
    if count == 0 {
        errors.push(cidrs.required("at least one CIDR required"));
        return;
    }
    if count > RANGES_MAX {
        // The error in kube-apiserver shows the whole spec.
        let spec = json!({"cidrs": cidrs.value()});
        let spec = cidrs.with_value(Some(&spec));
        let detail = "may only hold up to 2 values";
        errors.push(internal::invalid_of_type(&spec, "networking/v1.ServiceCIDRSpec", detail));
        return;
    }
    for cidr in cidrs.items() {
        network::check_canonical_cidr(&cidr, errors);
    }
    let is_ipv4 =
        |cidr: Field<'_, '_>| network::parse_cidr(cidr.text()).map(|(address, _)| network::is_ipv4(address));
    let families: Vec<bool> = cidrs.items().filter_map(is_ipv4).collect();
    if let [first, second] = families.as_slice()
        && first == second
    {
        let detail =
            "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        errors.push(cidrs.invalid(detail));
    }
}

/// Reports each range that differs from the old range at the same index. The error shows the new range at
/// this index; kube-apiserver always shows the first range.
fn check_unchanged(cidrs: &Field<'_, '_>, old: &[Value], errors: &mut FieldErrors) {
    for (new, old) in cidrs.items().zip(old) {
        if new.value() != Some(old) {
            errors.push(new.invalid("field is immutable"));
        }
    }
}
