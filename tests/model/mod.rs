//! Model-based test of a real apid with concurrent clients over HTTP/1.1 and HTTP/2. All observations are
//! combined into one history, and checks verify it. The test kills servers, cuts the power, and damages
//! files. One test runs three servers on an etcd cluster and interrupts parts of it.
//!
//! `MODEL_SEED` repeats the choices of an earlier run (the order of events is that of the machine),
//! `MODEL_CHAPTER` only one of its chapters. `MODEL_SECONDS` is the duration of each test. `PROFILE_DIR`
//! is a directory with different builds of apid and authd, see `patches.rs`.

mod chapter;
mod check;
mod clients;
mod cluster;
mod collections;
mod connection;
mod damage;
mod history;
mod kill;
mod patches;
mod plan;
mod power;
mod reconstructed_history;
mod server;
mod session;
mod watchers;
