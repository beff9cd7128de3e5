//! Expressions of the data API: parsed, type-checked, metered and evaluated on JSON trees.
//!
//! # Contract
//! An [`Environment`] declares the variables of an API field; [`Environment::compile`] makes a [`Program`]
//! or a [`CompileError`] with the place of every mistake; [`Program::evaluate`] runs it on values that
//! borrow the data, and charges a [`Cost`] that ends it when the budget is used up. [`Program::estimate`] tells
//! the worst case before, from the [`Bounds`] of a schema; [`limits`] has the budgets of the data API.
//!
//! ```
//! use expressions::{Cost, Environment, Type, Value};
//!
//! let schema = Type::object("Widget", [("replicas".to_owned(), Type::Int), ("limit".to_owned(), Type::Int)]);
//! let rule = Environment::new().variable("self", schema.clone()).compile("self.replicas <= self.limit")?;
//! assert_eq!(rule.result_type(), &Type::Bool);
//!
//! let object = serde_json::json!({"replicas": 2, "limit": 3});
//! let mut cost = Cost::limit(1_000_000);
//! let outcome = rule.evaluate(&[("self", Value::of(&object, &schema)?)], &mut cost)?;
//! assert!(matches!(outcome, Value::Bool(true)));
//! assert_eq!(cost.used(), 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Invariants
//! - INVARIANT (bounded recursion): the guard bounds the height of every tree before it is parsed.
//! - INVARIANT (deterministic cost): cost depends on the expression and its values alone.
//! - INVARIANT (budget is final): nothing absorbs the end of the budget.
//!
//! # Reference
//! Messages and costs follow the reference server, except where the specification says otherwise: a list
//! literal costs 40 and a comparison never less than 1.

mod ast;
mod bounds;
mod check;
mod cost;
mod env;
mod error;
mod estimate;
mod eval;
mod guard;
mod library;
pub mod limits;
mod list;
mod map;
mod names;
mod numbers;
mod parse;
mod program;
mod schema_types;
mod time;
mod types;
mod value;
mod zones;

pub use bounds::{Bounds, Occurrences};
pub use cost::Cost;
pub use env::{Environment, Parsed};
pub use error::{CompileError, EvalError, Issue};
pub use estimate::Estimate;
pub use library::authorization::{
    AUTHORIZER, Answer, Authorizer, Question, RESOURCE_CHECK, authorizer, request_resource,
};
pub use library::functions;
pub use limits::{EstimateSum, excess};
pub use list::List;
pub use map::Map;
pub use names::escape;
pub use program::Program;
pub use schema_types::{Schema, SchemaType};
pub use time::Timestamp;
pub use types::{Field, ListKind, ListType, ObjectType, Type};
pub use value::{Opaque, Text, Value};
