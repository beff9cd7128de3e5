//! apid: the API server. It serves objects, discovery, watches and storage over HTTP.
//!
//! # Contract
//!
//! authd authenticates and authorizes every request. The program is this library and a thin `main`.
//! Dependencies go one way: `http` → `verbs` → `admission` → `kinds` → {`schema`, `storage`} →
//! `apimachinery`; `discovery` and `background` stand beside `verbs`. A verb takes an [`auth::Authorized`],
//! which only [`auth`] can construct.

pub mod addresses;
pub mod background;
pub mod build_info;
pub mod certs;
pub mod config;
pub mod console;
pub mod conversion;
pub mod env_test;
pub mod http;
pub mod migration_commands;
pub mod process;
pub mod reference;
mod server_source;
pub mod spawn;
pub mod store_commands;
pub mod verbs;
