//! Selection and evaluation of admission policies, common to validating and mutating policies.
//!
//! # Contract
//!
//! A [`PolicySource`] has the validating or the mutating policies, and their bindings. A policy applies to a
//! write if its constraints and those of a binding match. Each parameter of the binding leads to one
//! [`Invocation`]. A [`PolicyWrite`] evaluates the expressions of a policy for one write.
//!
//! # Invariants
//!
//! INVARIANT (fresh policy objects): the policies, bindings and parameters that were acknowledged before the
//! arrival of a write apply to it.
//! INVARIANT (fast path): a write costs one lookup and no task switch if no policy applies to its resource.
//! INVARIANT (no lock-out): no policy applies to writes of policies, bindings and webhook configurations, nor
//! to reviews.

mod denial;
mod expression_group;
mod expressions;
mod metrics;
mod parameters;
mod policies;
mod source;
mod variables;
mod write;

pub(crate) use denial::Denial;
pub(crate) use expression_group::{BudgetExceeded, ExpressionGroup};
pub(crate) use expressions::{CommonExpressions, PolicyExpressions, items};
pub(crate) use metrics::PolicyMetrics;
pub(crate) use parameters::Parameter;

pub(crate) use policies::{Binding, Policies, Policy};
pub(crate) use source::PolicySource;
pub(crate) use write::{
    ConfigurationError, FixedValues, Invocation, Invocations, PolicyWrite, ReadInvocation,
};
