//! A policy rule, and whether it matches a request.
//!
//! # Contract
//!
//! [`PolicyRule::allows`] decides. [`PolicyRule::examine`] evaluates the same four conditions one by one, for
//! explanations. Requirements A-RBAC-43 to A-RBAC-52.

use apimachinery::attributes::Attributes;
use authproto::auth;

/// An immutable list of strings.
pub type StringList = Box<[Box<str>]>;

/// One rule of a role, with the fields of the API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PolicyRule {
    /// Verbs; `*` matches all.
    pub verbs: StringList,
    /// Full group names; `*` matches all, the empty name is the core group.
    pub api_groups: StringList,
    /// `resource`, `resource/subresource`, `*/subresource` or `*`.
    pub resources: StringList,
    /// Object names; empty matches all.
    pub resource_names: StringList,
    /// Paths; a trailing `*` matches every suffix.
    pub non_resource_urls: StringList,
}

impl AsRef<PolicyRule> for PolicyRule {
    fn as_ref(&self) -> &PolicyRule {
        self
    }
}

/// The result of [`PolicyRule::examine`]: which parts of a rule match a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleMatch {
    /// The rule lists the verb or `*`.
    pub verb: bool,
    /// The rule lists the API group or `*`; true for paths.
    pub group: bool,
    /// The rule lists the resource or the path, or matches it by `*`.
    pub target: bool,
    /// The rule lists the object name or has no `resourceNames`; true for paths.
    pub name: bool,
}

impl RuleMatch {
    /// Whether the rule allows the request.
    pub fn allows(self) -> bool {
        self.verb && self.group && self.target && self.name
    }
}

impl PolicyRule {
    /// The approximate size in memory, in bytes.
    pub fn memory(&self) -> usize {
        let PolicyRule { verbs, api_groups, resources, resource_names, non_resource_urls } = self;
        let lists = [verbs, api_groups, resources, resource_names, non_resource_urls];
        let words = lists.into_iter().flatten();
        size_of::<PolicyRule>() + words.map(|word| size_of::<Box<str>>() + word.len()).sum::<usize>()
    }

    /// Whether the rule allows the request.
    pub fn allows(&self, request: &Attributes) -> bool {
        if request.resource_request {
            self.allows_any_name(request) && self.names_match(&request.name)
        } else {
            contains_or_star(&self.verbs, &request.verb) && self.path_matches(&request.path)
        }
    }

    /// Whether the rule allows the resource request for some object name.
    pub fn allows_any_name(&self, request: &Attributes) -> bool {
        contains_or_star(&self.verbs, &request.verb)
            && contains_or_star(&self.api_groups, &request.group)
            && self.resource_matches(&request.resource, &request.subresource)
    }

    /// Evaluates each part of the rule, even after a mismatch.
    pub fn examine(&self, request: &Attributes) -> RuleMatch {
        let verb = contains_or_star(&self.verbs, &request.verb);
        if request.resource_request {
            RuleMatch {
                verb,
                group: contains_or_star(&self.api_groups, &request.group),
                target: self.resource_matches(&request.resource, &request.subresource),
                name: self.names_match(&request.name),
            }
        } else {
            RuleMatch { verb, group: true, target: self.path_matches(&request.path), name: true }
        }
    }

    fn resource_matches(&self, resource: &str, subresource: &str) -> bool {
        self.resources.iter().any(|entry| {
            if &**entry == "*" {
                return true;
            }
            if subresource.is_empty() {
                // The `resource` of an access review may be `pods/log`, without a `subresource`.
                return &**entry == resource;
            }
            let parent = entry.strip_suffix(subresource).and_then(|rest| rest.strip_suffix('/'));
            parent.is_some_and(|parent| parent == "*" || parent == resource)
        })
    }

    fn names_match(&self, name: &str) -> bool {
        self.resource_names.is_empty() || contains(&self.resource_names, name)
    }

    fn path_matches(&self, path: &str) -> bool {
        self.non_resource_urls.iter().any(|entry| path_covers(entry, path))
    }
}

/// Whether a granted path covers a path: both are equal, or the granted path ends with `*` and the path
/// begins with the text before this `*`.
/// In the escalation check `path` can end with `*` too.
pub fn path_covers(granted: &str, path: &str) -> bool {
    granted == path
        || granted.strip_suffix('*').is_some_and(|rest| path.starts_with(rest.trim_end_matches('*')))
}

/// Whether the word is in the list.
pub fn contains(list: &[Box<str>], word: &str) -> bool {
    list.iter().any(|entry| &**entry == word)
}

/// Whether the word or `*` is in the list.
pub fn contains_or_star(list: &[Box<str>], word: &str) -> bool {
    list.iter().any(|entry| &**entry == word || &**entry == "*")
}

/// Builds a list from string slices.
pub fn string_list<S: AsRef<str>>(list: &[S]) -> StringList {
    list.iter().map(|word| Box::from(word.as_ref())).collect()
}

fn to_strings(list: &[Box<str>]) -> Vec<String> {
    list.iter().map(|word| String::from(&**word)).collect()
}

