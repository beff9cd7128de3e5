//! Connection limits of a server: total, per peer address, and unfinished TLS handshakes.
//!
//! # Contract
//!
//! [`Connections`] counts open connections. The server closes a connection beyond the limit at once, before
//! it costs more than its socket. The limit leaves a quarter of the file descriptors for the files of the
//! process.
//!
//! A connection is silent while it has no request. This is so before and during the TLS handshake, before its first
//! request, and from the end of a response to the next request. At a limit, the connection that is silent for the
//! longest time gives way to a new one, unless this time is shorter than [`SILENCE_GRACE`]. The connection that gives
//! way belongs to the address with the most connections, so each address keeps a share in proportion. An address
//! never displaces a connection of an address with fewer connections than its own.
//!
//! [`Handshakes`] limits unfinished TLS handshakes, in total and for each peer address, so that the connections
//! of one address do not delay those of others. A handshake waits while handshakes younger than
//! [`HANDSHAKE_GRACE`] occupy all slots of its address or of the server; after that it cuts the oldest of them. A
//! burst of honest clients is therefore served in order at the speed of the processor. A silent client occupies a
//! slot for [`HANDSHAKE_GRACE`], not until its timeout. A waiting handshake holds only its socket.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use crate::connection_closer::ConnectionCloser;

/// Maximum number of unfinished TLS handshakes. Each takes about 17 KiB of memory, all of them 4 MiB.
pub(crate) const MAX_HANDSHAKES: usize = 256;

/// Maximum number of unfinished TLS handshakes of one peer address.
pub(crate) const MAX_PEER_HANDSHAKES: usize = MAX_HANDSHAKES / 2;

/// Time for which a handshake keeps its slot while other clients wait: several round trips of a distant
/// client.
pub(crate) const HANDSHAKE_GRACE: Duration = Duration::from_millis(500);

/// Time for which a connection without a request keeps its slot at a limit: several round trips of a distant
/// client, for its handshake and its next request.
pub(crate) const SILENCE_GRACE: Duration = Duration::from_secs(1);

/// Returns the maximum number of open file descriptors of the process; None means no limit.
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
    next_number: u64,
    /// The key None is that of unix sockets.
    by_peer: HashMap<Option<IpAddr>, PeerConnections>,
}

/// Connections of one peer address.
#[derive(Debug, Default)]
struct PeerConnections {
    count: usize,
    /// Connections that do not give way yet, in the order of [`Usage::last_seen`].
    by_last_seen: BTreeMap<ConnectionKey, (ConnectionCloser, Arc<Mutex<Usage>>)>,
}

/// [`Usage::last_seen`] and the number of a connection.
type ConnectionKey = (Instant, u64);

/// The requests of a connection.
#[derive(Debug)]
struct Usage {
    /// Number of requests in progress. A request ends with its response.
    requests: usize,
    /// End of the last request, or start of the connection.
    silent_since: Instant,
    /// A time at which the connection had a request, or its start. [`PeerConnections::oldest_silent`] updates the time,
    /// so that requests do not sort the connections.
    last_seen: Instant,
}

impl PeerConnections {
    /// Returns the key of the connection that is silent for the longest time; None if no connection can give way.
    ///
    /// The work of all calls within [`SILENCE_GRACE`] is at most one step for each connection.
    fn oldest_silent(&mut self) -> Option<ConnectionKey> {
        loop {
            let (&key, (_, usage)) = self.by_last_seen.first_key_value()?;
            let (last_seen, number) = key;
            if last_seen.elapsed() < SILENCE_GRACE {
                return None;
            }
            let now_seen = {
                let mut usage = usage.lock();
                usage.last_seen = if usage.requests > 0 { Instant::now() } else { usage.silent_since };
                usage.last_seen
            };
            if now_seen <= last_seen {
                return Some(key);
            }
            if let Some(connection) = self.by_last_seen.remove(&key) {
                self.by_last_seen.insert((now_seen, number), connection);
            }
        }
    }

    /// Closes the connection that is silent for the longest time. Returns whether one can give way.
    fn displace_oldest(&mut self) -> bool {
        let Some(key) = self.oldest_silent() else { return false };
        if let Some((closer, _)) = self.by_last_seen.remove(&key) {
            closer.now();
        }
        true
    }
}

