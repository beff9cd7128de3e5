//! CEL expressions of the Kubernetes API: parser, type checker, cost limit and evaluation on JSON.
//!
//! # Contract
//! An [`Environment`] declares the variables of an API field. [`Environment::compile`] returns a [`Program`]
//! or a [`CompileError`] with the position of every error. [`Program::evaluate`] runs the program on values
//! that borrow the data. It charges a [`Cost`] and ends at its limit. [`Program::estimate`] returns the worst
//! case from the [`Bounds`] of a schema. [`limits`] defines the cost limits of the API.
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
//! - INVARIANT (bounded recursion): the guard limits the height of every syntax tree before parsing.
//! - INVARIANT (deterministic cost): the cost depends only on the expression and its values.
//! - INVARIANT (budget is final): no operator absorbs an exceeded cost limit.
//!
//! # Reference
//! Messages and costs follow kube-apiserver 1.33.

mod ast;
mod bounds;
mod check;
mod cost;
mod dialect;
mod env;
mod error;
mod estimate;
mod eval;
mod guard;
mod json;
mod library;
pub mod limits;
mod list;
mod map;
mod names;
mod numbers;
mod parse;
mod plan;
mod program;
mod quote;
mod schema_types;
mod time;
mod types;
mod value;
mod value_facts;
mod zones;

pub use bounds::{Bounds, Occurrences};
pub use cost::Cost;
pub use dialect::Dialect;
pub use env::{Environment, Parsed};
pub use error::{CompileError, EvalError, Issue};
pub use eval::LazyFields;
pub use library::authorization::{
    AUTHORIZER, AuthorizationCheck, AuthorizationResult, Authorizer, RESOURCE_CHECK, authorizer,
    request_resource,
};
pub use library::conversions::{double_text, general_text};
pub use library::matcher::{Pattern, Steps, TooManySteps};
pub use library::patterns::{PatternError, check as check_pattern, compiled as pattern};
pub use library::urls::{is_url, split_scheme};
pub use library::{FunctionRow, functions};
pub use limits::{EstimateSum, excess};
pub use list::List;
pub use map::Map;
pub use names::escape;
pub use program::Program;
pub use schema_types::{Schema, SchemaType};
pub use time::Timestamp;
pub use types::{Field, ListKind, ListType, ObjectType, Type};
pub use value::{Opaque, Text, Value};
pub use value_facts::Estimate;
