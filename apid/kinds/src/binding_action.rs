//! Binding-like kinds: objects that are not stored and whose creation changes another object.
//!
//! # Contract
//!
//! A binding-like kind has [`crate::Storage::BindingLike`] and is the body of a subresource of its target kind. Its
//! name is the name of the target object. The uid and resourceVersion in its metadata are preconditions on
//! the target object.

use apimachinery::field::FieldErrors;
use apimachinery::object::Object;

use crate::Context;

/// Rules of a binding-like kind.
pub trait BindingAction: Send + Sync {
    /// Validates the binding-like object.
    fn validate(&self, binding: &Object) -> FieldErrors;

    /// Changes the target object.
    ///
    /// # Errors
    ///
    /// The reason why the state of the target does not allow the change (409).
    fn apply_to_target(&self, binding: &Object, object: &mut Object, ctx: &Context<'_>)
    -> Result<(), String>;
}
