//! Node labels that a kubelet may set: labels outside the API domains, known node labels, and labels below
//! the kubelet prefixes.

use std::collections::BTreeSet;

use apimachinery::names::Names;
use apimachinery::object::Object;

/// Label rules under the names of a preset.
pub(super) struct LabelRules {
    /// API domains of labels, such as `kubernetes.io` and `k8s.io`.
    domains: [String; 2],
    /// Prefix of labels that only administrators may set.
    restricted: String,
    /// Prefixes of labels that kubelets may set.
    kubelet_prefixes: [String; 2],
    /// Full names of the known node labels.
    known: Vec<String>,
}

/// Known node labels: subdomain of the label domain (`""` for the domain itself), and name.
const KNOWN: [(&str, &str); 11] = [
    ("", "hostname"),
    ("", "os"),
    ("", "arch"),
    ("beta", "os"),
    ("beta", "arch"),
    ("beta", "instance-type"),
    ("node", "instance-type"),
    ("topology", "zone"),
    ("topology", "region"),
    ("failure-domain.beta", "zone"),
    ("failure-domain.beta", "region"),
];

/// Prefix of a label, without the slash.
fn prefix(label: &str) -> &str {
    label.split_once('/').map_or("", |(prefix, _)| prefix)
}

/// Whether a prefix equals a domain or is a subdomain of it.
fn is_in_domain(prefix: &str, domain: &str) -> bool {
    prefix.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

impl LabelRules {
    pub(super) fn new(names: &Names) -> Self {
        let domain = |key: String| prefix(&key).to_owned();
        let sub_domain = |sub: &str| domain(names.label_sub_key(sub, ""));
        LabelRules {
            domains: [domain(names.label_key("")), domain(names.group_key(""))],
            restricted: sub_domain("node-restriction"),
            kubelet_prefixes: [sub_domain("kubelet"), sub_domain("node")],
            known: KNOWN
                .iter()
                .map(|(sub, name)| match *sub {
                    "" => names.label_key(name),
                    sub => names.label_sub_key(sub, name),
                })
                .collect(),
        }
    }

    fn is_forbidden(&self, label: &str) -> bool {
        let prefix = prefix(label);
        let is_api_domain = self.domains.iter().any(|domain| is_in_domain(prefix, domain));
        let is_kubelet_label = self.known.iter().any(|known| known == label)
            || self.kubelet_prefixes.iter().any(|allowed| is_in_domain(prefix, allowed));
        is_in_domain(prefix, &self.restricted) || is_api_domain && !is_kubelet_label
    }

    /// The forbidden labels that a write adds, changes or removes, sorted.
    pub(super) fn forbidden<'o>(&self, new: &'o Object, old: Option<&'o Object>) -> BTreeSet<&'o str> {
        let labels = |object: Option<&'o Object>| object.into_iter().flat_map(|object| object.labels());
        let differs = |(label, value): &(&str, &str), other: Option<&Object>| {
            other.and_then(|other| other.label(label)) != Some(value)
        };
        let added = labels(Some(new)).filter(|label| differs(label, old));
        let removed = labels(old).filter(|label| differs(label, Some(new)));
        added.chain(removed).map(|(label, _)| label).filter(|label| self.is_forbidden(label)).collect()
    }
}
