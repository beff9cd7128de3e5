//! The nearest misses of a denied request: rules of the user that allow a similar request.
//!
//! # Contract
//!
//! A rule is a near miss if it matches the resource of the request and only the verb, the name, or both
//! differ. A rule that names the resource in other API groups, or another subresource of it, is a near miss
//! if its verb matches. A rule on paths is a near miss if only the verb differs. A wrong name is nearer than
//! a wrong verb, and one difference is nearer than two.
//! Near misses that are equally near keep the order in which the walk visits their rules.
//!
//! # Invariants
//!
//! INVARIANT (bounded explanation): an explanation describes at most [`MAX_NEAREST`] rules. The length of a
//! description does not depend on the size of the rule.

use apimachinery::attributes::Attributes;
use apimachinery::field::shorten;

use super::rule::{PolicyRule, contains, contains_or_star};

/// The maximum number of described near misses in an explanation.
const MAX_NEAREST: usize = 3;
/// The maximum number of entries of one list of a rule in a description; the number of others follows.
const MAX_WORDS: usize = 6;

/// The explanation of the opinion of an authorizer; empty for authorizers other than RBAC.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// The rule that allows the request, with its binding; None if the request is not allowed.
    pub grant: Option<MatchedRule>,
    /// The descriptions of the nearest misses of a denied request, nearest first.
    pub nearest: Vec<String>,
    /// The number of near misses without a description.
    pub more: usize,
}

/// The rule that allows a request, with the binding that applies it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatchedRule {
    /// Binding, role and subject, in the wording of Kubernetes.
    pub path: String,
    /// The rule that allows the request.
    pub rule: PolicyRule,
}

impl Explanation {
    /// Returns the descriptions of the nearest misses, and a line with the number of further near misses.
    pub fn nearest_lines(&self) -> Vec<String> {
        let more = (self.more > 0).then(|| format!("and {} more", self.more));
        self.nearest.iter().cloned().chain(more).collect()
    }
}

/// The difference between a rule and a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NearMiss {
    /// The rule allows the request for other names only.
    Name,
    /// The rule allows only other verbs on the resource.
    Verb,
    /// The rule names the resource in other API groups.
    Group,
    /// The rule names another subresource of the resource, or the resource without a subresource.
    Subresource,
    /// The rule allows other verbs on the path.
    PathVerb,
    /// The rule allows other verbs, and for other names only.
    VerbAndName,
}

impl NearMiss {
    /// Returns the difference between a rule and a request. Returns None if the rule is not a near miss.
    pub(super) fn between(rule: &PolicyRule, request: &Attributes) -> Option<Self> {
        let parts = rule.examine(request);
        let is_inert = rule.verbs.is_empty() || request.resource_request && rule.api_groups.is_empty();
        if parts.allows() || is_inert {
            return None;
        }
        if !request.resource_request {
            return parts.target.then_some(NearMiss::PathVerb);
        }
        match (parts.group, parts.target) {
            (true, true) => Some(match (parts.verb, parts.name) {
                (true, _) => NearMiss::Name,
                (false, true) => NearMiss::Verb,
                (false, false) => NearMiss::VerbAndName,
            }),
            (false, true) if parts.verb && names_resource(rule, request) => Some(NearMiss::Group),
            (true, false) if parts.verb && related_resource(rule, request).is_some() => {
                Some(NearMiss::Subresource)
            }
            _ => None,
        }
    }

    fn distance(self) -> u8 {
        match self {
            NearMiss::Name => 0,
            NearMiss::Verb | NearMiss::PathVerb | NearMiss::Group | NearMiss::Subresource => 1,
            NearMiss::VerbAndName => 2,
        }
    }

