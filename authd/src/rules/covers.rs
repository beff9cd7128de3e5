//! Whether one set of rules covers another, and the compact form of missing rules.
//! The escalation check of roles and bindings uses both (requirements A-RBAC-56 to A-RBAC-64).
//!
//! # Reference
//!
//! Kubernetes splits the requested rules into atoms (one group, one resource, one verb, one name) and
//! searches one held rule that covers each. authd does not split a rule that one held rule covers entirely. A
//! check that needs more than [`MAX_COMPARISONS`] counts as not covered: a small body could contain a billion
//! atoms. A rule with more than [`MAX_LACKING`] missing atoms is reported whole.

use std::collections::{BTreeMap, HashSet};

use super::rule::{PolicyRule, Words, has, has_or_star, path_covers};

/// Limit of comparisons of an atom with a held rule per check.
/// Beyond it, a requested rule counts as missing entirely.
pub const MAX_COMPARISONS: usize = 1_000_000;
/// The maximum number of missing atoms that one check reports.
pub const MAX_LACKING: usize = 10_000;

/// Returns the atoms of `wanted` that `held` does not cover; empty if all are covered.
pub fn lacking<R: AsRef<PolicyRule>>(held: &[R], wanted: &[PolicyRule]) -> Vec<PolicyRule> {
    let (mut lacking, mut atoms) = (Vec::new(), 0);
    let mut budget = MAX_COMPARISONS;
    for rule in wanted {
        let whole = held.len().saturating_mul(size(rule));
        if whole <= budget && held.iter().any(|holder| covers(holder.as_ref(), rule)) {
            budget -= whole;
            continue;
        }
        let comparisons = count(rule).saturating_mul(held.len() + 1).saturating_add(whole);
        if comparisons > budget {
            lacking.push(rule.clone());
            continue;
        }
        budget -= comparisons;
        let start = lacking.len();
        let missing =
            split_into_atoms(rule).filter(|atom| !held.iter().any(|holder| covers(holder.as_ref(), atom)));
        lacking.extend(missing.take(MAX_LACKING + 1 - atoms));
        atoms += lacking.len() - start;
        if atoms > MAX_LACKING {
            atoms -= lacking.len() - start;
            lacking.truncate(start);
            lacking.push(rule.clone());
        }
    }
    lacking
}

/// Whether one rule covers another entirely: a resource rule or a path rule, not both.
fn covers(holder: &PolicyRule, rule: &PolicyRule) -> bool {
    let verbs = has(&holder.verbs, "*") || rule.verbs.iter().all(|verb| has(&holder.verbs, verb));
    if !verbs || rule.verbs.is_empty() {
        return false;
    }
    match (rule.resources.is_empty() || rule.api_groups.is_empty(), rule.non_resource_urls.is_empty()) {
        (true, false) => {
            let held = |path: &str| holder.non_resource_urls.iter().any(|held| path_covers(held, path));
            rule.non_resource_urls.iter().all(|path| held(path))
        }
        (false, true) => {
            let groups =
                has(&holder.api_groups, "*") || rule.api_groups.iter().all(|g| has(&holder.api_groups, g));
            let resources =
                rule.resources.iter().all(|resource| covers_resource(&holder.resources, resource));
            let names = holder.resource_names.is_empty()
                || !rule.resource_names.is_empty()
                    && rule.resource_names.iter().all(|n| has(&holder.resource_names, n));
            groups && resources && names
        }
        _ => false,
    }
}

fn covers_resource(held: &[Box<str>], resource: &str) -> bool {
    has_or_star(held, resource)
        || resource.split_once('/').is_some_and(|(_, sub)| {
            held.iter().any(|held| held.strip_prefix("*/").is_some_and(|held| held == sub))
        })
}

/// The number of words in a rule.
fn size(rule: &PolicyRule) -> usize {
    let PolicyRule { verbs, api_groups, resources, resource_names, non_resource_urls } = rule;
    [verbs, api_groups, resources, resource_names, non_resource_urls].iter().map(|words| words.len()).sum()
}

fn count(rule: &PolicyRule) -> usize {
    let names = rule.resource_names.len().max(1);
    let targets = rule.api_groups.len().saturating_mul(rule.resources.len()).saturating_mul(names);
    targets.saturating_add(rule.non_resource_urls.len()).saturating_mul(rule.verbs.len())
}

