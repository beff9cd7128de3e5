//! A real apid under concurrent clients, checked against a model: what many clients were told, over HTTP/1.1 and HTTP/2, is
//! put together to one history, and the history is judged. Servers are killed in the midst of it, the power is cut, files
//! are damaged.
//!
//! `MODEL_SEED` repeats the choices of an earlier run (the order in which things happen is the machine's), `MODEL_CHAPTER`
//! one chapter of it alone; `MODEL_SECONDS` says how long each test goes on. `MODEL_PROGRAMS` is a folder with another apid
//! and authd: `patches.rs` says what for.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "a test fails by panicking, and runs on the machine's time"
)]

mod chapter;
mod check;
mod chronicle;
mod clients;
mod collections;
mod connection;
mod damage;
mod history;
mod kill;
mod patches;
mod plan;
mod power;
mod server;
mod session;
mod watchers;
