//! The rows of `docs/metrics.csv` that the served metrics determine. Tests of both processes write their rows.
//!
//! # Contract
//!
//! A row has the fields family, type, stability, labels, state and note. [`renewed_table`] replaces type, stability
//! and labels by those of the served family. The states and notes are written by hand:
//!
//! | State | Families |
//! |---|---|
//! | `served`, `slis` | of kube-apiserver; apid serves them at `/metrics` or `/metrics/slis` |
//! | `authd` | of kube-apiserver; authd counts, and apid serves them |
//! | `own` | of apid only |
//! | `authd-own` | of authd only, at its own address |
//! | `absent` | of kube-apiserver, not served; the note says why |

use std::collections::{BTreeMap, BTreeSet};

use super::Definition;

/// A family in the text format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Family {
    /// Type, for example `counter`.
    pub kind: String,
    /// Stability class as in help texts.
    pub stability: String,
    /// Labels of all samples, without `le`.
    pub labels: BTreeSet<String>,
    /// Values of `le`, in their order.
    pub bounds: Vec<String>,
}

/// Returns the families of a text in the Prometheus format, by name.
pub fn families(text: &str) -> BTreeMap<String, Family> {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = "";
    for line in text.lines() {
        let head = |prefix| line.strip_prefix(prefix).and_then(|rest: &str| rest.split_once(' '));
        if let Some((name, help)) = head("# HELP ") {
            let stability = help.split(']').next().unwrap_or_default().trim_start_matches('[');
            stability.clone_into(&mut families.entry(name.to_owned()).or_default().stability);
        } else if let Some((name, kind)) = head("# TYPE ") {
            kind.clone_into(&mut families.entry(name.to_owned()).or_default().kind);
            current = name;
        } else if let Some((labels, _)) = line.split_once('{').and_then(|(_, rest)| rest.rsplit_once('}')) {
            let family = families.entry(current.to_owned()).or_default();
            for (name, value) in labels.split("\",").filter_map(|label| label.split_once("=\"")) {
                let value = value.trim_end_matches('"').to_owned();
                if name != "le" {
                    family.labels.insert(name.to_owned());
                } else if !family.bounds.contains(&value) {
                    family.bounds.push(value);
                }
            }
        }
    }
    families
}

/// Returns the table with renewed rows of the served families, in rows with one of the given states. A declared
/// family without a row gets one with the first state, and with the help text as the note.
pub fn renewed_table(
    table: &str,
    served: &BTreeMap<String, Family>,
    declared: &[Definition],
    states: &[&str],
) -> String {
    let mut known = BTreeSet::new();
    let mut lines = Vec::new();
    let row = |name: &str, state: &str, note: &str| {
        let Family { kind, stability, labels, .. } = served.get(name)?;
        let labels = labels.iter().map(String::as_str).collect::<Vec<_>>().join("|");
        Some([name, kind, stability, &labels, state, note].join(","))
    };
    for line in table.lines() {
        let mut fields = line.split(',');
        let name = fields.next().unwrap_or_default();
        known.insert(name);
        let renewed = match (fields.nth(3), fields.next()) {
            (Some(state), Some(note)) if states.contains(&state) => row(name, state, note),
            _ => None,
        };
        lines.push(renewed.unwrap_or_else(|| line.to_owned()));
    }
    let state = states.first().copied().unwrap_or_default();
    for family in declared.iter().filter(|family| !known.contains(family.name)) {
        let note = family.help.replace(',', ";");
        let without_sample = || format!("{},,{},,{state},{note}", family.name, family.stability.as_str());
        lines.push(row(family.name, state, &note).unwrap_or_else(without_sample));
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::super::{Metrics, Stability};
    use super::*;

    #[test]
    fn rows_follow_served_families() {
        let metrics = Metrics::new();
        let requests = Definition::new("requests_total", Stability::Stable, "Requests");
        let seconds = Definition::new("seconds", Stability::Alpha, "Time, in seconds");
        let by_verb = metrics.counter::<[(&'static str, &'static str); 2]>(&requests);
        by_verb.get_or_create(&[("verb", "get"), ("code", "200")]).inc();
        metrics.single_histogram(&seconds, &[0.5]).observe(1.0);
        let served = families(&metrics.text());
        assert_eq!(served["seconds"].bounds, ["0.5", "+Inf"]);
        let table = "family,type,stability,labels,state,note\nrequests_total,gauge,ALPHA,old,served,kept\n\
                     gone_total,counter,ALPHA,,absent,a reason\n";
        let renewed = renewed_table(table, &served, &metrics.declared(), &["own", "served"]);
        let expected = "family,type,stability,labels,state,note\nrequests_total,counter,STABLE,code|verb,served,kept\n\
                        gone_total,counter,ALPHA,,absent,a reason\nseconds,histogram,ALPHA,,own,Time; in seconds\n";
        assert_eq!(renewed, expected);
        assert_eq!(renewed_table(&renewed, &served, &metrics.declared(), &["own"]), renewed);
    }
}
