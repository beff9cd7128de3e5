//! Warnings about the scheduling of pods: deprecated labels of nodes, and absent selectors.

use apimachinery::names::Names;

use crate::validation::Field;

/// A label of nodes: a sub-domain, which may be empty, and a name.
type NodeLabel = (&'static str, &'static str);

/// Deprecated labels of nodes: the label, the release that deprecated it, and its replacement.
const DEPRECATED_LABELS: [(NodeLabel, &str, NodeLabel); 6] = [
    (("beta", "arch"), "deprecated since v1.14; ", ("", "arch")),
    (("beta", "os"), "deprecated since v1.14; ", ("", "os")),
    (("beta", "instance-type"), "deprecated since v1.17; ", ("node", "instance-type")),
    (("failure-domain.beta", "region"), "deprecated since v1.17; ", ("topology", "region")),
    (("failure-domain.beta", "zone"), "deprecated since v1.17; ", ("topology", "zone")),
    (("node-role", "master"), "", ("node-role", "control-plane")),
];

/// Lists of terms of pod affinities, with the field of the term.
const POD_TERMS: [(&str, &str); 2] = [
    ("requiredDuringSchedulingIgnoredDuringExecution", ""),
    ("preferredDuringSchedulingIgnoredDuringExecution", "podAffinityTerm"),
];

/// Text about a deprecated label of nodes.
fn deprecation(label: &str, names: &Names) -> Option<String> {
    let key = |(sub, name): (&str, &str)| {
        if sub.is_empty() { names.label_key(name) } else { names.label_sub_key(sub, name) }
    };
    let (_, since, replacement) =
        DEPRECATED_LABELS.iter().find(|(deprecated, ..)| key(*deprecated) == label)?;
    Some(format!("{since}use \"{}\" instead", key(*replacement)))
}

/// Reports deprecated labels of nodes.
pub(super) fn node_labels(spec: &Field<'_, '_>, names: &Names, warnings: &mut Vec<String>) {
    for (key, entry) in spec.child("nodeSelector").entries() {
        if let Some(text) = deprecation(key, names) {
            warnings.push(format!("{}: {text}", entry.path()));
        }
    }
    let affinity = spec.child("affinity");
    let node = affinity.child("nodeAffinity");
    let required = node.child("requiredDuringSchedulingIgnoredDuringExecution");
    node_terms(&required.child("nodeSelectorTerms"), names, warnings);
    for term in node.child("preferredDuringSchedulingIgnoredDuringExecution").items() {
        node_term(&term.child("preference"), names, warnings);
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

fn label(field: &Field<'_, '_>, names: &Names, warnings: &mut Vec<String>) {
    if let Some(text) = deprecation(field.text(), names) {
        let verb = if text.starts_with("use") { "" } else { "is " };
        warnings.push(format!("{}: {} {verb}{text}", field.path(), field.text()));
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
