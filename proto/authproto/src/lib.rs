//! The protocol between apid and authd: generated code, and the conversions between its messages and the types
//! of `apimachinery` that both processes work with.
//!
//! # Contract
//!
//! - `Decide.Stream` carries what happens on every request; ids tie answers to questions, order does not matter.
//! - Every question carries the least policy revisions it may be decided at ([`auth::Revisions`]); an answer names
//!   the components it depended on ([`auth::Dependencies`]).
//! - The zero value of every verdict refuses.
//!
//! # Invariants
//!
//! INVARIANT (secrets stay secret): messages that carry tokens, keys or secret data print their shape only.

mod convert;
mod redact;

/// The generated messages, clients and servers of package `auth.v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated from the .proto files"
)]
pub mod auth {
    tonic::include_proto!("auth.v1");
}

/// The generated messages, clients and servers of package `grpc.health.v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated from the .proto files"
)]
pub mod health {
    tonic::include_proto!("grpc.health.v1");
}
