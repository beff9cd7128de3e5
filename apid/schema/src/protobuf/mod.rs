//! Protobuf encoding of the API types (requirements D-PB): `read` decodes to the object tree, and `write`
//! encodes.
//!
//! # Reference
//!
//! The encoding is proto2, as the generated code of Kubernetes reads and writes it. Repeated scalars are
//! written one by one, and read one by one or packed. Maps are repeated pairs. Times, quantities and
//! int-or-strings are messages, and raw values are JSON. Fields are sorted by number and maps by key, so equal
//! objects have equal bytes.

mod plan;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use plan::Plan;
pub use read::ProtobufError;
pub use write::write_message;
