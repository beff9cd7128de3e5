//! Connection limits of a server: total, per peer address, and unfinished TLS handshakes.
//!
//! # Contract
//!
//! [`Connections`] counts open connections. The server closes a connection beyond the limit at once, before
//! it costs more than its socket. The limit leaves a quarter of the file descriptors for the files of the
//! process.
//!
//! [`Handshakes`] limits unfinished TLS handshakes. The accept loop waits while handshakes younger than
//! [`HANDSHAKE_GRACE`] occupy all slots; after that it cuts the oldest handshake. A burst of honest clients is
//! therefore served in order at the speed of the processor. A silent client occupies a slot for
//! [`HANDSHAKE_GRACE`], not until its timeout.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// Maximum number of unfinished TLS handshakes. Each takes about 17 KiB of memory, all of them 4 MiB.
pub(crate) const MAX_HANDSHAKES: usize = 256;

/// Time for which a handshake keeps its slot while other clients wait: several round trips of a distant
/// client.
pub(crate) const HANDSHAKE_GRACE: Duration = Duration::from_millis(500);

/// Returns the maximum number of open file descriptors of the process; None: no limit.
///
/// The soft limit is first raised to the hard limit, as the Go runtime does, because the soft limit is often
/// 1024.
pub(crate) fn raise_descriptor_limit() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::debug!(%error, "cannot raise the open file limit; keeping the current limit");
            limit.current
        }
    }
}

/// Limits the number of connections to three quarters of the descriptors; the rest is for files.
pub(crate) fn limit_connections(connections: usize, descriptors: Option<u64>) -> usize {
    let room = descriptors.map_or(usize::MAX, |all| usize::try_from(all - all / 4).unwrap_or(usize::MAX));
    connections.min(room)
}

/// Open connections of a server.
#[derive(Debug)]
pub(crate) struct Connections {
    max: usize,
    open: Mutex<OpenConnections>,
}

#[derive(Debug, Default)]
struct OpenConnections {
    all: usize,
    by_peer: HashMap<IpAddr, usize>,
}

impl Connections {
    /// Allows `max` connections in total and half as many per peer address, so that no address takes every
    /// slot.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Connections { max, open: Mutex::default() })
    }

    /// Takes a connection slot, which is free again when the value is dropped. None: one of the limits is
    /// reached.
    pub(crate) fn acquire(self: &Arc<Self>, peer: Option<IpAddr>) -> Option<ConnectionPermit> {
        let mut open = self.open.lock();
        if open.all >= self.max {
            return None;
        }
        if let Some(peer) = peer {
            let peer_count = open.by_peer.entry(peer).or_default();
            if *peer_count >= self.max.div_ceil(2) {
                return None;
            }
            *peer_count += 1;
        }
        open.all += 1;
        Some(ConnectionPermit { connections: Arc::clone(self), peer })
    }
}

/// Slot of an open connection.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    connections: Arc<Connections>,
    peer: Option<IpAddr>,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock();
        open.all -= 1;
        if let Some(peer) = self.peer
            && let Some(peer_count) = open.by_peer.get_mut(&peer)
        {
            *peer_count -= 1;
            if *peer_count == 0 {
                open.by_peer.remove(&peer);
            }
        }
    }
}

/// Unfinished TLS handshakes of a server.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    unfinished: Mutex<UnfinishedHandshakes>,
    finished: Notify,
}

/// Handshakes by number, each with its start and a sender. Dropping the sender cuts the handshake.
///
/// The oldest handshake has the lowest number.
#[derive(Debug, Default)]
struct UnfinishedHandshakes {
    next_number: u64,
    by_age: BTreeMap<u64, (Instant, oneshot::Sender<()>)>,
}