impl From<&auth::PolicyRule> for PolicyRule {
    fn from(rule: &auth::PolicyRule) -> Self {
        PolicyRule {
            verbs: string_list(&rule.verbs),
            api_groups: string_list(&rule.api_groups),
            resources: string_list(&rule.resources),
            resource_names: string_list(&rule.resource_names),
            non_resource_urls: string_list(&rule.non_resource_urls),
        }
    }
}

impl From<&PolicyRule> for auth::PolicyRule {
    fn from(rule: &PolicyRule) -> Self {
        auth::PolicyRule {
            verbs: to_strings(&rule.verbs),
            api_groups: to_strings(&rule.api_groups),
            resources: to_strings(&rule.resources),
            resource_names: to_strings(&rule.resource_names),
            non_resource_urls: to_strings(&rule.non_resource_urls),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::tests::rule;

    fn ask(verb: &str, group: &str, resource: &str, name: &str) -> Attributes {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Attributes {
            verb: verb.into(),
            resource_request: true,
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            name: name.into(),
            ..Attributes::default()
        }
    }

    #[test]
    fn policy_rule_matches_verb_group_resource_and_name() {
        for (text, verb, group, resource, name, expected) in [
            ("get|-|pods", "get", "", "pods", "x", true),
            ("get|-|pods", "list", "", "pods", "", false),
            ("get|-|pods", "get", "apps", "pods", "x", false),
            ("get|-|pods", "get", "", "services", "x", false),
            ("*|-|pods", "frobnicate", "", "pods", "x", true),
            ("get|*|pods", "get", "metrics.example.com", "pods", "x", true),
            ("get|apps|*", "get", "apps", "deployments", "x", true),
            ("get|apps|*", "get", "", "pods", "x", false),
            ("get|-|*", "get", "", "pods/log", "x", true),
            // A rule on a resource does not match its subresources.
            ("get|-|pods", "get", "", "pods/log", "x", false),
            ("get|-|pods/log", "get", "", "pods/log", "x", true),
            ("get|-|pods/log", "get", "", "pods", "x", false),
            ("get|*|*/scale", "get", "apps", "deployments/scale", "x", true),
            ("get|*|*/scale", "get", "apps", "deployments", "x", false),
            ("get|*|*/scale", "get", "apps", "deployments/status", "x", false),
            ("get|apps|deployments/*", "get", "apps", "deployments/scale", "x", false),
            // `resourceNames` restrict a rule to the listed object names.
            ("get|-|pods|x", "get", "", "pods", "x", true),
            ("get|-|pods|x", "get", "", "pods", "y", false),
            ("create|-|pods|x", "create", "", "pods", "", false),
            ("deletecollection|-|pods|x", "deletecollection", "", "pods", "", false),
            ("list|-|pods|x", "list", "", "pods", "x", true),
            // Names are case-sensitive, and verbs without a request are granted too.
            ("GET|-|pods", "get", "", "pods", "x", false),
            ("get|-|Pods", "get", "", "pods", "x", false),
            ("proxy,redirect|-|pods", "redirect", "", "pods", "x", true),
            // A request may contain wildcards itself.
            ("get|-|pods", "*", "", "pods", "", false),
            ("*|*|*", "*", "*", "*", "", true),
            // An empty list of verbs, groups or resources matches nothing.
            ("|-|pods", "get", "", "pods", "x", false),
            ("get||pods", "get", "", "pods", "x", false),
            ("get|-|", "get", "", "pods", "x", false),
        ] {
            let (rule, ask) = (rule(text), ask(verb, group, resource, name));
            assert_eq!(rule.allows(&ask), expected, "{text}: {verb} {group} {resource} {name}");
            assert_eq!(
                rule.examine(&ask).allows(),
                expected,
                "examine {text}: {verb} {group} {resource} {name}"
            );
        }
    }

    #[test]
    fn non_resource_url_matches_exactly_or_by_trailing_star() {
        for (url, path, expected) in [
            ("/healthz", "/healthz", true),
            ("/healthz", "/healthz/ping", false),
            ("/healthz/*", "/healthz/ping", true),
            ("/healthz/*", "/healthz", false),
            ("/healthz*", "/healthz", true),
            ("*", "/metrics", true),
            ("/a/*/b", "/a/x/b", false),
            ("/a**", "/abc", true),
            ("/healthz/*", "/metrics", false),
        ] {
            let rule = PolicyRule {
                verbs: string_list(&["get"]),
                non_resource_urls: string_list(&[url]),
                ..PolicyRule::default()
            };
            let ask = Attributes { verb: "get".into(), path: path.into(), ..Attributes::default() };
            assert_eq!(rule.allows(&ask), expected, "{url} {path}");
            assert!(!rule.allows(&Attributes { verb: "post".into(), ..ask }), "{url} {path}: verb");
        }
    }

    #[test]
    fn path_rule_and_resource_rule_do_not_overlap() {
        let path = PolicyRule {
            verbs: string_list(&["*"]),
            non_resource_urls: string_list(&["*"]),
            ..PolicyRule::default()
        };
        assert!(!path.allows(&ask("get", "", "pods", "x")));
        let all = rule("*|*|*");
        assert!(!all.allows(&Attributes {
            verb: "get".into(),
            path: "/metrics".into(),
            ..Attributes::default()
        }));
    }
}
