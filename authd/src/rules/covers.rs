//! Compares granted with requested rules, and formats missing rules.
//! The escalation check of roles and bindings uses these functions (requirements A-RBAC-56 to A-RBAC-64).
//!
//! # Reference
//!
//! Kubernetes splits the requested rules into atoms (one group, one resource, one verb, one name) and
//! searches, for each atom, one granted rule that covers it. authd does not split a rule that one granted
//! rule covers. A rule that would exceed [`MAX_COMPARISONS`] counts as not covered, because a small body
//! could contain a billion atoms. A rule with which the missing atoms would exceed [`MAX_MISSING`] is
//! reported whole.

use std::collections::{BTreeMap, HashSet};

use super::rule::{PolicyRule, StringList, contains, contains_or_star, path_covers};

/// The maximum number of comparisons of atoms or words with granted rules in one check.
/// A requested rule that would exceed the limit counts as missing entirely.
pub const MAX_COMPARISONS: usize = 1_000_000;
/// The maximum number of missing atoms that one check reports; beyond it the check reports whole rules.
pub const MAX_MISSING: usize = 10_000;

/// Returns the atoms of `requested` that `granted` does not cover; empty if all are covered.
/// Beyond a limit the result contains whole rules.
pub fn missing_rules<R: AsRef<PolicyRule>>(granted: &[R], requested: &[PolicyRule]) -> Vec<PolicyRule> {
    let (mut missing, mut atoms) = (Vec::new(), 0);
    let mut budget = MAX_COMPARISONS;
    for rule in requested {
        let whole_rule_comparisons = granted.len().saturating_mul(word_count(rule));
        if whole_rule_comparisons <= budget && granted.iter().any(|grant| covers(grant.as_ref(), rule)) {
            budget -= whole_rule_comparisons;
            continue;
        }
        let comparisons =
            atom_count(rule).saturating_mul(granted.len() + 1).saturating_add(whole_rule_comparisons);
        if comparisons > budget {
            missing.push(rule.clone());
            continue;
        }
        budget -= comparisons;
        let start = missing.len();
        let missing_atoms =
            split_into_atoms(rule).filter(|atom| !granted.iter().any(|grant| covers(grant.as_ref(), atom)));
        missing.extend(missing_atoms.take(MAX_MISSING + 1 - atoms));
        atoms += missing.len() - start;
        if atoms > MAX_MISSING {
            atoms -= missing.len() - start;
            missing.truncate(start);
            missing.push(rule.clone());
        }
    }
    missing
}

/// Whether a granted rule covers a whole rule. False for a rule on both resources and paths: the caller
/// splits such a rule.
fn covers(grant: &PolicyRule, rule: &PolicyRule) -> bool {
    let verbs = contains(&grant.verbs, "*") || rule.verbs.iter().all(|verb| contains(&grant.verbs, verb));
    if !verbs || rule.verbs.is_empty() {
        return false;
    }
    match (rule.resources.is_empty() || rule.api_groups.is_empty(), rule.non_resource_urls.is_empty()) {
        (true, false) => {
            let is_granted = |path: &str| grant.non_resource_urls.iter().any(|url| path_covers(url, path));
            rule.non_resource_urls.iter().all(|path| is_granted(path))
        }
        (false, true) => {
            let groups = contains(&grant.api_groups, "*")
                || rule.api_groups.iter().all(|g| contains(&grant.api_groups, g));
            let resources = rule.resources.iter().all(|resource| covers_resource(&grant.resources, resource));
            let names = grant.resource_names.is_empty()
                || !rule.resource_names.is_empty()
                    && rule.resource_names.iter().all(|n| contains(&grant.resource_names, n));
            groups && resources && names
        }
        _ => false,
    }
}

fn covers_resource(granted: &[Box<str>], resource: &str) -> bool {
    contains_or_star(granted, resource)
        || resource.split_once('/').is_some_and(|(_, sub)| {
            granted.iter().any(|granted| granted.strip_prefix("*/").is_some_and(|granted| granted == sub))
        })
}

