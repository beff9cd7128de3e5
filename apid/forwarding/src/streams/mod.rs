//! Streams of containers: exec, attach and port-forward between a client and a node.
//!
//! # Contract
//!
//! A client connects with SPDY/3.1 or WebSocket. [`ClientProtocol::of`] says what the server does with it:
//!
//! | Client | Subresource | Towards the node |
//! |---|---|---|
//! | SPDY/3.1 | all | the same bytes ([`crate::forward`]) |
//! | WebSocket with `v5.channel.DOMAIN` | exec, attach | SPDY/3.1 ([`translator`]) |
//! | WebSocket with `SPDY/3.1+NAME` | portforward | the SPDY bytes of the messages ([`tunnel`]) |
//! | WebSocket, other sub-protocols | all | the same bytes ([`crate::forward`]) |
//!
//! # Invariants
//!
//! INVARIANT (bounded): a session holds at most a read buffer for each direction and a few control frames. A peer that
//! reads no bytes holds back its peer; no direction waits for the other.
//! INVARIANT (whole output): at its end, a session sends all bytes of the node and a close frame, then waits for the
//! client to close. A close before could make the kernel discard bytes that the client has not read.

pub mod channel;
mod client_protocol;
mod outcome;
mod session;
pub mod translator;
pub mod tunnel;
pub mod websocket;

use http::header::HeaderName;

pub use client_protocol::ClientProtocol;
pub use outcome::Outcome;
pub use translator::{CommandStreams, translate};
pub use tunnel::tunnel;

/// The header with the versions of a protocol on SPDY streams, in requests and responses.
pub const STREAM_PROTOCOL_VERSION: HeaderName = HeaderName::from_static("x-stream-protocol-version");

/// Prefix of WebSocket sub-protocols whose messages are the bytes of a SPDY connection.
pub const TUNNEL_PREFIX: &str = "SPDY/3.1+";

#[cfg(test)]
mod tests;
