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
mod admission_policies;
mod admission_webhooks;
mod apply;
mod authentication;
mod authorization_attributes;
mod authorization_bypass;
mod authorization_config;
mod authorization_modes;
mod authorization_verbs;
mod authz_matrix;
mod background;
mod backup;
mod bootstrap_objects;
mod certificates;
mod clients;
mod curl;
mod custom_kinds;
mod default_policy;
mod deletion;
mod deploy;
mod env_tests;
mod exec_plugin;
mod explanations;
mod faulty_webhook;
mod flag_reference;
mod fresh_policy;
mod fresh_watches;
mod garbage;
mod helm;
mod identical_denials;
mod kubectl;
mod list_history;
mod malformed_requests;
mod many_bindings;
mod migration;
mod monitoring;
mod mutating_policies;
mod nodes;
mod oidc;
mod openapi;
mod pod_security;
mod preset_parity;
mod process;
mod rbac;
mod reviews;
mod runtime_config;
mod server_behavior;
mod service_addresses;
mod storage;
mod stored_objects;
mod tokens;
mod unavailable_authd;
mod volume_protection;
mod webhooks;
