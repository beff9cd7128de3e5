//! SPDY/3.1 framing, as nodes use it for the streams of exec, attach and port-forward.
//!
//! # Contract
//!
//! [`frame`] has the frames: a decoder that yields data frames in pieces, and encoders. [`headers`] has the compressed
//! name/value blocks of control frames. [`reader`] reads frames from a connection.
//!
//! Nodes and kubectl use a subset of the protocol. No side announces or counts windows: a receiver that reads no more
//! bytes holds back its peer through TCP. WINDOW_UPDATE and SETTINGS are therefore read and ignored.
//!
//! # Invariants
//!
//! INVARIANT (bounded): a control frame has at most [`frame::MAX_CONTROL_BYTES`], a piece of data at most the size of
//! the read buffer. Skipped frames occupy no memory.
//!
//! # Reference
//!
//! The SPDY protocol, draft 3.1.

pub mod frame;
pub mod headers;
pub mod reader;

#[cfg(test)]
mod tests;
