//! Orders: objects that are not stored and whose creation changes another one.
//!
//! # Contract
//!
//! An order is a kind of [`crate::Storage::Order`] and the body of a subresource of the kind that it is about. Its name is
//! that of the object; uid and resourceVersion in its metadata are conditions on the object.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use crate::Context;

/// What an order says, and what it does.
pub trait Order: Send + Sync {
    /// What is wrong with the order itself.
    fn validate(&self, order: &Object) -> FieldErrors;

    /// Changes the object.
    ///
    /// # Errors
    ///
    /// Why the object is not in a state for it (409).
    fn carry_out(&self, order: &Object, object: &mut Object, ctx: &Context<'_>) -> Result<(), String>;
}
