//! Validation of slices: their pool, nodes, counters and devices.

use apimachinery::field::FieldErrors;

use super::rules;
use crate::format;
use crate::validation::{Field, number, text};

/// Maximum number of devices of a slice.
const DEVICES_MAX: usize = 128;
/// Maximum number of attributes and capacities of a device.
const ATTRIBUTES_MAX: usize = 32;

/// Validates the specification of a slice.
pub(super) fn validate(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    rules::validate_driver(&spec.child("driver"), errors);
    let pool = spec.child("pool");
    rules::validate_pool(&pool.child("name"), errors);
    let count = pool.child("resourceSliceCount");
    if count.integer().unwrap_or(0) <= 0 {
        errors.push(count.invalid_value(count.integer().unwrap_or(0), "must be greater than zero"));
    }
    number::check_not_negative(&pool.child("generation"), errors);
    validate_nodes(spec, errors);
    let devices = spec.child("devices");
    devices.check_limit(DEVICES_MAX, errors);
    rules::check_unique(&devices, "name", errors);
    devices.items().for_each(|item| validate_device(&item, errors));
    let counters = spec.child("sharedCounters");
    rules::check_unique(&counters, "name", errors);
    for set in counters.items() {
        text::require_format(&set.child("name"), format::label, errors);
        validate_counters(&set.child("counters"), errors);
    }
}

/// Validates the selection of nodes: exactly one of the fields.
fn validate_nodes(spec: &Field<'_, '_>, errors: &mut FieldErrors) {
    const FIELDS: &str = "`nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection`";
    let (name, selector) = (spec.child("nodeName"), spec.child("nodeSelector"));
    if name.is_present() && name.text().is_empty() {
        errors.push(name.invalid("must be either unset or set to a non-empty string"));
    } else if name.is_present() {
        text::check_format(&name, format::subdomain, errors);
    }
    let mut set_fields: Vec<&str> = Vec::new();
    if !name.text().is_empty() {
        set_fields.push("nodeName");
    }
    if selector.is_present() {
        set_fields.push("nodeSelector");
        let terms = selector.child("nodeSelectorTerms");
        if terms.list().len() != 1 {
            errors.push(terms.invalid("must have exactly one node selector term"));
        }
    }
    for flag in ["allNodes", "perDeviceNodeSelection"] {
        let field = spec.child(flag);
        match (field.is_present(), field.flag()) {
            (true, false) => errors.push(field.invalid("must be either unset or set to true")),
            (true, true) => set_fields.push(flag),
            (false, _) => {}
        }
    }
    match set_fields.as_slice() {
        [] => errors.push(spec.required(&format!("exactly one of {FIELDS} is required"))),
        [_] => {}
        _ => {
            let fields_text = format!("{{{}}}", set_fields.join(", "));
            let detail = format!("exactly one of {FIELDS} is required, but multiple fields are set");
            errors.push(spec.invalid_value(fields_text, &detail));
        }
    }
}

fn validate_device(device: &Field<'_, '_>, errors: &mut FieldErrors) {
    text::require_format(&device.child("name"), format::label, errors);
    let (attributes, capacity) = (device.child("attributes"), device.child("capacity"));
    for (key, attribute) in attributes.entries() {
        validate_qualified_name(&attributes, key, errors);
        let kinds = ["int", "bool", "string", "version"];
        let count = kinds.into_iter().filter(|kind| attribute.child(kind).is_present()).count();
        match count {
            1 => {}
            0 => errors.push(attribute.required("exactly one value must be specified")),
            _ => errors.push(attribute.invalid("exactly one value must be specified")),
        }
    }
    for (key, _) in capacity.entries() {
        validate_qualified_name(&capacity, key, errors);
    }
    if attributes.entries().count() + capacity.entries().count() > ATTRIBUTES_MAX {
        let detail =
            format!("the total number of attributes and capacities must not exceed {ATTRIBUTES_MAX}");
        errors.push(device.invalid(&detail));
    }
    let consumed = device.child("consumesCounters");
    rules::check_unique(&consumed, "counterSet", errors);
    for counters in consumed.items() {
        text::require_format(&counters.child("counterSet"), format::label, errors);
        validate_counters(&counters.child("counters"), errors);
    }
    device.child("taints").items().for_each(|taint| rules::validate_taint(&taint, errors));
}

fn validate_counters(counters: &Field<'_, '_>, errors: &mut FieldErrors) {
    if counters.entries().next().is_none() {
        errors.push(counters.required(""));
    }
    for (key, counter) in counters.entries() {
        text::check_name(&counter, key, format::label, errors);
    }
}

/// Validates a name with an optional domain.
fn validate_qualified_name(field: &Field<'_, '_>, name: &str, errors: &mut FieldErrors) {
    let (domain, name) = name.split_once('/').map_or((None, name), |(domain, name)| (Some(domain), name));
    for message in domain.map_or_else(Vec::new, format::subdomain) {
        errors.push(field.invalid_value(domain.unwrap_or_default(), &message));
    }
    rules::validate_identifier(field, name, errors);
}
