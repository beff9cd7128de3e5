//! Test harness that starts the real programs and sends requests.
//!
//! # Contract
//!
//! [`ControlPlane::start`] returns when `/readyz` is ok. Dropping a plane kills apid and its authd. Waiting is
//! level-triggered with a deadline: [`eventually`].

mod audit_log;
mod client;
mod cluster;
mod control_plane;
mod disturbance;
mod relay;

pub use audit_log::AuditLog;
pub use client::{Client, Session, TestResponse, WatchStream, request_body, tls};
pub use cluster::Cluster;
pub use control_plane::{ControlPlane, Options, TOKENS, build_folder, program, program_folder};
pub use disturbance::Disturbance;
pub use relay::Relay;

use std::future::Future;
use std::time::Duration;

/// Time limit of each wait in a test.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Polls until the result is `Some`.
///
/// # Panics
///
/// The result is not `Some` within [`DEADLINE`].
pub async fn eventually<T, F>(condition: &str, mut poll: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let wait = async {
        loop {
            if let Some(found) = poll().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    match tokio::time::timeout(DEADLINE, wait).await {
        Ok(found) => found,
        Err(_) => panic!("not within {DEADLINE:?}: {condition}"),
    }
}
