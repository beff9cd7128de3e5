//! Attack methods: floods, unread streams, slow and delayed bodies, resets, handshakes, connections, HTTP/1.1 heads.

use std::collections::{HashSet, VecDeque};
use std::io;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::join_all;
use h2::client::ResponseFuture;
use h2::{Reason, SendStream};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use crate::client::{self, Link, Prepared, READ_STREAM_WINDOW, tls};
use crate::server::{PRIVILEGED_TOKEN, UNPRIVILEGED_TOKEN};
use crate::tally::Tally;

/// Number of connections of an attacker, unless its method sets another number.
pub const CONNECTIONS: usize = 16;

/// Time between two bytes of a slow body.
const SLOW_BODY_INTERVAL: Duration = Duration::from_secs(1);

/// Pause before an attacker opens a new stream or connection after the server has ended or refused one.
const REOPEN_PAUSE: Duration = Duration::from_millis(100);

/// Time between the heads and the bodies of a burst.
const BODY_DELAY: Duration = Duration::from_millis(5);

/// Maximum time for which the attacker waits for the heads of unread responses before the next round.
const HEADS_TIME_LIMIT: Duration = Duration::from_secs(1);

/// Address of an attacker that is not the address of the reference client.
const OTHER_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Addresses of an attacker with half of all connections each.
const TWO_ADDRESSES: [Ipv4Addr; 2] = [OTHER_ADDRESS, Ipv4Addr::new(127, 0, 0, 3)];

/// Time after an attack in which responses in flight still count.
const LATE_RESPONSE_TIME: Duration = Duration::from_millis(500);

/// User of the attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttackUser {
    /// No credentials.
    Anonymous,
    /// User with only the permissions of every authenticated user.
    Unprivileged,
    /// User of group `system:masters`.
    Privileged,
}

impl AttackUser {
    /// All users of attackers.
    pub const ALL: [AttackUser; 3] =
        [AttackUser::Anonymous, AttackUser::Unprivileged, AttackUser::Privileged];

    /// Returns the bearer token; None if the requests have no credentials.
    pub fn token(self) -> Option<&'static str> {
        match self {
            AttackUser::Anonymous => None,
            AttackUser::Unprivileged => Some(UNPRIVILEGED_TOKEN),
            AttackUser::Privileged => Some(PRIVILEGED_TOKEN),
        }
    }

    /// Returns the name in the table of the attacks.
    pub fn name(self) -> &'static str {
        match self {
            AttackUser::Anonymous => "anonymous",
            AttackUser::Unprivileged => "unprivileged",
            AttackUser::Privileged => "privileged",
        }
    }
}

/// Method by which an attacker sends requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttackMethod {
    /// The attacker keeps this number of requests in flight on each connection, and reads the responses.
    Flood(usize),
    /// Streams whose responses the attacker does not read.
    Hold {
        /// Number of connections.
        connections: usize,
        /// Number of streams of each connection.
        streams: usize,
        /// Flow-control window of each stream in bytes.
        window: u32,
    },
    /// Rounds of writes and reads. The attacker leaves the responses of the reads unread.
    HoldVersions {
        /// Number of connections of the reads.
        connections: usize,
        /// Maximum number of unread streams of each connection.
        streams: usize,
        /// Flow-control window of each unread stream in bytes.
        window: u32,
        /// Number of reads that the attacker collects over several rounds before it sends them together. In the second
        /// half of the attack, it sends the reads after each round.
        burst: usize,
    },
    /// The attacker keeps this number of requests in flight on each connection, and sends one body byte per
    /// second.
    SlowBodies(usize),
    /// Streams that the attacker resets as soon as it has sent the request, in bursts of this size.
    Resets(usize),
    /// Requests whose heads the attacker sends first, and whose bodies it then sends at once, in bursts of this
    /// size.
    DelayedBodies(usize),
    /// TLS handshakes without a request.
    Handshakes,
    /// The attacker opens this number of TCP connections and sends nothing.
    Silence(usize),
    /// The attacker opens TCP connections of another address, one after the other, sends nothing and closes the
    /// oldest beyond this number.
    Reconnects(usize),
    /// The attacker opens TLS connections of two other addresses, sends nothing and closes the oldest beyond this
    /// number.
    SilentTls(usize),
    /// HTTP/1.1 requests, one connection each.
    Http1,
}

/// State shared by the tasks of an attack.
struct Attacker {
    port: u16,
    token: Option<&'static str>,
    requests: Vec<Prepared>,
    tally: Tally,
    /// Middle of the attack.
    midpoint: Instant,
    deadline: Instant,
    http1: TlsConnector,
    http2: TlsConnector,
}

