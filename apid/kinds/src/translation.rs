//! Translation between the names of stored objects and the names of the preset.
//!
//! # Contract
//!
//! A kind whose stored objects have other field names than requests and responses has a [`Translation`].
//! [`crate::Kind::conform_body`] applies it to bodies and [`crate::Kind::represent`] to responses. All
//! other code, and Protobuf, sees the stored names. A round trip through the served names changes nothing.

use apimachinery::names::Names;
use apimachinery::object::Object;

/// Translation of the objects of a kind.
pub trait Translation: Send + Sync {
    /// Renames the fields of a decoded body to their stored names.
    fn translate_request(&self, object: &mut Object, names: &Names);

    /// Renames the fields of a stored object to the names of the preset.
    fn translate_response(&self, object: &mut Object, names: &Names);

    /// Renames the fields in the paths of a message to the names of the preset.
    fn translate_message(&self, message: &str, names: &Names) -> String;
}
