//! Compiled schemas: what a body of a kind may hold, and the one form in which it is stored.
//!
//! # Contract
//!
//! [`Schema::of`] answers the schema of a built-in type by its name in the facts table (`core/v1.ConfigMap`), compiled
//! on first use and kept. [`Schema::conform`] type-checks a decoded body, drops what the schema does not know, and
//! brings the rest into the stored form of design section 6: which zeros are written and which disappear, whole-second
//! times, canonical quantities. It is the only place that decides those bytes. [`Schema::merge`] says which parts of an
//! object merge and have owners of their own.
//!
//! # Invariants
//!
//! INVARIANT (no kind by name): what a single kind demands is its strategy's; this crate knows only the table.
//! INVARIANT (conforming twice changes nothing).
//!
//! # Reference
//!
//! `data/types.txt`, whose head describes it. Field names are case-sensitive. What a decoder of the reference refuses is
//! refused here: a number for a string, a fraction or an overflow for an integer. `null` stands for an absent field; in a
//! map it is the zero of the values.

use apimachinery::object::Object;

mod conform;
mod error;
pub mod facts;
pub mod merge;
mod protobuf;
pub mod quantity;
mod scalar;
mod table;

pub use error::TypeError;
pub use protobuf::{ProtobufError, write_message};
pub use table::Schema;

/// What [`Schema::conform`] dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conformed {
    /// Paths of fields that the schema does not know, in the order of the tree: `spec.foo`, `spec.containers[0].bar`.
    /// Dropped. The first hundred.
    pub unknown: Vec<String>,
}

impl Schema {
    /// Checks types, drops unknown fields, brings the body into stored form.
    ///
    /// # Errors
    ///
    /// The first value of a wrong type.
    pub fn conform(&'static self, object: &mut Object) -> Result<Conformed, TypeError> {
        conform::object(self, object)
    }
}