/// Connection with a limited number of streams.
struct LimitedLink {
    link: Link,
    free_streams: Arc<Semaphore>,
}

/// Sends one request, or opens one stream, and waits for the response up to a time limit.
pub async fn probe(
    port: u16,
    caller: AttackUser,
    method: AttackMethod,
    request: &Prepared,
    time_limit: Duration,
    tally: &Tally,
) {
    let attacker = Attacker::new(port, caller, vec![request.clone()], tally, time_limit);
    let window = match method {
        AttackMethod::Hold { window, .. } => window,
        AttackMethod::Flood(_) | AttackMethod::HoldVersions { .. } => READ_STREAM_WINDOW,
        _ => return,
    };
    let Ok(link) = Link::open(port, &attacker.http2, attacker.token, window).await else { return };
    match method {
        AttackMethod::Hold { .. } => attacker.leave_next_response_unread(&link).await,
        _ => attacker.flood_once(&link, time_limit).await,
    }
}

/// Runs an attack for a duration.
pub async fn run(
    port: u16,
    caller: AttackUser,
    method: AttackMethod,
    requests: Vec<Prepared>,
    duration: Duration,
    tally: &Tally,
) {
    let attacker = Arc::new(Attacker::new(port, caller, requests, tally, duration));
    let mut tasks = JoinSet::new();
    let connections = match method {
        AttackMethod::Hold { connections, .. } => connections,
        // One task opens all connections, because the requests have an order.
        AttackMethod::HoldVersions { .. } => 1,
        _ => CONNECTIONS,
    };
    for task in 0..connections {
        let attacker = Arc::clone(&attacker);
        let address = TWO_ADDRESSES[task % TWO_ADDRESSES.len()];
        tasks.spawn(async move {
            match method {
                AttackMethod::Flood(streams) => {
                    attacker.attack_on_streams(streams, READ_STREAM_WINDOW, StreamBehavior::Flood).await
                }
                AttackMethod::Hold { streams, window, .. } => {
                    attacker.attack_on_streams(streams, window, StreamBehavior::Hold).await;
                }
                AttackMethod::HoldVersions { connections, streams, window, burst } => {
                    attacker.hold_versions(connections, streams, window, burst).await;
                }
                AttackMethod::SlowBodies(streams) => {
                    attacker.attack_on_streams(streams, READ_STREAM_WINDOW, StreamBehavior::Slow).await
                }
                AttackMethod::Resets(burst) => attacker.send_resets(burst).await,
                AttackMethod::DelayedBodies(burst) => attacker.send_delayed_bodies(burst).await,
                AttackMethod::Handshakes => attacker.open_handshakes().await,
                AttackMethod::Silence(count) => attacker.open_silent_connections(count / connections).await,
                AttackMethod::Reconnects(count) => attacker.reconnect_silently(count / connections).await,
                AttackMethod::SilentTls(count) => {
                    attacker.open_silent_tls(address, count / connections).await;
                }
                AttackMethod::Http1 => attacker.send_http1_requests().await,
            }
        });
    }
    // Responses that arrive within [`LATE_RESPONSE_TIME`] are counted; then all tasks and connections end.
    let all_tasks = async { while tasks.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(duration + LATE_RESPONSE_TIME, all_tasks).await;
    tasks.shutdown().await;
}

/// Behavior of the attacker on one stream.
#[derive(Clone, Copy)]
enum StreamBehavior {
    Flood,
    Hold,
    Slow,
}

impl Attacker {
    fn new(
        port: u16,
        caller: AttackUser,
        requests: Vec<Prepared>,
        tally: &Tally,
        duration: Duration,
    ) -> Self {
        let begun = Instant::now();
        Attacker {
            port,
            token: caller.token(),
            requests,
            tally: tally.clone(),
            midpoint: begun + duration / 2,
            deadline: begun + duration,
            http1: tls("http/1.1"),
            http2: tls("h2"),
        }
    }

    fn is_over(&self) -> bool {
        Instant::now() >= self.deadline
    }

    fn next_request(&self) -> (&Prepared, u64) {
        let number = self.tally.count_sent();
        (&self.requests[number as usize % self.requests.len()], number)
    }

    /// Opens a connection; pauses and returns None if the server refuses it.
    async fn open_link(&self, window: u32) -> Option<Link> {
        let link = Link::open(self.port, &self.http2, self.token, window).await.ok();
        if link.is_none() {
            self.tally.count_failure("unconnected");
            tokio::time::sleep(REOPEN_PAUSE).await;
        }
        link
    }

    /// Sends a burst of request heads and returns the open streams with their unsent bodies; none if the server takes no
    /// more requests on the connection.
    async fn send_heads(&self, link: &Link, burst: usize) -> Vec<(ResponseFuture, SendStream<Bytes>, Bytes)> {
        let mut streams = Vec::new();
        for _ in 0..burst {
            let (request, number) = self.next_request();
            match link.send_head(request, number, true).await {
                Ok((response, stream)) => streams.push((response, stream, request.body.clone())),
                Err(_) => break,
            }
        }
        if streams.is_empty() {
            self.tally.count_failure("goaway");
        }
        streams
    }

    /// Opens connections one after the other, each with a number of streams, until the deadline.
    async fn attack_on_streams(self: &Arc<Self>, streams: usize, window: u32, behavior: StreamBehavior) {
        while !self.is_over() {
            let Some(link) = self.open_link(window).await else { continue };
            let mut tasks = JoinSet::new();
            for _ in 0..streams {
                let (attacker, link) = (Arc::clone(self), link.clone());
                tasks.spawn(async move {
                    match behavior {
                        StreamBehavior::Flood => attacker.flood(&link).await,
                        StreamBehavior::Hold => attacker.hold(&link).await,
                        StreamBehavior::Slow => attacker.send_slow_bodies(&link).await,
                    }
                });
            }
            while tasks.join_next().await.is_some() {}
        }
    }

    async fn flood_once(&self, link: &Link, time_limit: Duration) {
        let (request, number) = self.next_request();
        match tokio::time::timeout(time_limit, link.exchange(request, number)).await {
            Ok(answer) => self.tally.count_answer(&answer),
            Err(_) => self.tally.count_failure("unanswered"),
        }
    }

    /// Sends requests one after the other; ends when the connection breaks.
    async fn flood(&self, link: &Link) {
        while !self.is_over() {
            let (request, number) = self.next_request();
            let left = self.deadline.saturating_duration_since(Instant::now()) + LATE_RESPONSE_TIME / 2;
            match tokio::time::timeout(left, link.exchange(request, number)).await {
                Ok(answer) => {
                    self.tally.count_answer(&answer);
                    if answer.is_err() {
                        tokio::time::sleep(REOPEN_PAUSE).await;
                        return;
                    }
                }
                Err(_) => return self.tally.count_failure("unanswered"),
            }
        }
    }

    /// Keeps a stream open without reading its response; opens a new stream when the server ends it.
    async fn hold(&self, link: &Link) {
        while !self.is_over() {
            self.leave_next_response_unread(link).await;
            tokio::time::sleep(REOPEN_PAUSE).await;
        }
    }

    /// Sends the next request and leaves its response unread.
    async fn leave_next_response_unread(&self, link: &Link) {
        let (request, number) = self.next_request();
        self.leave_response_unread(link, request, number, || ()).await;
    }

    /// Sends a request and reads no byte of the response until the stream or the attack ends.
    ///
    /// `on_head` runs when the head of the response arrives.
    async fn leave_response_unread(
        &self,
        link: &Link,
        request: &Prepared,
        number: u64,
        on_head: impl FnOnce(),
    ) {
        let wait = async {
            match link.send(request, number).await {
                Ok((code, _, mut body)) => {
                    self.tally.count_code(code);
                    on_head();
                    // The client releases no flow-control capacity, so the server sends at most one window.
                    while let Some(Ok(_)) = body.data().await {}
                }
                Err(_) => self.tally.count_failure("reset"),
            }
        };
        let left = self.deadline.saturating_duration_since(Instant::now());
        if tokio::time::timeout(left, wait).await.is_err() {
            self.tally.count_failure("held");
        }
    }

    /// Sends rounds of writes and reads until the deadline, and leaves the responses of the reads unread.
    ///
    /// The first write after a read begins a round. The attacker sends the reads of a round after the writes have
    /// changed all objects, so that each read has a different version. The next round begins after the heads of the
    /// responses arrive.
    async fn hold_versions(self: &Arc<Self>, connections: usize, streams: usize, window: u32, burst: usize) {
        let mut links = Vec::new();
        while links.len() < connections && !self.is_over() {
            let link = self.open_link(window).await;
            let free_streams = Arc::new(Semaphore::new(streams));
            links.extend(link.map(|link| LimitedLink { link, free_streams }));
        }
        let mut links_in_turn = links.iter().cycle();
        let (mut tasks, mut reads, mut known_versions) = (JoinSet::new(), Vec::new(), HashSet::new());
        let rounds = self.requests.chunk_by(|earlier, later| !earlier.is_read() || later.is_read());
        for round in rounds.collect::<Vec<_>>().into_iter().cycle() {
            let (writes, round_reads) = round.split_at(round.partition_point(|request| !request.is_read()));
            let Some(versions) = self.send_writes(writes).await else { break };
            if versions.iter().all(|version| known_versions.insert(version.clone())) {
                reads.extend(
                    round_reads.iter().zip(&versions).map(|(read, version)| read.at_version(version)),
                );
            } else {
                self.tally.count_failure("unchanged");
            }
            if reads.len() >= burst || Instant::now() >= self.midpoint {
                self.send_reads_unread(std::mem::take(&mut reads), &mut links_in_turn, &mut tasks).await;
            }
        }
        while tasks.join_next().await.is_some() {}
    }

    /// Sends each read on the next connection, leaves the response unread and waits for the heads.
    ///
    /// The attacker skips a read whose connection has no free stream.
    async fn send_reads_unread(
        self: &Arc<Self>,
        reads: Vec<Prepared>,
        links_in_turn: impl Iterator<Item = &LimitedLink>,
        tasks: &mut JoinSet<()>,
    ) {
        let mut heads = Vec::new();
        for (read, LimitedLink { link, free_streams }) in reads.into_iter().zip(links_in_turn) {
            let Ok(permit) = Arc::clone(free_streams).try_acquire_owned() else { continue };
            let (head_sender, head) = oneshot::channel();
            let (attacker, link) = (Arc::clone(self), link.clone());
            tasks.spawn(async move {
                let number = attacker.tally.count_sent();
                let on_head = || {
                    let _ = head_sender.send(());
                };
                attacker.leave_response_unread(&link, &read, number, on_head).await;
                drop(permit);
            });
            heads.push(head);
        }
        let _ = tokio::time::timeout(HEADS_TIME_LIMIT, join_all(heads)).await;
    }

    /// Sends writes concurrently and returns the resource versions of their objects; None if the attack is over.
    ///
    /// Sends all writes again until all have succeeded.
    async fn send_writes(&self, writes: &[Prepared]) -> Option<Vec<String>> {
        while !self.is_over() {
            let Some(link) = self.open_link(READ_STREAM_WINDOW).await else { continue };
            let responses = join_all(writes.iter().map(|write| self.send_write(&link, write)));
            let left = self.deadline.saturating_duration_since(Instant::now());
            let versions = tokio::time::timeout(left, responses).await.ok()?;
            if let Some(versions) = versions.into_iter().collect() {
                return Some(versions);
            }
            tokio::time::sleep(REOPEN_PAUSE).await;
        }
        None
    }

    /// Sends a write and returns the resource version of its object; None if the write has failed.
    async fn send_write(&self, link: &Link, write: &Prepared) -> Option<String> {
        self.tally.count_sent();
        let answer = link.call(write).await;
        self.tally.count_answer(&answer);
        let answer = answer.ok().filter(|answer| answer.code == 200)?;
        let object: Value = serde_json::from_slice(&answer.body).ok()?;
        Some(object["metadata"]["resourceVersion"].as_str()?.to_owned())
    }

    /// Sends requests with bodies of one byte per second.
    async fn send_slow_bodies(&self, link: &Link) {
        while !self.is_over() {
            let (request, number) = self.next_request();
            let Ok((response, mut stream)) = link.send_head(request, number, true).await else {
                self.tally.count_failure("broken");
                return;
            };
            let send = async {
                let mut at = 0;
                loop {
                    let byte = request.body.slice(at % request.body.len()..at % request.body.len() + 1);
                    if stream.send_data(byte, false).is_err() {
                        // The server has ended the stream. Wait until the other branch of `select!` has its
                        // response.
                        std::future::pending::<()>().await;
                    }
                    at += 1;
                    tokio::time::sleep(SLOW_BODY_INTERVAL).await;
                }
            };
            let left = self.deadline.saturating_duration_since(Instant::now());
            tokio::select! {
                answer = response => match answer {
                    Ok(answer) => self.tally.count_code(answer.status().as_u16()),
                    Err(_) => self.tally.count_failure("reset"),
                },
                () = send => {}
                () = tokio::time::sleep(left) => self.tally.count_failure("held"),
            }
            tokio::time::sleep(REOPEN_PAUSE).await;
        }
    }

    /// Sends bursts of requests and resets their streams at once.
    async fn send_resets(&self, burst: usize) {
        while !self.is_over() {
            let Some(link) = self.open_link(READ_STREAM_WINDOW).await else { continue };
            while !self.is_over() {
                let streams = self.send_heads(&link, burst).await;
                if streams.is_empty() {
                    break;
                }
                // The task of the connection writes the request heads before the resets.
                for _ in 0..4 {
                    tokio::task::yield_now().await;
                }
                for (response, mut stream, _) in streams {
                    drop(stream.send_data(Bytes::new(), true));
                    stream.send_reset(Reason::CANCEL);
                    drop(response);
                }
                tokio::task::yield_now().await;
            }
        }
    }

    /// Sends bursts of request heads and then their bodies; ends with the responses of the last burst.
    async fn send_delayed_bodies(&self, burst: usize) {
        while !self.is_over() {
            let Some(link) = self.open_link(READ_STREAM_WINDOW).await else { continue };
            while !self.is_over() {
                let streams = self.send_heads(&link, burst).await;
                if streams.is_empty() {
                    break;
                }
                tokio::time::sleep(BODY_DELAY).await;
                let mut responses = Vec::new();
                for (response, mut stream, body) in streams {
                    drop(stream.send_data(body, true));
                    responses.push(response);
                }
                for response in responses {
                    match response.await {
                        Ok(response) => self.tally.count_code(response.status().as_u16()),
                        Err(_) => self.tally.count_failure("reset"),
                    }
                }
            }
        }
    }

    async fn open_handshakes(&self) {
        while !self.is_over() {
            self.tally.count_sent();
            if client::connect(self.port, &self.http2).await.is_err() {
                self.tally.count_failure("unconnected");
            }
        }
    }

    async fn open_silent_connections(&self, count: usize) {
        let mut held = Vec::new();
        for _ in 0..count {
            self.tally.count_sent();
            match TcpStream::connect(("127.0.0.1", self.port)).await {
                Ok(stream) => held.push(stream),
                Err(_) => self.tally.count_failure("unconnected"),
            }
        }
        tokio::time::sleep(self.deadline.saturating_duration_since(Instant::now())).await;
    }

    async fn reconnect_silently(&self, count: usize) {
        let mut held = VecDeque::new();
        while !self.is_over() {
            self.tally.count_sent();
            match connect_from(OTHER_ADDRESS, self.port).await {
                Ok(stream) => held.push_back(stream),
                Err(_) => {
                    self.tally.count_failure("unconnected");
                    tokio::time::sleep(REOPEN_PAUSE).await;
                }
            }
            if held.len() > count {
                held.pop_front();
            }
        }
    }

    async fn open_silent_tls(&self, address: Ipv4Addr, count: usize) {
        let mut held = VecDeque::new();
        while !self.is_over() {
            self.tally.count_sent();
            let connect = async {
                let stream = connect_from(address, self.port).await?;
                client::secure(stream, &self.http2).await
            };
            match connect.await {
                Ok(stream) => held.push_back(stream),
                Err(_) => {
                    self.tally.count_failure("unconnected");
                    tokio::time::sleep(REOPEN_PAUSE).await;
                }
            }
            if held.len() > count {
                held.pop_front();
            }
        }
    }

    async fn send_http1_requests(&self) {
        while !self.is_over() {
            let (request, _) = self.next_request();
            let mut head = format!("{} {} HTTP/1.1\r\nhost: localhost\r\n", request.method, request.path);
            if let Some(token) = self.token {
                head.push_str(&format!("authorization: Bearer {token}\r\n"));
            }
            for (name, value) in &request.headers {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
            head.push_str("\r\n");
            let exchange = async {
                let mut stream = client::connect(self.port, &self.http1).await?;
                stream.write_all(head.as_bytes()).await?;
                let mut answer = [0; 4096];
                let length = stream.read(&mut answer).await?;
                let code = std::str::from_utf8(answer.get(9..12.min(length)).unwrap_or_default())?.parse()?;
                Ok::<u16, client::Error>(code)
            };
            match exchange.await {
                Ok(code) => self.tally.count_code(code),
                Err(_) => self.tally.count_failure("broken"),
            }
        }
    }
}

/// Connects to the server from a loopback address.
async fn connect_from(address: Ipv4Addr, port: u16) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((address, 0).into())?;
    socket.connect((Ipv4Addr::LOCALHOST, port).into()).await
}
