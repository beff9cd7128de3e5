//! Validation of storage classes.

use std::collections::{BTreeMap, BTreeSet};

use apimachinery::field::{ERRORS_MAX, FieldError, FieldErrors};
use apimachinery::names::Names;
use apimachinery::object::Object;

use crate::format;
use crate::pods::warnings::label_deprecation;
use crate::validation::{Field, text};

/// Maximum number of parameters.
const PARAMETERS_MAX: usize = 512;
/// Maximum total size, in bytes, of the keys and values of all parameters.
const PARAMETERS_SIZE_MAX: usize = 256 * 1024;

/// Values of a TopologySelectorTerm, by label key.
type Term<'v> = BTreeMap<&'v str, BTreeSet<&'v str>>;

/// Warnings about deprecated labels of nodes.
pub(super) fn warnings(class: &Object, names: &Names) -> Vec<String> {
    let mut warnings = Vec::new();
    for term in Field::new(class.get("allowedTopologies"), "allowedTopologies").items() {
        for expression in term.child("matchLabelExpressions").items() {
            let key = expression.child("key");
            if let Some(text) = label_deprecation(key.text(), names) {
                warnings.push(format!("{}: {text}", key.path()));
            }
        }
    }
    warnings
}

/// Validates a storage class.
pub(super) fn validate(object: &Object) -> FieldErrors {
    let mut errors = FieldErrors::new();
    validate_driver_name(&Field::new(object.get("provisioner"), "provisioner"), &mut errors);
    validate_parameters(&Field::new(object.get("parameters"), "parameters"), &mut errors);
    let policy = Field::new(object.get("reclaimPolicy"), "reclaimPolicy");
    if !policy.text().is_empty() {
        text::check_supported(&policy, &["Delete", "Retain"], &mut errors);
    }
    let mode = Field::new(object.get("volumeBindingMode"), "volumeBindingMode");
    text::require_present_and_supported(&mode, &["Immediate", "WaitForFirstConsumer"], &mut errors);
    validate_topologies(&Field::new(object.get("allowedTopologies"), "allowedTopologies"), &mut errors);
    errors
}

/// Validates the name of a provisioner or driver.
pub(super) fn validate_driver_name(driver: &Field<'_, '_>, errors: &mut FieldErrors) {
    if driver.text().is_empty() {
        errors.push(driver.required(""));
    } else {
        let name = driver.text().to_lowercase();
        text::check_name(driver, name.as_str(), format::qualified_name, errors);
    }
}

/// Validates the number and the size of parameters.
pub(super) fn validate_parameters(parameters: &Field<'_, '_>, errors: &mut FieldErrors) {
    let count = parameters.entries().count();
    if count > PARAMETERS_MAX {
        errors.push(FieldError::too_long(&parameters.path(), PARAMETERS_MAX));
        return;
    }
    let mut size = 0;
    for (key, value) in parameters.entries() {
        if key.is_empty() {
            errors.push(parameters.invalid_value(key, "field can not be empty."));
        }
        size += key.len() + value.text().len();
    }
    if size > PARAMETERS_SIZE_MAX {
        errors.push(FieldError::too_long(&parameters.path(), PARAMETERS_SIZE_MAX));
    }
}

fn validate_topologies(topologies: &Field<'_, '_>, errors: &mut FieldErrors) {
    // kube-apiserver begins with as many empty terms as the list has items, so each empty term is a
    // duplicate.
    let mut counts: BTreeMap<Term<'_>, usize> = BTreeMap::from([(Term::new(), topologies.list().len())]);
    for topology in topologies.items() {
        let expressions = topology.child("matchLabelExpressions");
        let term = validate_topology_term(&expressions, errors);
        let count = counts.entry(term).or_default();
        // If the list of errors is already full, it only counts further errors: one error is enough.
        let reported = if errors.is_full() { (*count).min(1) } else { (*count).min(ERRORS_MAX) };
        for _ in 0..reported {
            errors.push(expressions.duplicate_value(""));
        }
        *count += 1;
    }
}

fn validate_topology_term<'v>(expressions: &Field<'v, '_>, errors: &mut FieldErrors) -> Term<'v> {
    let mut term = Term::new();
    for expression in expressions.items() {
        let (key, values) = (expression.child("key"), expression.child("values"));
        values.require_items("", errors);
        let mut distinct = BTreeSet::new();
        for value in values.items() {
            if !distinct.insert(value.text()) {
                errors.push(value.duplicate_value(value.text()));
            }
        }
        text::check_format(&key, format::qualified_name, errors);
        if term.insert(key.text(), distinct).is_some() {
            errors.push(key.duplicate_value(key.text()));
        }
    }
    term
}
