//! Compiled schemas: what a body of a kind may hold, and the one form in which it is stored.
//!
//! # Contract
//!
//! [`Schema::of`] answers the schema of a built-in type by its name in the facts table (`core/v1.ConfigMap`), compiled
//! on first use and kept. [`Schema::conform`] type-checks a decoded body, drops what the schema does not know, and
//! brings the rest into the stored form of design section 6: which zeros are written and which disappear, whole-second
//! times, canonical quantities. It is the only place that decides those bytes.
//!
//! # Invariants
//!
//! INVARIANT (no kind by name): what a single kind demands is its strategy's; this crate knows only the table.
//! INVARIANT (conforming twice changes nothing).

use apimachinery::object::Object;

/// The schema of one type.
#[derive(Debug)]
pub struct Schema {}

/// What [`Schema::conform`] dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conformed {
    /// Paths of fields that the schema does not know, in document order: `spec.foo`, `spec.containers[0].bar`. Dropped.
    pub unknown: Vec<String>,
}

/// A value whose JSON type the schema does not allow. The body is refused with 400.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{path}: {found} where {expected} belongs")]
pub struct TypeError {
    /// The field.
    pub path: String,
    /// What stands there: `a number`.
    pub found: String,
    /// What the schema wants: `a map of strings`.
    pub expected: String,
}

impl Schema {
    /// The schema of a type of the table. None when the table has no such type.
    pub fn of(_type_name: &str) -> Option<&'static Schema> {
        None
    }

    /// Checks types, drops unknown fields, brings the body into stored form.
    ///
    /// # Errors
    ///
    /// The first value of a wrong type.
    pub fn conform(&self, _object: &mut Object) -> Result<Conformed, TypeError> {
        Ok(Conformed::default())
    }
}