impl OpenConnections {
    /// Closes a silent connection in favour of a new one of `peer`. Returns whether there was one.
    fn displace_for(&mut self, peer: Option<IpAddr>) -> bool {
        let own_count = self.by_peer.get(&peer).map_or(0, |own| own.count);
        let displaceable = self.by_peer.iter_mut().filter_map(|(key, connections)| {
            let may_give_way = connections.count > own_count || *key == peer;
            (may_give_way && connections.oldest_silent().is_some()).then_some(connections)
        });
        let largest = displaceable.max_by_key(|connections| connections.count);
        largest.is_some_and(PeerConnections::displace_oldest)
    }
}

impl Connections {
    /// Allows `max` connections in total and half as many per peer address, so that no address takes every
    /// slot.
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Connections { max, open: Mutex::default() })
    }

    /// Takes a connection slot, which is free again when the value is dropped. Returns None if one of the limits is
    /// reached, and no silent connection gives way. `closer` ends the connection if it gives way later.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        peer: Option<IpAddr>,
        closer: &ConnectionCloser,
    ) -> Option<ConnectionPermit> {
        let mut open = self.open.lock();
        let own_count = open.by_peer.get(&peer).map_or(0, |own| own.count);
        let is_admitted = if peer.is_some() && own_count >= self.max.div_ceil(2) {
            open.by_peer.get_mut(&peer).is_some_and(PeerConnections::displace_oldest)
        } else {
            open.all < self.max || open.displace_for(peer)
        };
        if !is_admitted {
            return None;
        }
        // A connection that gives way is counted until its task has ended.
        open.all += 1;
        let number = open.next_number;
        open.next_number += 1;
        let own = open.by_peer.entry(peer).or_default();
        own.count += 1;
        let now = Instant::now();
        let usage = Arc::new(Mutex::new(Usage { requests: 0, silent_since: now, last_seen: now }));
        own.by_last_seen.insert((now, number), (closer.clone(), Arc::clone(&usage)));
        Some(ConnectionPermit { connections: Arc::clone(self), peer, number, usage })
    }
}

/// Slot of an open connection.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    connections: Arc<Connections>,
    peer: Option<IpAddr>,
    number: u64,
    usage: Arc<Mutex<Usage>>,
}

impl ConnectionPermit {
    /// Records the start of a request: the connection gives way to no other until the returned value is dropped.
    pub(crate) fn begin_request(&self) -> RequestInProgress {
        self.usage.lock().requests += 1;
        RequestInProgress(Arc::clone(&self.usage))
    }
}

/// A request whose response has not ended.
#[derive(Debug)]
pub(crate) struct RequestInProgress(Arc<Mutex<Usage>>);

/// The slot of the connection of a request, for handlers whose stream outlasts HTTP.
///
/// After an upgrade the server no longer knows the connection. A handler keeps the slot with [`ConnectionSlot::keep`] until
/// the stream ends, so that upgraded connections count like all others.
#[derive(Clone, Debug, Default)]
pub struct ConnectionSlot(Weak<ConnectionPermit>);

impl ConnectionSlot {
    pub(crate) fn of(permit: &Arc<ConnectionPermit>) -> Self {
        ConnectionSlot(Arc::downgrade(permit))
    }

    /// Keeps the slot, and the connection from giving way to others, until the returned value is dropped.
    pub fn keep(&self) -> KeptConnection {
        KeptConnection(self.0.upgrade().map(|permit| (permit.begin_request(), permit)))
    }
}

/// A connection that still counts; see [`ConnectionSlot::keep`].
#[derive(Debug)]
pub struct KeptConnection(
    #[cfg_attr(not(test), expect(dead_code, reason = "held for its drop"))]
    Option<(RequestInProgress, Arc<ConnectionPermit>)>,
);

impl Drop for RequestInProgress {
    fn drop(&mut self) {
        let mut usage = self.0.lock();
        usage.requests -= 1;
        usage.silent_since = Instant::now();
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.connections.open.lock();
        open.all -= 1;
        if let Some(own) = open.by_peer.get_mut(&self.peer) {
            own.count -= 1;
            own.by_last_seen.remove(&(self.usage.lock().last_seen, self.number));
            if own.count == 0 {
                open.by_peer.remove(&self.peer);
            }
        }
    }
}

/// Unfinished TLS handshakes of a server.
#[derive(Debug)]
pub(crate) struct Handshakes {
    all: Arc<HandshakeSlots>,
    by_peer: Mutex<HashMap<IpAddr, Weak<HandshakeSlots>>>,
}

impl Handshakes {
    /// Allows [`MAX_HANDSHAKES`] in total and [`MAX_PEER_HANDSHAKES`] for each peer address.
    pub(crate) fn new() -> Self {
        Handshakes { all: Arc::new(HandshakeSlots::new(MAX_HANDSHAKES)), by_peer: Mutex::default() }
    }