/// Returns the number of entries in all lists of a rule.
fn word_count(rule: &PolicyRule) -> usize {
    let PolicyRule { verbs, api_groups, resources, resource_names, non_resource_urls } = rule;
    [verbs, api_groups, resources, resource_names, non_resource_urls]
        .iter()
        .map(|string_list| string_list.len())
        .sum()
}

/// Returns the number of atoms of a rule.
fn atom_count(rule: &PolicyRule) -> usize {
    let names = rule.resource_names.len().max(1);
    let targets = rule.api_groups.len().saturating_mul(rule.resources.len()).saturating_mul(names);
    targets.saturating_add(rule.non_resource_urls.len()).saturating_mul(rule.verbs.len())
}

fn split_into_atoms(rule: &PolicyRule) -> impl Iterator<Item = PolicyRule> + '_ {
    let resources = rule.api_groups.iter().flat_map(move |group| {
        rule.resources.iter().flat_map(move |resource| {
            rule.verbs.iter().flat_map(move |verb| {
                let atom = move |names: StringList| PolicyRule {
                    verbs: single_item_list(verb),
                    api_groups: single_item_list(group),
                    resources: single_item_list(resource),
                    resource_names: names,
                    non_resource_urls: StringList::default(),
                };
                let without_name = rule.resource_names.is_empty().then(|| atom(StringList::default()));
                without_name
                    .into_iter()
                    .chain(rule.resource_names.iter().map(move |name| atom(single_item_list(name))))
            })
        })
    });
    let paths = rule.non_resource_urls.iter().flat_map(move |path| {
        let verbs = rule.verbs.iter();
        verbs.map(move |verb| PolicyRule {
            verbs: single_item_list(verb),
            non_resource_urls: single_item_list(path),
            ..PolicyRule::default()
        })
    });
    resources.chain(paths)
}

fn single_item_list(word: &str) -> StringList {
    Box::new([word.into()])
}

/// Group, resource and name of an atom.
type AtomTarget<'a> = (&'a str, &'a str, Option<&'a str>);

