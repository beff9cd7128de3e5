//! Protobuf messages of the API's types (requirements D-PB): `read` makes the object tree of them, `write` the reverse.
//!
//! # Reference
//!
//! proto2 as the reference's generated code writes and reads it: repeated scalars singly (or packed, when read), maps as
//! repeated pairs, times, quantities and int-or-strings as messages of their own, raw values as their JSON. Fields are
//! written in the order of their numbers and maps in that of their keys, so that equal objects are equal bytes.

mod read;
#[cfg(test)]
mod tests;
mod write;

pub use read::ProtobufError;
pub(crate) use write::Plan;
pub use write::message as write_message;
