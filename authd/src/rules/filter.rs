//! Bit filters (Bloom filters) of rules: a decision skips most rules without a string comparison.
//!
//! # Invariants
//!
//! INVARIANT (no false negative): if a rule allows a request, the filter of the rule admits the probe of the
//! request. A filter may admit a request that the rule does not allow; the rule itself decides.

use apimachinery::attributes::Attributes;

use super::rule::PolicyRule;

/// The filter of a rule, or the union of the filters of a role's rules: one bit for each hashed word.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Filter {
    verbs: u64,
    resources: u64,
    paths: u64,
}

/// The bits of one request; a filter admits the request if it has these bits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Probe {
    verb: u64,
    resource: u64,
    path: u64,
}

const ALL_BITS: u64 = u64::MAX;

impl Filter {
    /// A filter that admits everything.
    pub(super) const ADMITS_ALL: Filter = Filter { verbs: ALL_BITS, resources: ALL_BITS, paths: ALL_BITS };

    /// Returns the filter of one rule.
    pub(super) fn for_rule(rule: &PolicyRule) -> Self {
        let verbs = rule
            .verbs
            .iter()
            .fold(0, |bits, verb| bits | if &**verb == "*" { ALL_BITS } else { bit(bit_position(&[verb])) });
        let has_wildcard = |list: &[Box<str>]| list.iter().any(|item| item.starts_with('*'));
        let resources = if has_wildcard(&rule.api_groups) || has_wildcard(&rule.resources) {
            ALL_BITS
        } else {
            // The bit position of a pair is the XOR of the positions of group and resource. So the loops take
            // at most 64 by 64 steps for lists of any length.
            let groups = rule.api_groups.iter().fold(0, |bits, group| bits | bit(bit_position(&[group])));
            let resources =
                rule.resources.iter().fold(0, |bits, resource| bits | bit(bit_position(&[resource])));
            let mut pairs = 0;
            for group in (0..64).filter(|position| groups & bit(*position) != 0) {
                for resource in (0..64).filter(|position| resources & bit(*position) != 0) {
                    pairs |= bit(group ^ resource);
                }
            }
            pairs
        };
        let paths = rule.non_resource_urls.iter();
        let paths = paths.fold(0, |bits, path| {
            bits | if path.ends_with('*') { ALL_BITS } else { bit(bit_position(&[path])) }
        });
        Filter { verbs, resources, paths }
    }

    /// Returns the union of two filters.
    #[must_use]
    pub(super) fn union(self, other: Filter) -> Self {
        Filter {
            verbs: self.verbs | other.verbs,
            resources: self.resources | other.resources,
            paths: self.paths | other.paths,
        }
    }

    /// Whether a rule with this filter may allow the request; false: no such rule allows the request.
    pub(super) fn admits(self, probe: Probe) -> bool {
        self.verbs & probe.verb != 0 && (self.resources & probe.resource) | (self.paths & probe.path) != 0
    }
}

impl Probe {
    /// Returns the probe of one request.
    pub(super) fn for_request(request: &Attributes) -> Self {
        let verb = bit(bit_position(&[&request.verb]));
        if !request.resource_request {
            return Probe { verb, resource: 0, path: bit(bit_position(&[&request.path])) };
        }
        let resource = if request.subresource.is_empty() {
            bit_position(&[&request.resource])
        } else {
            bit_position(&[&request.resource, "/", &request.subresource])
        };
        Probe { verb, resource: bit(bit_position(&[&request.group]) ^ resource), path: 0 }
    }
}

fn bit(position: u32) -> u64 {
    1 << (position & 63)
}

/// Returns the FNV-1a hash of the concatenated parts, folded to six bits.
fn bit_position(parts: &[&str]) -> u32 {
    let mut hash: u32 = 0x811c_9dc5;
    for byte in parts.iter().flat_map(|part| part.bytes()) {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    (hash ^ (hash >> 6) ^ (hash >> 16)) & 63
}