/// Joins atoms that differ only in the verb into one rule, as Kubernetes does for messages.
pub fn compact(rules: &[PolicyRule]) -> Vec<PolicyRule> {
    let mut compact = Vec::new();
    let mut simple: BTreeMap<AtomTarget<'_>, Vec<Box<str>>> = BTreeMap::new();
    let mut seen: HashSet<(AtomTarget<'_>, &str)> = HashSet::new();
    for rule in rules {
        let is_simple = rule.non_resource_urls.is_empty() && rule.resource_names.len() <= 1;
        match (is_simple, &*rule.api_groups, &*rule.resources) {
            (true, [group], [resource]) => {
                let name = rule.resource_names.first().map(|name| &**name);
                let target: AtomTarget<'_> = (group, resource, name);
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
        api_groups: single_item_list(group),
        resources: single_item_list(resource),
        resource_names: name.into_iter().map(Box::from).collect(),
        non_resource_urls: StringList::default(),
    }));
    compact
}

/// Formats a rule as Kubernetes does: `{APIGroups:[""], Resources:["pods"], Verbs:["get" "list"]}`.
pub fn format_rule(rule: &PolicyRule) -> String {
    let parts = [
        ("APIGroups", &rule.api_groups),
        ("Resources", &rule.resources),
        ("NonResourceURLs", &rule.non_resource_urls),
        ("ResourceNames", &rule.resource_names),
        ("Verbs", &rule.verbs),
    ];
    let formatted = parts.into_iter().filter(|(_, list)| !list.is_empty());
    let formatted: Vec<String> =
        formatted.map(|(name, list)| format!("{name}:{}", quote_list(list))).collect();
    format!("{{{}}}", formatted.join(", "))
}

/// Formats a list of strings as Go's `%q` does: `["a" "b"]`.
pub fn quote_list<S: AsRef<str>>(list: &[S]) -> String {
    let items: Vec<String> = list.iter().map(|item| apimachinery::field::quote(item.as_ref())).collect();
    format!("[{}]", items.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::tests::rule;

    #[test]
    fn missing_rules_are_formatted_as_in_kubernetes() {
        for (granted, requested, expected) in [
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
            // Granted rules that cover a requested rule only together.
            (vec!["get|-|pods", "list|-|pods"], vec!["get,list|-|pods"], ""),
            (
                vec!["get|-|pods", "get|apps|deployments"],
                vec!["get|-,apps|pods"],
                r#"{APIGroups:["apps"], Resources:["pods"], Verbs:["get"]}"#,
            ),
            // Granted names do not cover a rule without names; a rule without names covers all names.
            (
                vec!["get|-|pods|x"],
                vec!["get|-|pods"],
                r#"{APIGroups:[""], Resources:["pods"], Verbs:["get"]}"#,
            ),
            (vec!["get|-|pods|x,y"], vec!["get|-|pods|x"], ""),
            (vec!["get|-|pods"], vec!["get|-|pods|x,y"], ""),
            // Only a granted wildcard covers a wildcard.
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
            // A trailing `*` of a granted URL covers URLs with this prefix.
            (vec!["get||||/api/*"], vec!["get||||/api/v1"], ""),
            (vec!["get||||/api/*"], vec!["get||||/api/*"], ""),
            (vec!["get||||/api/*"], vec!["get||||/*"], r#"{NonResourceURLs:["/*"], Verbs:["get"]}"#),
            (vec![], vec!["get||||/metrics"], r#"{NonResourceURLs:["/metrics"], Verbs:["get"]}"#),
            (vec!["*|*|*"], vec!["get||||/metrics"], r#"{NonResourceURLs:["/metrics"], Verbs:["get"]}"#),
            // A rule that grants nothing needs no permissions.
            (vec![], vec!["|-|secrets", "get|-|", "get||secrets"], ""),
        ] {
            let granted_rules: Vec<PolicyRule> = granted.iter().map(|text| rule(text)).collect();
            let requested_rules: Vec<PolicyRule> = requested.iter().map(|text| rule(text)).collect();
            let missing = missing_rules(&granted_rules, &requested_rules);
            let mut formatted: Vec<String> = compact(&missing).iter().map(format_rule).collect();
            formatted.sort();
            assert_eq!(formatted.join("\n"), expected, "{granted:?} for {requested:?}");
        }
    }

    #[test]
    fn rule_with_billion_atoms_is_rejected_quickly() {
        let many: Vec<String> = (0..1000).map(|n| format!("x{n}")).collect();
        let huge = PolicyRule {
            verbs: super::super::rule::string_list(&many),
            api_groups: super::super::rule::string_list(&["", "a"]),
            resources: super::super::rule::string_list(&many),
            resource_names: super::super::rule::string_list(&many),
            non_resource_urls: StringList::default(),
        };
        assert_eq!(missing_rules::<PolicyRule>(&[], std::slice::from_ref(&huge)).len(), 1);
        assert_eq!(missing_rules(&[rule("*|*|*")], &[huge]).len(), 0, "a rule covered entirely is not split");
    }
    #[test]
    fn rule_with_many_missing_atoms_is_reported_whole() {
        let string_list = |count: usize| {
            let string_list: Vec<String> = (0..count).map(|n| format!("x{n}")).collect();
            super::super::rule::string_list(&string_list)
        };
        let requested = |verbs: usize, resources: usize| PolicyRule {
            verbs: string_list(verbs),
            api_groups: super::super::rule::string_list(&["apps"]),
            resources: string_list(resources),
            ..PolicyRule::default()
        };
        let missing_count = |requested: &[PolicyRule]| missing_rules(&[rule("get|-|pods")], requested).len();
        assert_eq!(missing_count(&[requested(100, 100)]), MAX_MISSING);
        assert_eq!(missing_count(&[requested(100, 100), requested(1, 7)]), MAX_MISSING + 1);
        assert_eq!(missing_count(&[requested(101, 100), requested(1, 7)]), 8);
        assert_eq!(missing_count(&[requested(100_000, 1)]), 1);
    }
}