    /// Waits for a slot of the peer address and then for a slot of the server.
    pub(crate) async fn acquire(&self, peer: Option<IpAddr>) -> HandshakePermit {
        let of_peer = match peer {
            Some(peer) => Some(self.slots_of(peer).acquire().await),
            None => None,
        };
        HandshakePermit { of_peer, of_server: Arc::clone(&self.all).acquire().await }
    }

    fn slots_of(&self, peer: IpAddr) -> Arc<HandshakeSlots> {
        let mut by_peer = self.by_peer.lock();
        if let Some(slots) = by_peer.get(&peer).and_then(Weak::upgrade) {
            return slots;
        }
        by_peer.retain(|_, slots| slots.strong_count() > 0);
        let slots = Arc::new(HandshakeSlots::new(MAX_PEER_HANDSHAKES));
        by_peer.insert(peer, Arc::downgrade(&slots));
        slots
    }
}

/// Slots for unfinished handshakes. Handshakes get them in the order in which they began to wait.
#[derive(Debug)]
struct HandshakeSlots {
    free: Arc<Semaphore>,
    unfinished: Mutex<UnfinishedHandshakes>,
}

/// Handshakes by number, each with its start and a sender. Dropping the sender cuts the handshake.
///
/// The oldest handshake has the lowest number.
#[derive(Debug, Default)]
struct UnfinishedHandshakes {
    next_number: u64,
    by_age: BTreeMap<u64, (Instant, oneshot::Sender<()>)>,
}

impl HandshakeSlots {
    fn new(count: usize) -> Self {
        HandshakeSlots { free: Arc::new(Semaphore::new(count)), unfinished: Mutex::default() }
    }

    /// Waits until a slot is free or the oldest handshake has lasted [`HANDSHAKE_GRACE`]; then cuts this handshake.
    async fn acquire(self: Arc<Self>) -> HandshakeSlot {
        let mut free_slot = pin!(Arc::clone(&self.free).acquire_owned());
        let mut pause = Duration::ZERO;
        let permit = loop {
            tokio::select! {
                biased;
                // The semaphore is never closed, so there is always a permit.
                permit = &mut free_slot => break permit.ok(),
                () = tokio::time::sleep(pause) => pause = self.cut_oldest(),
            }
        };
        let (cut_sender, cut_signal) = oneshot::channel();
        let mut unfinished = self.unfinished.lock();
        let number = unfinished.next_number;
        unfinished.next_number += 1;
        unfinished.by_age.insert(number, (Instant::now(), cut_sender));
        drop(unfinished);
        HandshakeSlot { number, slots: self, cut_signal, _permit: permit }
    }

    /// Cuts the oldest handshake if it has lasted [`HANDSHAKE_GRACE`]. Returns the time until the next attempt.
    fn cut_oldest(&self) -> Duration {
        let mut unfinished = self.unfinished.lock();
        let Some(oldest) = unfinished.by_age.first_entry() else { return HANDSHAKE_GRACE };
        let remaining_grace = HANDSHAKE_GRACE.saturating_sub(oldest.get().0.elapsed());
        if !remaining_grace.is_zero() {
            return remaining_grace;
        }
        // The slot is free as soon as the task of the handshake has ended.
        oldest.remove();
        HANDSHAKE_GRACE
    }
}

/// Permit for an unfinished handshake: a slot of its peer address and a slot of the server.
#[derive(Debug)]
pub(crate) struct HandshakePermit {
    of_peer: Option<HandshakeSlot>,
    of_server: HandshakeSlot,
}

impl HandshakePermit {
    /// Returns when another handshake needs one of the slots.
    pub(crate) async fn wait_until_cut(&mut self) {
        match &mut self.of_peer {
            Some(of_peer) => tokio::select! {
                () = of_peer.wait_until_cut() => {}
                () = self.of_server.wait_until_cut() => {}
            },
            None => self.of_server.wait_until_cut().await,
        }
    }
}

