//! Compares granted with requested rules, and formats missing rules.
//! The escalation check of roles and bindings uses these functions (requirements A-RBAC-56 to A-RBAC-64).
//!
//! # Reference
//!
//! Kubernetes splits the requested rules into atoms: one group, one resource, one verb, one name. For each
//! atom, it searches one granted rule that covers the atom. authd does not split a rule that one granted rule
//! covers, and compares a rule only with granted rules on the same resource or path. The check of a rule that
//! would exceed [`MAX_COMPARISONS`] is given up, because a small body could contain a billion atoms. A rule
//! with which the missing atoms would exceed [`MAX_MISSING`] is reported whole.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::rule::{PolicyRule, StringList, contains, contains_or_star, path_covers};

/// The maximum number of comparisons of words with granted rules in one check.
/// The check of a requested rule that would exceed the limit is given up.
pub const MAX_COMPARISONS: usize = 1_000_000;
/// The maximum number of missing atoms that one check reports; beyond it the check reports whole rules.
pub const MAX_MISSING: usize = 10_000;

/// The requested rules that granted rules do not cover.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingRules {
    /// The atoms that no granted rule covers; beyond [`MAX_MISSING`] whole rules.
    pub not_granted: Vec<PolicyRule>,
    /// The rules whose check was given up at [`MAX_COMPARISONS`].
    pub unchecked: Vec<PolicyRule>,
}

impl MissingRules {
    /// Whether granted rules cover all requested rules.
    pub fn is_empty(&self) -> bool {
        self.not_granted.is_empty() && self.unchecked.is_empty()
    }

    /// All rules that are not known to be covered.
    pub fn into_rules(self) -> Vec<PolicyRule> {
        [self.not_granted, self.unchecked].concat()
    }
}

/// Returns the atoms of `requested` that `granted` does not cover; empty if all are covered.
pub fn missing_rules<R: AsRef<PolicyRule>>(granted: &[R], requested: &[PolicyRule]) -> MissingRules {
    let grants = GrantIndex::new(granted);
    let mut missing = MissingRules::default();
    let (mut atoms, mut budget) = (0, MAX_COMPARISONS);
    for rule in requested {
        match grants.is_covered(rule, &mut budget) {
            Some(true) => continue,
            Some(false) if atom_count(rule) <= budget => {}
            Some(false) | None => {
                missing.unchecked.push(rule.clone());
                continue;
            }
        }
        let start = missing.not_granted.len();
        for atom in split_into_atoms(rule) {
            budget = budget.saturating_sub(1);
            match grants.is_covered(&atom, &mut budget) {
                Some(true) => {}
                Some(false) if missing.not_granted.len() - start <= MAX_MISSING - atoms => {
                    missing.not_granted.push(atom);
                }
                Some(false) => break,
                None => {
                    missing.not_granted.truncate(start);
                    missing.unchecked.push(rule.clone());
                    break;
                }
            }
        }
        let count = missing.not_granted.len() - start;
        if count > MAX_MISSING - atoms {
            missing.not_granted.truncate(start);
            missing.not_granted.push(rule.clone());
        } else {
            atoms += count;
        }
    }
    missing
}

/// Granted rules by resource and by path, so that a requested rule is compared with few of them.
struct GrantIndex<'g> {
    rules: HashSet<&'g PolicyRule>,
    by_resource: HashMap<&'g str, Vec<&'g PolicyRule>>,
    by_path: HashMap<&'g str, Vec<&'g PolicyRule>>,
    /// The rules with a path that ends with `*`.
    by_path_prefix: Vec<&'g PolicyRule>,
}

impl<'g> GrantIndex<'g> {
    fn new<R: AsRef<PolicyRule>>(granted: &'g [R]) -> Self {
        let mut index = GrantIndex {
            rules: HashSet::new(),
            by_resource: HashMap::new(),
            by_path: HashMap::new(),
            by_path_prefix: Vec::new(),
        };
        for rule in granted.iter().map(AsRef::as_ref) {
            if !index.rules.insert(rule) {
                continue;
            }
            for resource in &rule.resources {
                index.by_resource.entry(resource).or_default().push(rule);
            }
            for path in &rule.non_resource_urls {
                index.by_path.entry(path).or_default().push(rule);
            }
            if rule.non_resource_urls.iter().any(|path| path.ends_with('*')) {
                index.by_path_prefix.push(rule);
            }
        }
        index
    }

