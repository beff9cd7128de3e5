//! Admission: what may change or refuse a write between decoding and storing. One file a plugin, one ordered table.
//!
//! # Contract
//!
//! A [`Chain`] is made once, from the flags, of the plugins of [`plugins::PLUGINS`]. For each write the verbs call
//! [`Chain::mutate`] before the object is validated and [`Chain::validate`] after; a deletion has no object, only an old
//! one, and passes both. The first refusal ends the chain: it is the client's answer.
//!
//! # Invariants
//!
//! INVARIANT (mutating before validating): no plugin changes an object that another one has validated.
//! INVARIANT (nothing waits for nothing): plugins answer at once unless they must wait ([`Eventual`]), so that a write
//! which concerns no plugin costs no allocation and no task switch.
//! INVARIANT (no storage): what plugins read of other objects they read through [`Reader`], which the process gives them.

mod attributes;
mod chain;
mod configuration;
mod eventual;
mod namespace_lifecycle;
mod plugin;
pub mod plugins;
mod pod_security;
mod reader;

pub use attributes::{Attributes, Notes, Operation};
pub use chain::{Chain, ConfigError};
pub use configuration::{Configuration, Fields, Given};
pub use eventual::Eventual;
pub use plugin::{Environment, Interest, Place, Plugin};
pub use reader::{Authorizer, Found, ObjectKind, Reader, Writer};

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
