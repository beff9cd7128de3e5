//! The RBAC policy: roles and bindings indexed for fast decisions, and computations on rules.
//!
//! - `policy` stores roles and bindings and applies one change at a time; `index` and `filter` make decisions
//!   fast.
//! - `rule` matches one rule with a request; `visit` walks the rules of a user, and visitors decide, list and
//!   explain; `nearest` finds and describes the rules nearest to a denied request.
//! - `aggregation` keeps the effective rules of aggregated ClusterRoles; `selector` selects them by labels.
//! - `covers` checks whether granted rules cover requested rules (escalation check), and formats missing
//!   rules.
//! - `subjects` lists the subjects that are allowed a request.
//! - `suggestion` builds the smallest role and binding that allow a request.
//! - `reconcile` compares default policy with the stored objects.
//!
//! # Invariants
//!
//! INVARIANT (no clock, no wire, no lock): this module never waits, logs, or reads revisions; the mirror owns
//! the policy and guards its reads.
//! INVARIANT (cost): a decision reads only the user's RoleBindings in the namespace of the request and the
//! user's ClusterRoleBindings. A change of a binding updates only the index entries of its subjects. A
//! changed ClusterRole is compared with the selectors of all aggregated roles; recomputing one of these scans
//! the labels of all ClusterRoles.

pub mod aggregation;
pub mod covers;
mod filter;
mod index;
mod nearest;
mod policy;
pub mod reconcile;
pub mod rule;
pub mod selector;
mod subjects;
pub mod suggestion;
mod visit;

#[cfg(test)]
mod tests;

pub use nearest::{Explanation, MatchedRule};
pub use policy::{Binding, BindingSpec, Meta, Policy, RoleKind, RoleSpec, Subject, SubjectKind};
pub use rule::PolicyRule;
pub use subjects::AllowedSubject;
pub use visit::{BindingPath, RbacDecision, RulesLimit, UserRules};
