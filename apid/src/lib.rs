//! The program apid: configuration, start and stop, authd as a child process, subcommands.
//!
//! # Contract
//!
//! authd authenticates and authorizes every request. The program is this library and a thin `main`. Requests are
//! the work of crate `httpapi`, background tasks of crate `controllers`; this crate constructs their states and
//! connects them.

pub mod audit_tail;
pub mod build_info;
mod caller_flags;
pub mod certs;

mod command_list;
pub mod commands;
pub mod config;
pub mod console;
pub mod env_test;
mod etcd_store;
pub mod migration_commands;
mod parent_death;
pub mod process;
mod server_source;
pub mod spawn;
pub mod store_commands;
mod stored_keys;
mod stored_values;
mod up;
