//! Roles and bindings in a form that decides fast: the RBAC policy, its matcher and what is computed from it.
//!
//! - `policy` holds the roles and bindings and takes one change at a time; `index` and `filter` make it fast.
//! - `rule` says what one rule matches; `visit` walks the rules of a user; everything else is a visitor.
//! - `aggregation` keeps the effective rules of aggregated ClusterRoles.
//! - `covers` answers whether one set of rules holds another (escalation), `compact` prints rules.
//! - `reconcile` compares default policy with what is stored.
//!
//! # Invariants
//!
//! INVARIANT (no clock, no wire, no lock): nothing here waits, logs or knows of revisions; the mirror owns the policy
//! and decides who may read it when.
//! INVARIANT (cost): a decision looks only at bindings of the caller in the namespace asked for and in the cluster; a
//! change costs what it changes.

pub mod aggregation;
pub mod covers;
mod filter;
mod index;
mod policy;
pub mod reconcile;
pub mod rule;
mod visit;

#[cfg(test)]
mod tests;

pub use policy::{Binding, BindingSpec, Meta, Policy, RoleKind, RoleSpec, Subject, SubjectKind};
pub use rule::PolicyRule;
pub use visit::{Judgement, Refusal, Via};