impl Handshakes {
    /// Takes a handshake slot. Only one task calls this method.
    ///
    /// Without a free slot, the method waits until a slot is free or the oldest handshake has lasted
    /// [`HANDSHAKE_GRACE`]; then it cuts this handshake.
    pub(crate) async fn acquire(self: &Arc<Self>) -> HandshakePermit {
        loop {
            let remaining_grace = {
                let mut unfinished = self.unfinished.lock();
                let age = unfinished
                    .by_age
                    .first_key_value()
                    .map_or(HANDSHAKE_GRACE, |(_, (begun, _))| begun.elapsed());
                if unfinished.by_age.len() < MAX_HANDSHAKES || age >= HANDSHAKE_GRACE {
                    if unfinished.by_age.len() >= MAX_HANDSHAKES {
                        unfinished.by_age.pop_first();
                    }
                    let number = unfinished.next_number;
                    unfinished.next_number += 1;
                    let (cut_sender, cut_signal) = oneshot::channel();
                    unfinished.by_age.insert(number, (Instant::now(), cut_sender));
                    return HandshakePermit { number, handshakes: Arc::clone(self), cut_signal };
                }
                HANDSHAKE_GRACE.saturating_sub(age)
            };
            // After the grace period of the oldest handshake, the next iteration cuts it.
            let _ = tokio::time::timeout(remaining_grace, self.finished.notified()).await;
        }
    }
}

/// Slot of an unfinished handshake.
#[derive(Debug)]
pub(crate) struct HandshakePermit {
    number: u64,
    handshakes: Arc<Handshakes>,
    cut_signal: oneshot::Receiver<()>,
}

impl HandshakePermit {
    /// Returns when the accept loop cuts the handshake to free its slot.
    pub(crate) async fn wait_until_cut(&mut self) {
        // No value is ever sent: the receiver ends when the sender is dropped.
        let _ = (&mut self.cut_signal).await;
    }
}

impl Drop for HandshakePermit {
    fn drop(&mut self) {
        self.handshakes.unfinished.lock().by_age.remove(&self.number);
        self.handshakes.finished.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn connections_beyond_total_or_peer_limit_are_rejected() {
        let [a, b] = [1, 2].map(|last| Some(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last))));
        let connections = Connections::new(4);
        let first = connections.acquire(a).unwrap();
        let _second = connections.acquire(a).unwrap();
        assert!(connections.acquire(a).is_none(), "per-peer limit is half of the total");
        let _third = connections.acquire(b).unwrap();
        let _fourth = connections.acquire(None).unwrap();
        assert!(connections.acquire(b).is_none(), "all");
        drop(first);
        assert!(connections.acquire(a).is_some());
        assert_eq!(connections.open.lock().by_peer.len(), 2);
    }

    #[test]
    fn connection_limit_leaves_quarter_of_descriptors() {
        assert_eq!(limit_connections(8192, None), 8192);
        assert_eq!(limit_connections(8192, Some(20_000)), 8192);
        assert_eq!(limit_connections(8192, Some(1024)), 768);
        assert!(raise_descriptor_limit().is_none_or(|descriptors| descriptors > 0));
    }

    #[tokio::test]
    async fn handshake_beyond_limit_waits_and_then_cuts_oldest() {
        let handshakes = Arc::new(Handshakes::default());
        let mut permits = Vec::new();
        for _ in 0..MAX_HANDSHAKES {
            permits.push(handshakes.acquire().await);
        }
        let begun = Instant::now();
        let _new = handshakes.acquire().await;
        assert!(
            begun.elapsed() >= HANDSHAKE_GRACE / 2,
            "the oldest handshake keeps its slot for the grace time"
        );
        permits.remove(0).wait_until_cut().await;
        assert_eq!(handshakes.unfinished.lock().by_age.len(), MAX_HANDSHAKES);
        assert!(
            tokio::time::timeout(Duration::from_millis(5), permits[1].wait_until_cut()).await.is_err(),
            "other handshakes continue"
        );
        // A slot that becomes free is available at once, before the grace period ends.
        permits.pop();
        let begun = Instant::now();
        let _newer = handshakes.acquire().await;
        assert!(begun.elapsed() < HANDSHAKE_GRACE / 2);
    }
}
