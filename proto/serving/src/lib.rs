//! Serving infrastructure of both processes.
//!
//! Listeners, TLS, certificates, HTTP server and client, logs, metrics, feature gates, health checks, flags and
//! file reloading. This crate contains no code for API kinds, users or policy. Each file covers one subject.

pub mod arguments;
pub mod backoff;
pub mod body;
pub mod build;
mod cancellations;
pub mod certs;
pub mod client;
pub mod client_config;
pub mod compatibility;
pub mod config_file;
mod connection_closer;
mod connection_limits;
pub mod controller_names;
pub mod exec;
mod fair_stream;
pub mod flags;
pub mod gates;
mod handshake_signatures;
pub mod health;
pub mod listener;
pub mod local;
pub mod log;
pub mod metrics;
pub mod mutual_tls;
mod plain_http;
pub mod reload;
mod request_head;
pub mod send_limit;
pub mod server;
pub mod service_manager;
pub mod single_task;
pub mod tls;
mod trust;
pub mod verified_stream;
pub mod waits;