    /// Describes what the rule allows, and how the request differs.
    pub(super) fn describe(self, rule: &PolicyRule, request: &Attributes) -> String {
        let verb = quote_word(&request.verb);
        let resource = quote_word(&full_resource(request));
        match self {
            NearMiss::PathVerb => {
                format!(
                    "allows {} on path {}, not {verb}",
                    quote_words(&rule.verbs),
                    quote_word(&request.path)
                )
            }
            NearMiss::Verb => format!("allows {} on {resource}, not {verb}", quote_words(&rule.verbs)),
            NearMiss::VerbAndName => {
                let names = quote_words(&rule.resource_names);
                format!("allows {} on {resource} named {names}, not {verb}", quote_words(&rule.verbs))
            }
            NearMiss::Name => {
                let names = quote_words(&rule.resource_names);
                let other = match request.name.as_str() {
                    "" => "without a name".to_owned(),
                    name => quote_word(name),
                };
                format!("allows {verb} on {resource} named {names}, not {other}")
            }
            NearMiss::Group => {
                let (groups, group) = (quote_words(&rule.api_groups), quote_word(&request.group));
                let resource = quote_word(&resource_path(request));
                format!("allows {verb} on {resource} in API group {groups}, not {group}")
            }
            NearMiss::Subresource => {
                let related = quote_word(related_resource(rule, request).unwrap_or_default());
                format!("allows {verb} on {related}, not on {}", quote_word(&resource_path(request)))
            }
        }
    }
}

/// Collects near misses, each with data `P` of its rule: keeps the nearest ones and counts all.
#[derive(Debug)]
pub(super) struct NearestMisses<P> {
    nearest: Vec<(NearMiss, P)>,
    count: usize,
}

impl<P> Default for NearestMisses<P> {
    fn default() -> Self {
        NearestMisses { nearest: Vec::new(), count: 0 }
    }
}

impl<P> NearestMisses<P> {
    pub(super) fn add(&mut self, miss: NearMiss, path: P) {
        self.count += 1;
        self.nearest.push((miss, path));
        // The sort is stable, so of equal distances the earlier rule stays.
        self.nearest.sort_by_key(|(miss, _)| miss.distance());
        self.nearest.truncate(MAX_NEAREST);
    }

    /// Returns the nearest misses, and the number of further near misses.
    pub(super) fn finish(self) -> (Vec<(NearMiss, P)>, usize) {
        let more = self.count - self.nearest.len();
        (self.nearest, more)
    }
}

/// Whether the rule names the resource and does not only match it by `*`.
fn names_resource(rule: &PolicyRule, request: &Attributes) -> bool {
    contains(&rule.resources, &resource_path(request))
}

/// Returns the first entry in `resources` of the rule for the same resource, with any subresource or none.
fn related_resource<'r>(rule: &'r PolicyRule, request: &Attributes) -> Option<&'r str> {
    if !contains_or_star(&rule.api_groups, &request.group) {
        return None;
    }
    let entries = rule.resources.iter().map(|entry| &**entry);
    entries.into_iter().find(|entry| entry.split('/').next() == Some(request.resource.as_str()))
}

/// Returns `resource` or `resource/subresource`.
pub(super) fn resource_path(request: &Attributes) -> String {
    match request.subresource.as_str() {
        "" => request.resource.clone(),
        subresource => format!("{}/{subresource}", request.resource),
    }
}

/// Returns the resource with its API group and subresource, such as `deployments.apps/scale`.
fn full_resource(request: &Attributes) -> String {
    let Attributes { group, resource, subresource, .. } = request;
    let group = if group.is_empty() { String::new() } else { format!(".{group}") };
    let subresource = if subresource.is_empty() { String::new() } else { format!("/{subresource}") };
    format!("{resource}{group}{subresource}")
}

/// Formats a word in backticks, shortened and without control characters.
fn quote_word(text: &str) -> String {
    let shown: String = shorten(text).chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect();
    format!("`{shown}`")
}

/// Formats the first [`MAX_WORDS`] words of a list in backticks, and the number of further words.
fn quote_words(list: &[Box<str>]) -> String {
    let mut shown: Vec<String> = list.iter().take(MAX_WORDS).map(|text| quote_word(text)).collect();
    if list.len() > MAX_WORDS {
        shown.push(format!("{} more", list.len() - MAX_WORDS));
    }
    shown.join(", ")
}
