//! Compiled schemas: the allowed content of a kind's body, and its single stored form.
//!
//! # Contract
//!
//! [`Schema::of`] returns the schema of a built-in type by its name in the type table (`core/v1.ConfigMap`),
//! compiled on first use and cached. [`Schema::conform`] type-checks a decoded body, drops unknown fields,
//! and converts the body to the stored form. The stored form defines which zeros are written and which are
//! omitted, and has times in whole seconds and canonical quantities.
//! [`Schema::validate_tags`] applies the validation tags of the types.
//! [`Schema::merge`] returns the merge type: which parts of an object merge and can have separate owners.
//!
//! # Invariants
//!
//! INVARIANT (no kind by name): rules of a single kind belong to its strategy; this crate knows only the
//! table.
//! INVARIANT (idempotent): conforming an object twice changes nothing more.
//!
//! # Reference
//!
//! `data/types.txt`, whose header describes the format. Field names are case-sensitive. The crate rejects the
//! same values as the decoder of kube-apiserver: a number for a string, a fraction or an overflow for an
//! integer. `null` means an absent field; as a map value or list item `null` is the zero of the type.

use apimachinery::object::Object;

mod conform;
mod declarative_validation;
mod error;
pub mod facts;
mod internal_form;
pub mod key_order;
pub mod merge;
mod protobuf;
mod scalar;
mod table;
mod time_error;
mod validation_tags;
mod value_path;

pub use apimachinery::quantity;
pub use error::TypeError;
pub use internal_form::InternalForm;
pub use protobuf::{ProtobufError, write_message};
pub use table::Schema;
pub use validation_tags::tags;

/// The result of [`Schema::conform`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConformReport {
    /// Paths of dropped unknown fields, in tree order: `spec.foo`, `spec.containers[0].bar`. At most 100.
    pub unknown: Vec<String>,
}

impl Schema {
    /// Checks types, drops unknown fields, and converts the body to the stored form.
    ///
    /// # Errors
    ///
    /// The first value of a wrong type.
    pub fn conform(&'static self, object: &mut Object) -> Result<ConformReport, TypeError> {
        conform::object(self, object)
    }
}
