//! Starts the real programs and speaks to them.
//!
//! # Contract
//!
//! [`Plane::start`] answers when `/readyz` does. A plane that is dropped is killed, and with it its authd. Waiting is
//! level-triggered with a deadline: [`eventually`].

mod client;
mod plane;

pub use client::{Answer, Client, Session, WatchStream, tls};
pub use plane::{Options, Plane, TOKENS, program};

use std::future::Future;
use std::time::Duration;

/// How long anything may take before a test gives up.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// Asks again until the answer is `Some`.
///
/// # Panics
///
/// Not within [`DEADLINE`].
pub async fn eventually<T, F>(what: &str, mut ask: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let wait = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    match tokio::time::timeout(DEADLINE, wait).await {
        Ok(found) => found,
        Err(_) => panic!("not within {DEADLINE:?}: {what}"),
    }
}
