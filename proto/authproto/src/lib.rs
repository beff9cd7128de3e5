//! Protocol between apid and authd: generated code, and conversions to the types of `apimachinery`.
//!
//! # Contract
//!
//! - `Decide.Stream` carries the requests for authentication and authorization. A response has the id of its
//!   request; responses come in any order.
//! - Every request carries the minimum policy revisions for the decision ([`auth::Revisions`]). A response
//!   names the components on which it depends ([`auth::Dependencies`]).
//! - The zero value of every verdict denies.
//! - The headers of every response name the process, its names and its protocol version ([`peer`]).
//!
//! # Invariants
//!
//! INVARIANT (secrets stay secret): the `Debug` output of a message contains no token, key or secret data.

mod convert;
pub mod peer;
mod redact;

/// Generated messages, clients and servers of package `auth.v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    reason = "generated from the .proto files"
)]
pub mod auth {
    include!("generated/auth.v1.rs");
}

/// Messages, client and server of package `grpc.health.v1`.
pub use tonic_health::pb as health;
