//! Custom kinds: rules of CustomResourceDefinitions and of the objects that they define.
//!
//! # Contract
//!
//! [`definition`] validates a CustomResourceDefinition (apiextensions v1). [`structural`] compiles the
//! `openAPIV3Schema` of one version into a [`structural::Schema`] and applies it to objects: pruning,
//! defaults, validation with ratcheting, and validation rules in CEL.
//!
//! # Invariants
//!
//! INVARIANT (no I/O): this crate knows neither the store nor HTTP.
//! INVARIANT (bounded work): the work for an object is bounded by its size, the size of its schema, and the
//! cost limits of its expressions.

pub mod definition;
mod path_names;
pub mod structural;
