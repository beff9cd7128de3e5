//! Bounds on the connections of a server: in all, of one peer, and those whose TLS handshake is not finished.
//!
//! # Contract
//!
//! [`Connections`] counts open connections; the one beyond the bound is closed at once, before it costs more than its
//! socket. The bound leaves a quarter of the file descriptors for the files of the process. [`Handshakes`] bounds unfinished TLS handshakes: the accept loop waits while all places are taken by handshakes
//! that began within [`GRACE`]; after that the oldest handshake is cut. So a burst of honest clients is served in order at
//! the speed of the processor, and silent ones hold a place for [`GRACE`] and not until their timeout.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// TLS handshakes that are unfinished at a time: about 17 KiB each, 4 MiB in all.
pub(crate) const MAX_HANDSHAKES: usize = 256;

/// How long a handshake keeps its place while others wait for one: several round trips of a distant client.
pub(crate) const GRACE: Duration = Duration::from_millis(500);

/// The file descriptors that the process may have open; None: no bound. The soft limit is raised to the hard one first, as
/// the Go runtime does, since the soft one is often 1024.
pub(crate) fn descriptors() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        Err(error) => {
            tracing::debug!(%error, "the limit of open files stays as it is");
            limit.current
        }
    }
}

/// A bound of connections that leaves descriptors for files.
pub(crate) fn bound_of(connections: usize, descriptors: Option<u64>) -> usize {
    let room = descriptors.map_or(usize::MAX, |all| usize::try_from(all - all / 4).unwrap_or(usize::MAX));
    connections.min(room)
}

/// The open connections of a server.
#[derive(Debug)]
pub(crate) struct Connections {
    max: usize,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    all: usize,
    by_peer: HashMap<IpAddr, usize>,
}

impl Connections {
    /// At most so many in all, and half as many of one peer, so that no single address takes every place.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Connections { max, open: Mutex::default() })
    }

    /// A place for a connection, held until it is dropped. None: there is none left.
    pub(crate) fn enter(self: &Arc<Self>, peer: Option<IpAddr>) -> Option<ConnectionPlace> {
        let mut open = self.open.lock();
        if open.all >= self.max {
            return None;
        }
        if let Some(peer) = peer {
            let of_peer = open.by_peer.entry(peer).or_default();
            if *of_peer >= self.max.div_ceil(2) {
                return None;
            }
            *of_peer += 1;
        }
        open.all += 1;
        Some(ConnectionPlace { connections: Arc::clone(self), peer })
    }
}

/// The place of an open connection.
#[derive(Debug)]
pub(crate) struct ConnectionPlace {
    connections: Arc<Connections>,
    peer: Option<IpAddr>,
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock();
        open.all -= 1;
        if let Some(peer) = self.peer
            && let Some(of_peer) = open.by_peer.get_mut(&peer)
        {
            *of_peer -= 1;
            if *of_peer == 0 {
                open.by_peer.remove(&peer);
            }
        }
    }
}

/// The unfinished TLS handshakes of a server.
#[derive(Debug, Default)]
pub(crate) struct Handshakes {
    unfinished: Mutex<Unfinished>,
    finished: Notify,
}

#[derive(Debug, Default)]
struct Unfinished {
    next: u64,
    by_age: BTreeMap<u64, (Instant, oneshot::Sender<()>)>,
}

impl Handshakes {
    /// A place for a handshake; cuts the oldest one, or waits until that may be cut. One task calls this at a time.
    pub(crate) async fn enter(self: &Arc<Self>) -> HandshakePlace {
        loop {
            let oldest = {
                let mut unfinished = self.unfinished.lock();
                let age =
                    unfinished.by_age.first_key_value().map_or(GRACE, |(_, (begun, _))| begun.elapsed());
                if unfinished.by_age.len() < MAX_HANDSHAKES || age >= GRACE {
                    if unfinished.by_age.len() >= MAX_HANDSHAKES {
                        unfinished.by_age.pop_first();
                    }
                    let number = unfinished.next;
                    unfinished.next += 1;
                    let (cut, is_cut) = oneshot::channel();
                    unfinished.by_age.insert(number, (Instant::now(), cut));
                    return HandshakePlace { number, handshakes: Arc::clone(self), is_cut };
                }
                GRACE.saturating_sub(age)
            };
            // Elapsed: the oldest handshake may be cut now.
            let _ = tokio::time::timeout(oldest, self.finished.notified()).await;
        }
    }
}

/// The place of an unfinished handshake.
#[derive(Debug)]
pub(crate) struct HandshakePlace {
    number: u64,
    handshakes: Arc<Handshakes>,
    is_cut: oneshot::Receiver<()>,
}

impl HandshakePlace {
    /// Returns when the handshake is cut to make room for another.
    pub(crate) async fn cut(&mut self) {
        // Nothing is ever sent: the sender is dropped.
        let _ = (&mut self.is_cut).await;
    }
}

impl Drop for HandshakePlace {
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
    fn connections_beyond_bound_in_all_or_of_one_peer_are_refused() {
        let [a, b] = [1, 2].map(|last| Some(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last))));
        let connections = Connections::new(4);
        let first = connections.enter(a).unwrap();
        let _second = connections.enter(a).unwrap();
        assert!(connections.enter(a).is_none(), "half of all");
        let _third = connections.enter(b).unwrap();
        let _fourth = connections.enter(None).unwrap();
        assert!(connections.enter(b).is_none(), "all");
        drop(first);
        assert!(connections.enter(a).is_some());
        assert_eq!(connections.open.lock().by_peer.len(), 2);
    }

    #[test]
    fn connection_bound_leaves_a_quarter_of_descriptors() {
        assert_eq!(bound_of(8192, None), 8192);
        assert_eq!(bound_of(8192, Some(20_000)), 8192);
        assert_eq!(bound_of(8192, Some(1024)), 768);
        assert!(descriptors().is_none_or(|descriptors| descriptors > 0));
    }

    #[tokio::test]
    async fn handshake_beyond_bound_waits_and_then_cuts_the_oldest() {
        let handshakes = Arc::new(Handshakes::default());
        let mut places = Vec::new();
        for _ in 0..MAX_HANDSHAKES {
            places.push(handshakes.enter().await);
        }
        let begun = Instant::now();
        let _new = handshakes.enter().await;
        assert!(begun.elapsed() >= GRACE / 2, "the oldest keeps its place for a time");
        places.remove(0).cut().await;
        assert_eq!(handshakes.unfinished.lock().by_age.len(), MAX_HANDSHAKES);
        assert!(
            tokio::time::timeout(Duration::from_millis(5), places[1].cut()).await.is_err(),
            "others go on"
        );
        // A place that becomes free is taken at once.
        places.pop();
        let begun = Instant::now();
        let _newer = handshakes.enter().await;
        assert!(begun.elapsed() < GRACE / 2);
    }
}
