//! End-to-end tests with the real programs.
//!
//! Each test starts a separate control plane with a free port and a temporary data directory, and stops it by
//! its process id.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    unreachable_pub,
    reason = "a test fails by panicking, and runs on the machine's time"
)]

use tests::harness;

mod admission;
mod apply;
mod authentication;
mod authorization_config;
mod authz_matrix;
mod background;
mod clients;
mod curl;
mod default_policy;
mod deletion;
mod deploy;
mod exec_plugin;
mod fickle;
mod flag_reference;
mod fresh_policy;
mod fresh_watches;
mod garbage;
mod hostile;
mod kubectl;
mod many_bindings;
mod missing_authd;
mod modes;
mod naming;
mod nodes;
mod oidc;
mod openapi;
mod past_mistakes;
mod pod_security;
mod presets;
mod process;
mod questions;
mod rbac;
mod reading;
mod reviews;
mod start_objects;
mod storage;
mod surface;
mod tokens;
mod webhooks;
