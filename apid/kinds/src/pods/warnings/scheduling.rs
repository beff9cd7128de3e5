//! Warnings about the scheduling of pods: deprecated labels of nodes, and absent selectors.

use apimachinery::names::Names;

use crate::format;
use crate::validation::Field;

/// A label of nodes: a sub-domain, which may be empty, and a name.
type NodeLabel = (&'static str, &'static str);

/// Replaced labels of nodes: the label, the release that deprecated it, and its replacement.
const REPLACED_LABELS: [(NodeLabel, &str, NodeLabel); 6] = [
    (("beta", "arch"), "deprecated since v1.14; ", ("", "arch")),
    (("beta", "os"), "deprecated since v1.14; ", ("", "os")),
    (("beta", "instance-type"), "deprecated since v1.17; ", ("node", "instance-type")),
    (("failure-domain.beta", "region"), "deprecated since v1.17; ", ("topology", "region")),
    (("failure-domain.beta", "zone"), "deprecated since v1.17; ", ("topology", "zone")),
    (("node-role", "master"), "", ("node-role", "control-plane")),
];

/// Deprecated labels of nodes without a replacement.
const REMOVED_LABELS: [(NodeLabel, &str); 2] = [
    (("app", "created-by"), "deprecated since v1.9"),
    (("scheduler.alpha", "preferAvoidPods"), "deprecated since v1.22; use Taints and Tolerations instead"),
];

/// Fields of a pod affinity that list terms, each with the field of an item that contains the term; `""` if
/// the item itself is the term.
const POD_TERMS: [(&str, &str); 2] = [
    ("requiredDuringSchedulingIgnoredDuringExecution", ""),
    ("preferredDuringSchedulingIgnoredDuringExecution", "podAffinityTerm"),
];

/// Text about a deprecated label of nodes; None if the label is not deprecated.
pub(crate) fn label_deprecation(label: &str, names: &Names) -> Option<String> {
    let key = |(sub, name): (&str, &str)| {
        if sub.is_empty() { names.label_key(name) } else { names.label_sub_key(sub, name) }
    };
    if let Some((_, text)) = REMOVED_LABELS.iter().find(|(removed, _)| key(*removed) == label) {
        return Some((*text).to_owned());
    }
    let (_, since, replacement) = REPLACED_LABELS.iter().find(|(replaced, ..)| key(*replaced) == label)?;
    Some(format!("{since}use \"{}\" instead", key(*replacement)))
}

/// Reports deprecated labels of nodes in a label selector.
pub(crate) fn selector_labels(selector: &Field<'_, '_>, names: &Names, warnings: &mut Vec<String>) {
    node_term(selector, names, warnings);
    let labels = selector.child("matchLabels");
    for key in labels.entries().map(|(key, _)| key) {
        if let Some(text) = label_deprecation(key, names) {
            // kube-apiserver appends the key as the name of a field.
            warnings.push(format!("{}: {text}", labels.child(key).path()));
        }
    }
}

/// Reports deprecated labels of nodes.
pub(super) fn node_labels(spec: &Field<'_, '_>, names: &Names, warnings: &mut Vec<String>) {
    for (key, entry) in spec.child("nodeSelector").entries() {
        if let Some(text) = label_deprecation(key, names) {
            warnings.push(format!("{}: {text}", entry.path()));
        }
    }
    let affinity = spec.child("affinity");
    let node = affinity.child("nodeAffinity");
    let required = node.child("requiredDuringSchedulingIgnoredDuringExecution");
    node_terms(&required.child("nodeSelectorTerms"), names, warnings);
    for term in node.child("preferredDuringSchedulingIgnoredDuringExecution").items() {
        let preference = term.child("preference");
        node_term(&preference, names, warnings);
        values(&preference, warnings);
    }
    for constraint in spec.child("topologySpreadConstraints").items() {
        label(&constraint.child("topologyKey"), names, warnings);
    }
}

/// Reports deprecated labels in the terms of a node selector.
pub(super) fn node_terms(terms: &Field<'_, '_>, names: &Names, warnings: &mut Vec<String>) {
    for term in terms.items() {
        node_term(&term, names, warnings);
    }
}

fn node_term(term: &Field<'_, '_>, names: &Names, warnings: &mut Vec<String>) {
    for expression in term.child("matchExpressions").items() {
        label(&expression.child("key"), names, warnings);
    }
}

/// Reports values of expressions that are not valid label values; validation accepts such values in preferred
/// terms.
fn values(term: &Field<'_, '_>, warnings: &mut Vec<String>) {
    for expression in term.child("matchExpressions").items() {
        for value in expression.child("values").items() {
            for message in format::label_value(value.text()) {
                warnings.push(format!("{}: {} is invalid, {message}", value.path(), value.text()));
            }
        }
    }
}

fn label(field: &Field<'_, '_>, names: &Names, warnings: &mut Vec<String>) {
    if let Some(text) = label_deprecation(field.text(), names) {
        warnings.push(format!("{}: {} is {text}", field.path(), field.text()));
    }
}

/// Reports terms without a label selector, which match no pod.
pub(super) fn null_selectors(spec: &Field<'_, '_>, warnings: &mut Vec<String>) {
    let affinity = spec.child("affinity");
    for kind in ["podAffinity", "podAntiAffinity"] {
        let affinity = affinity.child(kind);
        for (list, inner) in POD_TERMS {
            for term in affinity.child(list).items() {
                if inner.is_empty() {
                    null_selector(&term, warnings);
                } else {
                    null_selector(&term.child(inner), warnings);
                }
            }
        }
    }
    for constraint in spec.child("topologySpreadConstraints").items() {
        null_selector(&constraint, warnings);
    }
}

fn null_selector(term: &Field<'_, '_>, warnings: &mut Vec<String>) {
    let selector = term.child("labelSelector");
    if !selector.is_present() {
        warnings.push(format!("{}: a null labelSelector results in matching no pod", selector.path()));
    }
}
