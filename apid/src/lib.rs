//! apid: the resource API. Objects, discovery, watches and storage over HTTP; every request identified and authorized by authd.
//!
//! # Contract
//!
//! The program is this library and a thin `main`. Imports go one way: `http` → `verbs` → `admission` → `kinds` →
//! {`schema`, `storage`} → `apimachinery`; `discovery` and `background` stand beside `verbs`. A verb takes an
//! [`auth::Authorized`], which only [`auth`] can make.

pub mod audit;
pub mod auth;
pub mod background;
pub mod certs;
pub mod config;
pub mod discovery;
pub mod http;
pub mod plane;
pub mod process;
pub mod spawn;
pub mod store;
pub mod verbs;
