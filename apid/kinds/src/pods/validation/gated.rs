//! Changes of a pod with scheduling gates.
//!
//! # Reference
//!
//! An update may add requirements to the node selector and the node affinity of such a pod. As in
//! kube-apiserver, the validation of an update checks these two fields and restores their old values. It then
//! applies the rules for all pods to the result.

use apimachinery::field::FieldErrors;
use apimachinery::object::{Map, Value};

use crate::defaults::restore;
use crate::table::cell::PathReader as _;
use crate::validation::Field;

/// Validates the changes of the node selector and the node affinity, and restores the old values in `new`.
/// Both values are specs of pods.
pub(super) fn update(new: &mut Value, old: &Value, errors: &mut FieldErrors) {
    {
        let (new, old) = (Field::new(Some(&*new), "spec"), Field::new(Some(old), "spec"));
        node_selector(&new.child("nodeSelector"), &old.child("nodeSelector"), errors);
        let (affinity, old_affinity) = (new.child("affinity"), old.child("affinity"));
        node_affinity(&affinity.child("nodeAffinity"), &old_affinity.child("nodeAffinity"), errors);
    }
    let Value::Object(new) = new else { return };
    restore(new, "nodeSelector", old.get("nodeSelector"));
    let old_affinity = old.get("affinity").and_then(|affinity| affinity.get("nodeAffinity"));
    match new.get_mut("affinity").and_then(Value::as_object_mut) {
        Some(affinity) => {
            restore(affinity, "nodeAffinity", old_affinity);
            if affinity.is_empty() && old.get("affinity").is_none() {
                new.remove("affinity");
            }
        }
        None => {
            if let Some(old_affinity) = old_affinity {
                let affinity = Map::from_iter([("nodeAffinity".to_owned(), old_affinity.clone())]);
                new.insert("affinity".to_owned(), Value::Object(affinity));
            }
        }
    }
}

/// Validates that a node selector keeps all old labels.
fn node_selector(new: &Field<'_, '_>, old: &Field<'_, '_>, errors: &mut FieldErrors) {
    if old.entries().any(|(key, value)| new.child(key).value() != value.value()) {
        let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        errors.push(new.invalid(detail));
    }
}

/// Validates that required terms only become narrower. Absent terms may become any terms.
fn node_affinity(new: &Field<'_, '_>, old: &Field<'_, '_>, errors: &mut FieldErrors) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let (new, old) = (new.child(REQUIRED), old.child(REQUIRED));
    let (terms, old_terms) = (new.child("nodeSelectorTerms"), old.child("nodeSelectorTerms"));
    if old_terms.list().is_empty() {
        return;
    }
    if terms.list().len() != old_terms.list().len() {
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        errors.push(terms.invalid(detail));
        return;
    }
    for (term, old) in terms.items().zip(old_terms.list()) {
        if !term.value().is_some_and(|term| is_narrower(term, old)) {
            errors.push(term.invalid("only additions are allowed (no mutations or deletions)"));
        }
    }
}

/// Whether a new term only adds requirements to the old term: each list of the new term must begin with the
/// items of the old list. A term without requirements selects no node and must stay empty.
fn is_narrower(new: &Value, old: &Value) -> bool {
    const LISTS: [&str; 2] = ["matchExpressions", "matchFields"];
    let is_empty = |term: &Value| LISTS.iter().all(|list| term.items(list).is_empty());
    if is_empty(old) {
        return is_empty(new);
    }
    LISTS.iter().all(|list| new.items(list).starts_with(old.items(list)))
}