    /// Whether one granted rule covers a whole rule.
    ///
    /// A comparison costs one unit of `budget` for each word of the rule. Returns None when `budget` is too small.
    fn is_covered(&self, rule: &PolicyRule, budget: &mut usize) -> Option<bool> {
        let words = word_count(rule);
        if self.rules.contains(rule) {
            *budget = budget.checked_sub(words)?;
            return Some(true);
        }
        for grant in self.candidates(rule) {
            *budget = budget.checked_sub(words)?;
            if covers(grant, rule) {
                return Some(true);
            }
        }
        Some(false)
    }

    /// The granted rules that can cover a rule: those on the first resource or the first path of the rule.
    fn candidates(&self, rule: &PolicyRule) -> impl Iterator<Item = &'g PolicyRule> {
        let of_resource = |resource: &str| self.by_resource.get(resource).into_iter().flatten().copied();
        let resources = rule.resources.first().map(|resource| {
            let subresource = resource.split_once('/').map(|(_, subresource)| format!("*/{subresource}"));
            let of_subresources = subresource.filter(|pattern| **pattern != **resource);
            let all = (&**resource != "*").then(|| of_resource("*"));
            let of_subresources = of_subresources.map(|pattern| of_resource(&pattern));
            of_resource(resource)
                .chain(all.into_iter().flatten())
                .chain(of_subresources.into_iter().flatten())
        });
        let paths = rule.non_resource_urls.first().map(|path| {
            let exact = self.by_path.get(&**path).into_iter().flatten();
            exact.chain(&self.by_path_prefix).copied()
        });
        resources.into_iter().flatten().chain(paths.into_iter().flatten())
    }
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
            assert_eq!(missing.unchecked, [], "{granted:?} for {requested:?}");
            let mut formatted: Vec<String> = compact(&missing.not_granted).iter().map(format_rule).collect();
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
        let missing = missing_rules::<PolicyRule>(&[], std::slice::from_ref(&huge));
        assert_eq!((missing.not_granted.len(), missing.unchecked.len()), (0, 1), "the check is given up");
        assert!(missing_rules(&[rule("*|*|*")], &[huge]).is_empty(), "a rule covered entirely is not split");
    }

    #[test]
    fn rules_of_many_bindings_are_checked_completely() {
        let rules: Vec<PolicyRule> = (0..2000)
            .map(|n| rule(&format!("get,list,watch,update|apps,extensions|r{n},r{n}/status")))
            .collect();
        let granted: Vec<&PolicyRule> = rules.iter().cycle().take(7 * rules.len()).collect();
        assert_eq!(missing_rules(&granted, &rules), MissingRules::default());
        let narrower: Vec<PolicyRule> = (0..2000).map(|n| rule(&format!("get,list|apps|r{n}"))).collect();
        assert_eq!(missing_rules(&granted, &narrower), MissingRules::default());
        let names: Vec<PolicyRule> = (0..900).map(|n| rule(&format!("get|-|secrets|s{n}"))).collect();
        assert_eq!(missing_rules(&names, &names), MissingRules::default());
        assert_eq!(missing_rules(&granted, &[rule("delete|apps|r7")]).not_granted.len(), 1);
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
        let missing_count =
            |requested: &[PolicyRule]| missing_rules(&[rule("get|-|pods")], requested).not_granted.len();
        assert_eq!(missing_count(&[requested(100, 100)]), MAX_MISSING);
        assert_eq!(missing_count(&[requested(100, 100), requested(1, 7)]), MAX_MISSING + 1);
        assert_eq!(missing_count(&[requested(101, 100), requested(1, 7)]), 8);
        assert_eq!(missing_count(&[requested(100_000, 1)]), 1);
    }
}
