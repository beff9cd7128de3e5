//! Addresses of the names of backends.
//!
//! # Contract
//!
//! The resolver of the system runs on a thread of the runtime for blocking work. A name server that does not answer
//! keeps this thread for many seconds. [`lookup`] waits until one of [`MAX_LOOKUPS`] places is free.
//!
//! INVARIANT (bounded threads): a look-up keeps its place until the resolver returns, even if the caller gives up.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use tokio::sync::Semaphore;

/// Maximum number of look-ups of the process at the same time.
const MAX_LOOKUPS: usize = 32;

static FREE: Semaphore = Semaphore::const_new(MAX_LOOKUPS);

/// Returns the addresses of a name. The caller limits the time.
///
/// # Errors
///
/// The name has no address, or the resolver fails.
pub(crate) async fn lookup(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let host = host.to_owned();
    limited(&FREE, async move { Ok(tokio::net::lookup_host((host, port)).await?.collect()) }).await
}

/// Runs a look-up when fewer than [`MAX_LOOKUPS`] run. The look-up runs to its end even if the caller gives up.
async fn limited<T: Send + 'static>(
    free: &'static Semaphore,
    lookup: impl Future<Output = io::Result<T>> + Send + 'static,
) -> io::Result<T> {
    let place = free.acquire().await.map_err(io::Error::other)?;
    let running = tokio::spawn(async move {
        let _place = place;
        lookup.await
    });
    running.await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn look_up_keeps_its_place_after_the_caller_gave_up() {
        static ONE: Semaphore = Semaphore::const_new(1);
        const SHORT: Duration = Duration::from_millis(20);
        let (answer, slow) = oneshot::channel::<u8>();
        let slow = limited(&ONE, async move { slow.await.map_err(io::Error::other) });
        assert!(tokio::time::timeout(SHORT, slow).await.is_err());
        let next = || limited(&ONE, async { Ok(2) });
        assert!(tokio::time::timeout(SHORT, next()).await.is_err(), "the resolver still works");
        answer.send(1).unwrap();
        let found = tokio::time::timeout(Duration::from_secs(30), next()).await.unwrap();
        assert_eq!(found.unwrap(), 2);
    }
}