/// Slot of an unfinished handshake.
#[derive(Debug)]
struct HandshakeSlot {
    number: u64,
    slots: Arc<HandshakeSlots>,
    cut_signal: oneshot::Receiver<()>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl HandshakeSlot {
    async fn wait_until_cut(&mut self) {
        // No value is ever sent: the receiver ends when the sender is dropped.
        let _ = (&mut self.cut_signal).await;
    }
}

impl Drop for HandshakeSlot {
    fn drop(&mut self) {
        self.slots.unfinished.lock().by_age.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn connections_beyond_total_or_peer_limit_are_rejected() {
        let [a, b, _] = PEERS;
        let connections = Connections::new(4);
        let acquire = |peer| connections.acquire(peer, &ConnectionCloser::default());
        let first = acquire(a).unwrap();
        let _second = acquire(a).unwrap();
        assert!(acquire(a).is_none(), "per-peer limit is half of the total");
        let _third = acquire(b).unwrap();
        let _fourth = acquire(None).unwrap();
        assert!(acquire(b).is_none(), "all");
        drop(first);
        assert!(acquire(a).is_some());
        assert_eq!(connections.open.lock().by_peer.len(), 3);
    }

    #[test]
    fn kept_connection_counts_after_the_end_of_http() {
        let [a, _, _] = PEERS;
        let connections = Connections::new(2);
        let acquire = || connections.acquire(a, &ConnectionCloser::default());
        let permit = Arc::new(acquire().unwrap());
        let slot = ConnectionSlot::of(&permit);
        let kept = slot.keep();
        // The server forgets an upgraded connection.
        drop(permit);
        assert!(acquire().is_none(), "the stream still occupies the slot of its peer");
        assert_eq!(kept.0.as_ref().unwrap().1.usage.lock().requests, 1, "the connection is not silent");
        drop(kept);
        assert!(acquire().is_some());
        assert!(slot.keep().0.is_none(), "the slot of an ended connection cannot be kept");
    }

    /// Whether a connection was told to end.
    async fn is_closed(closer: &ConnectionCloser) -> bool {
        closer.closed().now_or_never().is_some()
    }

    #[tokio::test]
    async fn oldest_silent_connection_of_largest_peer_gives_way_at_a_limit() {
        let [a, b, c] = PEERS;
        let connections = Connections::new(6);
        let mut closers = Vec::new();
        let mut acquire = |peer| {
            let closer = ConnectionCloser::default();
            let permit = connections.acquire(peer, &closer);
            closers.push(closer);
            permit
        };
        let permits = [a, a, a, b, b].map(|peer| acquire(peer).unwrap());
        let _request = permits[0].begin_request();
        let _c = acquire(c).unwrap();
        assert!(acquire(c).is_none(), "all silent connections are within their grace");
        tokio::time::sleep(SILENCE_GRACE).await;
        assert!(acquire(c).is_some(), "the peer with one connection gets a second one");
        assert!(is_closed(&closers[1]).await, "the oldest silent connection of the largest peer");
        for (index, closer) in closers.iter().enumerate().filter(|(index, _)| *index != 1) {
            assert!(!is_closed(closer).await, "connection {index}");
        }
    }

    #[tokio::test]
    async fn idle_connection_gives_way_after_a_request_and_a_busy_one_does_not() {
        let [a, b, _] = PEERS;
        let connections = Connections::new(4);
        let closers: Vec<_> = (0..4).map(|_| ConnectionCloser::default()).collect();
        let acquire = |peer, index: usize| connections.acquire(peer, &closers[index]).unwrap();
        let permits = [acquire(a, 0), acquire(a, 1), acquire(b, 2), acquire(b, 3)];
        let watch = permits[0].begin_request();
        drop(permits[1].begin_request());
        tokio::time::sleep(SILENCE_GRACE / 2).await;
        drop([permits[2].begin_request(), permits[3].begin_request()]);
        tokio::time::sleep(SILENCE_GRACE / 2).await;
        let new = connections.acquire(None, &ConnectionCloser::default());
        assert!(new.is_some() && is_closed(&closers[1]).await, "the longest idle connection gives way");
        assert!(connections.acquire(None, &ConnectionCloser::default()).is_none(), "the others are not idle");
        drop(watch);
        drop(permits);
        let open = connections.open.lock();
        assert!(open.all == 1 && open.by_peer.len() == 1, "{open:?}");
    }

    #[tokio::test]
    async fn silent_connections_of_smaller_peer_do_not_give_way() {
        let [a, b, c] = PEERS;
        let connections = Connections::new(6);
        let acquire = |peer| connections.acquire(peer, &ConnectionCloser::default());
        let permits = [a, a, a, b, b, c].map(|peer| acquire(peer).unwrap());
        let _requests: Vec<_> = permits[..5].iter().map(ConnectionPermit::begin_request).collect();
        tokio::time::sleep(SILENCE_GRACE).await;
        assert!(acquire(b).is_none(), "the only silent connection is of an address with fewer connections");
        assert!(acquire(a).is_none(), "the address has half of all connections, and none is silent");
        assert!(acquire(c).is_some(), "an own silent connection gives way");
    }

    #[tokio::test]
    async fn peer_at_its_limit_displaces_its_own_silent_connection() {
        let [a, ..] = PEERS;
        let connections = Connections::new(4);
        let oldest = ConnectionCloser::default();
        let _first = connections.acquire(a, &oldest).unwrap();
        let _second = connections.acquire(a, &ConnectionCloser::default()).unwrap();
        tokio::time::sleep(SILENCE_GRACE).await;
        assert!(connections.acquire(a, &ConnectionCloser::default()).is_some());
        assert!(is_closed(&oldest).await);
    }

    #[test]
    fn connection_limit_leaves_quarter_of_descriptors() {
        assert_eq!(limit_connections(8192, None), 8192);
        assert_eq!(limit_connections(8192, Some(20_000)), 8192);
        assert_eq!(limit_connections(8192, Some(1024)), 768);
        assert!(raise_descriptor_limit().is_none_or(|descriptors| descriptors > 0));
    }

    /// Peer addresses 127.0.0.1 to 127.0.0.3.
    const PEERS: [Option<IpAddr>; 3] = [peer(1), peer(2), peer(3)];

    const fn peer(last: u8) -> Option<IpAddr> {
        Some(IpAddr::V4(Ipv4Addr::new(127, 0, 0, last)))
    }

    async fn acquire_all(handshakes: &Handshakes, peer: Option<IpAddr>) -> Vec<HandshakePermit> {
        let mut permits = Vec::new();
        for _ in 0..MAX_PEER_HANDSHAKES {
            permits.push(handshakes.acquire(peer).await);
        }
        // A task that has acquired this many permits at once must yield (`tokio::task::coop`).
        tokio::task::yield_now().await;
        permits
    }

    #[tokio::test]
    async fn handshake_beyond_limit_of_peer_waits_and_then_cuts_oldest_of_peer() {
        let handshakes = Handshakes::new();
        let mut other = handshakes.acquire(PEERS[1]).await;
        let mut permits = acquire_all(&handshakes, PEERS[0]).await;
        assert!(handshakes.acquire(PEERS[0]).now_or_never().is_none());
        let begun = Instant::now();
        let waiting = async {
            let permit = handshakes.acquire(PEERS[0]).await;
            assert!(begun.elapsed() >= HANDSHAKE_GRACE / 2, "the oldest handshake keeps its slot");
            permit
        };
        let mut oldest = permits.remove(0);
        let cut = async move { oldest.wait_until_cut().await };
        let (_newest, ()) = tokio::join!(waiting, cut);
        assert!(permits[0].wait_until_cut().now_or_never().is_none(), "one handshake is closed");
        assert!(other.wait_until_cut().now_or_never().is_none(), "handshakes of other peers continue");
    }

    #[tokio::test]
    async fn second_attempt_cuts_no_handshake_within_its_grace() {
        let slots = Arc::new(HandshakeSlots::new(2));
        let mut old = Arc::clone(&slots).acquire().await;
        tokio::time::sleep(HANDSHAKE_GRACE).await;
        let mut young = Arc::clone(&slots).acquire().await;
        slots.cut_oldest();
        assert!(old.wait_until_cut().now_or_never().is_some());
        slots.cut_oldest();
        assert!(young.wait_until_cut().now_or_never().is_none());
    }

    #[tokio::test]
    async fn peer_at_its_limit_does_not_delay_other_peers() {
        let handshakes = Handshakes::new();
        let mut permits = acquire_all(&handshakes, PEERS[0]).await;
        let mut waiting = pin!(handshakes.acquire(PEERS[0]));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(handshakes.acquire(PEERS[1]).now_or_never().is_some());
        // A slot that becomes free is available at once, before the grace period ends.
        permits.pop();
        assert!(waiting.now_or_never().is_some());
    }

    #[tokio::test]
    async fn handshake_beyond_limit_of_server_waits() {
        let handshakes = Handshakes::new();
        let _first = acquire_all(&handshakes, PEERS[0]).await;
        let second = acquire_all(&handshakes, PEERS[1]).await;
        assert!(handshakes.acquire(PEERS[2]).now_or_never().is_none());
        drop(second);
        assert!(handshakes.acquire(PEERS[2]).now_or_never().is_some());
        assert!(handshakes.by_peer.lock().len() <= 2, "addresses without handshakes are forgotten");
    }
}
