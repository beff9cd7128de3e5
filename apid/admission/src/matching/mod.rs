//! Matching of writes against the constraints of webhooks and policies.
//!
//! # Contract
//!
//! A [`Constraints`] value holds the rules, the match policy and the selectors of one webhook or policy, as
//! data. An index over many constraints returns the candidates for a resource in their order.
//! [`Constraints::matches`] decides whether constraints match a write, and in which version of the resource.
//!
//! # Invariants
//!
//! INVARIANT (rules before selectors): a selector is evaluated only after a rule matched. An unreadable
//! namespace fails only writes to which the rules apply.
//! INVARIANT (fast path): a write costs one lookup if no rule contains its resource.
//!
//! # Reference
//!
//! All rules are compared with the version of the request first. Then the rules are compared in order, each
//! with all other versions of the resource; the first match decides the version.

mod constraints;
mod index;
mod matcher;
mod rule;

pub(crate) use constraints::{Constraints, MatchPolicy};
pub(crate) use index::IndexedItems;
pub(crate) use matcher::{MatchedResource, WriteNamespace};
pub(crate) use rule::{Rule, RuleTarget};

#[cfg(test)]
mod tests;