fn split_into_atoms(rule: &PolicyRule) -> impl Iterator<Item = PolicyRule> + '_ {
    let resources = rule.api_groups.iter().flat_map(move |group| {
        rule.resources.iter().flat_map(move |resource| {
            rule.verbs.iter().flat_map(move |verb| {
                let atom = move |names: Words| PolicyRule {
                    verbs: one(verb),
                    api_groups: one(group),
                    resources: one(resource),
                    resource_names: names,
                    non_resource_urls: Words::default(),
                };
                let nameless = rule.resource_names.is_empty().then(|| atom(Words::default()));
                nameless.into_iter().chain(rule.resource_names.iter().map(move |name| atom(one(name))))
            })
        })
    });
    let paths = rule.non_resource_urls.iter().flat_map(move |path| {
        let verbs = rule.verbs.iter();
        verbs.map(move |verb| PolicyRule {
            verbs: one(verb),
            non_resource_urls: one(path),
            ..PolicyRule::default()
        })
    });
    resources.chain(paths)
}

fn one(word: &str) -> Words {
    Box::new([word.into()])
}

/// Group, resource and name of an atom.
type Target<'a> = (&'a str, &'a str, Option<&'a str>);

/// Joins atoms that differ only in the verb, as Kubernetes does for display.
pub fn compact(rules: &[PolicyRule]) -> Vec<PolicyRule> {
    let mut compact = Vec::new();
    let mut simple: BTreeMap<Target<'_>, Vec<Box<str>>> = BTreeMap::new();
    let mut seen: HashSet<(Target<'_>, &str)> = HashSet::new();
    for rule in rules {
        let is_simple = rule.non_resource_urls.is_empty() && rule.resource_names.len() <= 1;
        match (is_simple, &*rule.api_groups, &*rule.resources) {
            (true, [group], [resource]) => {
                let name = rule.resource_names.first().map(|name| &**name);
                let target: Target<'_> = (group, resource, name);
                let verbs = simple.entry(target).or_default();
                for verb in &rule.verbs {
                    if seen.insert((target, verb)) {
                        verbs.push(verb.clone());
                    }
                }
            }
            _ => compact.push(rule.clone()),
        }
    }
    compact.extend(simple.into_iter().map(|((group, resource, name), verbs)| PolicyRule {
        verbs: verbs.into(),
        api_groups: one(group),
        resources: one(resource),
        resource_names: name.into_iter().map(Box::from).collect(),
        non_resource_urls: Words::default(),
    }));
    compact
}

/// Formats a rule as Kubernetes does: `{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}`.
pub fn show(rule: &PolicyRule) -> String {
    let parts = [
        ("APIGroups", &rule.api_groups),
        ("Resources", &rule.resources),
        ("NonResourceURLs", &rule.non_resource_urls),
        ("ResourceNames", &rule.resource_names),
        ("Verbs", &rule.verbs),
    ];
    let shown = parts.into_iter().filter(|(_, list)| !list.is_empty());
    let shown: Vec<String> = shown.map(|(name, list)| format!("{name}:{}", quoted(list))).collect();
    format!("{{{}}}", shown.join(", "))
}

/// Formats a list of strings as Go's `%q` does: `["a" "b"]`.
pub fn quoted<S: AsRef<str>>(list: &[S]) -> String {
    let items: Vec<String> = list.iter().map(|item| apimachinery::field::quote(item.as_ref())).collect();
    format!("[{}]", items.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::tests::rule;

    #[test]
    fn missing_rules_are_formatted_as_in_kubernetes() {
        for (held, wanted, want) in [
            (vec!["get|-|pods"], vec!["get|-|pods"], ""),
            (vec!["*|*|*"], vec!["get,list|-,apps|pods,deployments|x"], ""),
            (vec![], vec!["get|-|secrets"], r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get"]}"#),
            (
                vec!["list|-|secrets"],
                vec!["get,list,watch|-|secrets"],
                r#"{APIGroups:[""], Resources:["secrets"], Verbs:["get" "watch"]}"#,
            ),
            (
                vec!["get|-|pods"],
                vec!["get|-|secrets|x", "*|apps|deployments"],
                "{APIGroups:[\"\"], Resources:[\"secrets\"], ResourceNames:[\"x\"], Verbs:[\"get\"]}\n\
                 {APIGroups:[\"apps\"], Resources:[\"deployments\"], Verbs:[\"*\"]}",
            ),
            // Two held rules together cover a requested rule.
            (vec!["get|-|pods", "list|-|pods"], vec!["get,list|-|pods"], ""),
            (
                vec!["get|-|pods", "get|apps|deployments"],
                vec!["get|-,apps|pods"],
                r#"{APIGroups:["apps"], Resources:["pods"], Verbs:["get"]}"#,
            ),
            // Held names do not cover a rule without names; a rule without names covers all names.
            (
                vec!["get|-|pods|x"],
                vec!["get|-|pods"],
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["get"]}"#,
            ),
            (vec!["get|-|pods|x,y"], vec!["get|-|pods|x"], ""),
            (vec!["get|-|pods"], vec!["get|-|pods|x,y"], ""),
            // A wildcard must be held as a wildcard.
            (
                vec!["get,list|-|pods"],
                vec!["*|-|pods"],
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["*"]}"#,
            ),
            (vec!["get|-|*"], vec!["get|-|pods/log"], ""),
            (vec!["get|*|*/scale"], vec!["get|apps|deployments/scale"], ""),
            (
                vec!["get|*|*/scale"],
                vec!["get|apps|deployments"],
                r#"{APIGroups:["apps"], Resources:["deployments"], Verbs:["get"]}"#,
            ),
            // Non-resource URLs.
            (vec!["get||||/api/*"], vec!["get||||/api/v1"], ""),
            (vec!["get||||/api/*"], vec!["get||||/api/*"], ""),
            (vec!["get||||/api/*"], vec!["get||||/*"], r#"{NonResourceURLs:["/*"], Verbs:["get"]}"#),
            (vec![], vec!["get||||/metrics"], r#"{NonResourceURLs:["/metrics"], Verbs:["get"]}"#),
            (vec!["*|*|*"], vec!["get||||/metrics"], r#"{NonResourceURLs:["/metrics"], Verbs:["get"]}"#),
            // A rule that grants nothing needs no rights.
            (vec![], vec!["|-|secrets", "get|-|", "get||secrets"], ""),
        ] {
            let held_rules: Vec<PolicyRule> = held.iter().map(|text| rule(text)).collect();
            let wanted_rules: Vec<PolicyRule> = wanted.iter().map(|text| rule(text)).collect();
            let missing = lacking(&held_rules, &wanted_rules);
            let mut shown: Vec<String> = compact(&missing).iter().map(show).collect();
            shown.sort();
            assert_eq!(shown.join("\n"), want, "{held:?} for {wanted:?}");
        }
    }

    #[test]
    fn rule_with_billion_atoms_is_rejected_quickly() {
        let many: Vec<String> = (0..1000).map(|n| format!("x{n}")).collect();
        let huge = PolicyRule {
            verbs: super::super::rule::words(&many),
            api_groups: super::super::rule::words(&["", "a"]),
            resources: super::super::rule::words(&many),
            resource_names: super::super::rule::words(&many),
            non_resource_urls: Words::default(),
        };
        assert_eq!(lacking::<PolicyRule>(&[], std::slice::from_ref(&huge)).len(), 1);
        assert_eq!(lacking(&[rule("*|*|*")], &[huge]).len(), 0, "a rule covered entirely is not split");
    }
    #[test]
    fn rule_with_many_missing_atoms_is_reported_whole() {
        let words = |count: usize| {
            let words: Vec<String> = (0..count).map(|n| format!("x{n}")).collect();
            super::super::rule::words(&words)
        };
        let wanted = |verbs: usize, resources: usize| PolicyRule {
            verbs: words(verbs),
            api_groups: super::super::rule::words(&["apps"]),
            resources: words(resources),
            ..PolicyRule::default()
        };
        let lacks = |wanted: &[PolicyRule]| lacking(&[rule("get|-|pods")], wanted).len();
        assert_eq!(lacks(&[wanted(100, 100)]), MAX_LACKING);
        assert_eq!(lacks(&[wanted(100, 100), wanted(1, 7)]), MAX_LACKING + 1);
        assert_eq!(lacks(&[wanted(101, 100), wanted(1, 7)]), 8);
        assert_eq!(lacks(&[wanted(100_000, 1)]), 1);
    }
}
