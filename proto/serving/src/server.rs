//! HTTP server: passes requests from a listener, with or without TLS, to one handler.
//!
//! # Contract
//!
//! The server speaks HTTP/1.1 and HTTP/2 (by ALPN over TLS, by the preface without TLS). [`ServerOptions`]
//! limits the time for handshake and request head, the headers and the streams. Idle HTTP/2 peers are pinged.
//! When `shutdown` is ready the listener closes, and HTTP/2 peers get GOAWAY. Responses in flight are finished
//! until the deadline; then the server cuts the remaining connections. A client that reads its response too
//! slowly is closed after [`READ_GRACE`].
//!
//! The memory of a connection is limited, so that a few hostile connections cannot exhaust the memory of the
//! process:
//!
//! | resource | limit of one connection |
//! |---|---|
//! | responses that the client does not read | 512 KiB, and one chunk of each stream beyond it: [`crate::send_limit`] |
//! | request bodies that the handler does not read | [`CONNECTION_WINDOW`], [`STREAM_WINDOW`] of a stream |
//! | the head of a request | [`ServerOptions::max_header_bytes`], and [`MAX_HEADER_FIELDS`] in HTTP/1.1 |
//! | an unfinished TLS handshake | [`ServerOptions::handshake_timeout`], [`crate::connection_limits`] |
//! | a connection without a request | [`ServerOptions::header_timeout`] |
//!
//! A connection and its handlers are one task, which lets other tasks run after 0.1 ms ([`crate::single_task`]).
//! [`ServerOptions::max_connections`] limits the number of connections, in total and for each peer address. At the
//! limit, old connections without a request in progress give way. A request with an ambiguous head is rejected
//! ([`crate::request_head`]), and so is plain HTTP on a port with TLS ([`crate::plain_http`]). A
//! panic in the handler ends its request (HTTP/2) or its connection (HTTP/1.1), never the server.
//!
//! # Invariants
//!
//! INVARIANT (quiet): events that a client can cause on its own are logged at debug level at most, except failed
//! TLS handshakes. The log limits the rate of each line ([`crate::log`]).

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use aws_lc_rs::digest;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::body::Body;
use crate::cancellations::Cancellations;
pub use crate::connection_closer::ConnectionCloser;
use crate::connection_limits::{self, ConnectionPermit, Connections, Handshakes};
pub use crate::connection_limits::{ConnectionSlot, KeptConnection};
use crate::fair_stream::FairStream;
use crate::listener::{ACCEPT_PAUSE, AcceptedConnection, Listener};
use crate::metrics::Counter;
use crate::plain_http::{self, FirstByte};
use crate::request_head;
use crate::send_limit::{MeteredBody, SendLimit};
use crate::single_task::{Spawner, run_as_single_task};
use crate::tls::{self, ServingTls};

/// Connection properties for the handler.
#[derive(Clone, Debug, Default)]
pub struct ConnectionInfo {
    /// Address of the peer; None on a unix socket.
    pub peer: Option<SocketAddr>,
    /// Whether the connection is encrypted.
    pub tls: bool,
    /// Certificate chain of the client, DER, leaf first, NOT verified; empty without a certificate.
    ///
    /// The client has proven possession of the key of the leaf.
    pub client_chain: Vec<Bytes>,
    /// SHA-256 of the chain, for caches; None without a chain.
    pub client_fingerprint: Option<[u8; 32]>,
    /// Counter of the unsent response bytes of the connection, for use by the handler; the server ignores it.
    pub unsent_bytes: Arc<AtomicUsize>,
    /// Ends the connection.
    pub cut: ConnectionCloser,
    /// The slot of the connection, for streams that outlast HTTP.
    pub slot: ConnectionSlot,
}

/// Request handler. Closures of the same shape are handlers.
///
/// The future is boxed. The server is compiled once for all handlers, and the memory of a future is freed when
/// the future ends. hyper would keep the memory of an unboxed future until the response is sent, which may take
/// an hour.
pub trait Handler: Send + Sync + 'static {
    /// Responds to one request.
    fn handle(
        &self,
        request: Request<Incoming>,
        connection: Arc<ConnectionInfo>,
    ) -> BoxFuture<'_, Response<Body>>;
}

impl<F, A> Handler for F
where
    F: Fn(Request<Incoming>, Arc<ConnectionInfo>) -> A + Send + Sync + 'static,
    A: Future<Output = Response<Body>> + Send + 'static,
{
    fn handle(
        &self,
        request: Request<Incoming>,
        connection: Arc<ConnectionInfo>,
    ) -> BoxFuture<'_, Response<Body>> {
        Box::pin(self(request, connection))
    }
}

/// Limits of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Timeout of the TLS handshake.
    pub handshake_timeout: Duration,
    /// Timeout of the first request of a connection, of a request head, and of an idle HTTP/1.1 connection.
    pub header_timeout: Duration,
    /// Maximum size in bytes of all headers of a request.
    pub max_header_bytes: u32,
    /// Maximum number of concurrent streams of an HTTP/2 connection.
    pub max_concurrent_streams: u32,
    /// Maximum number of open connections, unless file descriptors allow fewer. One address can open half as
    /// many.
    pub max_connections: usize,
    /// Interval of pings to HTTP/2 peers, and timeout of the response to a ping.
    pub ping: (Duration, Duration),
    /// Time after `shutdown` for responses in flight.
    pub drain: Duration,
    /// Counts failed TLS handshakes.
    pub handshake_errors: Counter,
}

impl Default for ServerOptions {
    /// Returns the default limits.
    ///
    /// 10 s for the handshake, 32 s for the head, 128 KiB of headers, 100 streams, 8192 connections, pings
    /// after 30 s with a timeout of 15 s, 60 s to drain. Clients open 100 streams before they know the limit
    /// of the server, and Kubernetes allows as many. An idle connection over TLS costs about 30 KiB.
    fn default() -> Self {
        ServerOptions {
            handshake_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(32),
            max_header_bytes: 128 * 1024,
            max_concurrent_streams: 100,
            max_connections: 8192,
            ping: (Duration::from_secs(30), Duration::from_secs(15)),
            drain: Duration::from_secs(60),
            handshake_errors: Counter::default(),
        }
    }
}

/// Result of a graceful shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutdownResult {
    /// All connections ended by themselves.
    Clean,
    /// The deadline passed; the server cut connections.
    Cut,
}

/// Phase of the server, sent to all connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    Draining,
    Ended,
}

/// Flow-control window of an HTTP/2 stream, for request bodies.
const STREAM_WINDOW: u32 = 256 * 1024;
/// Flow-control window of an HTTP/2 connection: maximum unread body bytes of a client.
///
/// h2 allows half as much again for the overhead of small frames.
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// Send buffer of an HTTP/2 stream. The streams of a connection share [`crate::send_limit`].
const SEND_BUFFER: usize = 256 * 1024;
/// Maximum number of streams that an HTTP/2 client opens and resets before the server sees them.
///
/// The server ends a connection beyond the limit.
const MAX_PENDING_RESETS: usize = 20;
/// Maximum number of streams that the server resets for client errors on an HTTP/2 connection.
///
/// The server ends a connection beyond the limit.
const MAX_ERROR_RESETS: usize = 256;
/// Maximum number of header fields of an HTTP/1.1 request; a request with more gets 431 without a body.
///
/// For each request the parser allocates two arrays of 32 bytes per field. With a maximum of 512 fields or
/// more, these allocations would take a tenth of the instructions of a small request. The thread cache of the
/// allocator does not keep such large arrays.
pub const MAX_HEADER_FIELDS: usize = 256;
/// Minimum size of the read buffer of an HTTP/1.1 connection, which hyper requires.
const MIN_BUFFER_BYTES: usize = 8192;
/// Time after the start of the drain in which clients read the responses that have begun, at any speed.
const READ_GRACE: Duration = Duration::from_secs(3);
/// Time in which, after [`READ_GRACE`], a client has to read at least [`MIN_PROGRESS`]; else the server ends the
/// connection.
const MAX_STALL: Duration = Duration::from_secs(1);
/// Minimum number of bytes that a connection transfers in [`MAX_STALL`]. Pings and a trickle are fewer.
const MIN_PROGRESS: u64 = 64 * 1024;
/// Interval of checks for stalled connections while the server drains.
const STALL_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Minimum interval between log lines about failed accepts.
const FAILURE_LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Serves until `shutdown` is ready and all connections have ended, at most [`ServerOptions::drain`] later.
pub fn serve(
    listener: Listener,
    tls: Option<Arc<ServingTls>>,
    handler: Arc<dyn Handler>,
    options: ServerOptions,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> BoxFuture<'static, ShutdownResult> {
    serve_until(listener, tls, handler, options, Box::pin(shutdown))
}

/// Boxed like the future of a handler, so that the code of all connections is compiled in this crate.
fn serve_until(
    listener: Listener,
    tls: Option<Arc<ServingTls>>,
    handler: Arc<dyn Handler>,
    options: ServerOptions,
    shutdown: BoxFuture<'static, ()>,
) -> BoxFuture<'static, ShutdownResult> {
    Box::pin(accept_until(listener, tls, handler, options, shutdown))
}

async fn accept_until(
    listener: Listener,
    tls: Option<Arc<ServingTls>>,
    handler: Arc<dyn Handler>,
    options: ServerOptions,
    mut shutdown: BoxFuture<'static, ()>,
) -> ShutdownResult {
    let (phase, phases) = watch::channel(Phase::Serving);
    let drain = options.drain;
    let max_connections = connection_limits::limit_connections(
        options.max_connections,
        connection_limits::raise_descriptor_limit(),
    );
    let connections = Connections::new(max_connections);
    let handshakes = Handshakes::new();
    let server = Arc::new(Server { tls, handler, handshakes, options });
    let mut failures = AcceptFailures::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut shutdown => break,
        };
        let accepted = match accepted {
            Ok(accepted) => accepted,
            Err(e) if affects_one_connection(&e) => {
                tracing::debug!(error = %e, "connection broke before it was accepted");
                continue;
            }
            Err(e) => {
                if let Some(failures) = failures.count() {
                    tracing::warn!(error = %e, failures, "cannot accept connections; trying again");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let (peer, cut) = (accepted.peer(), ConnectionCloser::default());
        let Some(permit) = connections.acquire(peer.map(|peer| peer.ip()), &cut) else {
            let peer = peer.map(|peer| peer.to_string()).unwrap_or_default();
            tracing::debug!(peer, "connection closed: too many connections");
            continue;
        };
        let (server, phases, permit) = (Arc::clone(&server), phases.clone(), Arc::new(permit));
        tokio::spawn(async move {
            server.serve_connection(accepted, cut, &permit, phases.clone()).await;
            // The server ends when the handlers of all connections are dropped.
            drop((permit, phases));
        });
    }
    drop((listener, phases, server));
    phase.send_replace(Phase::Draining);
    if tokio::time::timeout(drain, phase.closed()).await.is_ok() {
        return ShutdownResult::Clean;
    }
    phase.send_replace(Phase::Ended);
    phase.closed().await;
    ShutdownResult::Cut
}

/// Counts accepts that failed for lack of resources, for at most one log line per [`FAILURE_LOG_INTERVAL`].
#[derive(Default)]
struct AcceptFailures {
    unreported: u64,
    last_report: Option<Instant>,
}

impl AcceptFailures {
    /// Counts a failure; returns the number of failures since the last log line when a line is due.
    fn count(&mut self) -> Option<u64> {
        self.unreported += 1;
        if self.last_report.is_some_and(|last| last.elapsed() < FAILURE_LOG_INTERVAL) {
            return None;
        }
        let failures = self.unreported;
        *self = AcceptFailures { unreported: 0, last_report: Some(Instant::now()) };
        Some(failures)
    }
}

/// Whether an accept error concerns one connection only, so that the server accepts the next one at once.
fn affects_one_connection(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionRefused
            | ErrorKind::InvalidInput
    )
}

/// State shared by all connections.
struct Server {
    tls: Option<Arc<ServingTls>>,
    handler: Arc<dyn Handler>,
    handshakes: Handshakes,
    options: ServerOptions,
}

impl Server {
    /// Serves one connection from its first byte to its last.
    async fn serve_connection(
        &self,
        accepted: AcceptedConnection,
        cut: ConnectionCloser,
        permit: &Arc<ConnectionPermit>,
        phase: watch::Receiver<Phase>,
    ) {
        let slot = ConnectionSlot::of(permit);
        let info = ConnectionInfo { peer: accepted.peer(), cut, slot, ..ConnectionInfo::default() };
        match accepted {
            AcceptedConnection::Tcp(stream, _) => self.serve_stream(stream, info, permit, phase).await,
            AcceptedConnection::Unix(stream) => self.serve_stream(stream, info, permit, phase).await,
        }
    }

    /// Completes the TLS handshake, if the server has TLS, and serves HTTP on the stream.
    async fn serve_stream<S>(
        &self,
        stream: S,
        mut info: ConnectionInfo,
        permit: &ConnectionPermit,
        mut phase: watch::Receiver<Phase>,
    ) where
        S: AsyncRead + AsyncWrite + FirstByte + Unpin + Send + 'static,
    {
        let Some(tls) = &self.tls else {
            return self.serve_http(stream, info, permit, phase).await;
        };
        let cut = info.cut.clone();
        let mut handshake_permit = tokio::select! {
            permit = self.handshakes.acquire(info.peer.map(|peer| peer.ip())) => permit,
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => return,
            () = cut.closed() => return log_displaced(&info),
        };
        let handshake = self.complete_handshake(tls.current(), stream, &info);
        let result = tokio::select! {
            result = tokio::time::timeout(self.options.handshake_timeout, handshake) => result,
            // A client that has not completed the handshake has no request to finish.
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => return,
            () = cut.closed() => return log_displaced(&info),
            () = handshake_permit.wait_until_cut() => {
                return tracing::debug!(peer = peer_text(&info), "tls handshake cut: too many unfinished handshakes");
            }
        };
        drop(handshake_permit);
        let stream = match result {
            Ok(Some(stream)) => stream,
            Ok(None) => return,
            Err(_) => {
                self.options.handshake_errors.inc();
                return tracing::info!(peer = peer_text(&info), "tls handshake failed: timeout");
            }
        };
        let connection = stream.get_ref().1;
        info.tls = true;
        info.client_chain = tls::client_chain(connection);
        info.client_fingerprint = fingerprint(&info.client_chain);
        self.serve_http(stream, info, permit, phase).await;
    }

    /// Completes the TLS handshake. Returns None if the handshake failed or the client sent plain HTTP; the log has
    /// the reason.
    async fn complete_handshake<S>(
        &self,
        config: Arc<rustls::ServerConfig>,
        stream: S,
        info: &ConnectionInfo,
    ) -> Option<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + FirstByte + Unpin,
    {
        match stream.first_byte().await {
            Ok(Some(first_byte)) if plain_http::is_plain_http(first_byte) => {
                self.options.handshake_errors.inc();
                tracing::info!(peer = peer_text(info), "plain HTTP on the TLS port; responding 400");
                if let Err(error) = plain_http::respond(stream).await {
                    tracing::debug!(%error, "response to plain HTTP not sent");
                }
                return None;
            }
            // A peer that closes the connection or breaks it may be a port check.
            Ok(None) | Err(_) => {
                self.options.handshake_errors.inc();
                tracing::debug!(peer = peer_text(info), "tls handshake ended by the peer");
                return None;
            }
            Ok(Some(_)) => {}
        }
        let handshake = TlsAcceptor::from(config).accept(stream).await;
        let failure = |error| {
            self.options.handshake_errors.inc();
            log_handshake_error(info, &error);
        };
        handshake.map_err(failure).ok()
    }

    /// Serves HTTP on the stream. The first bytes of the client choose the protocol.
    async fn serve_http<S>(
        &self,
        stream: S,
        info: ConnectionInfo,
        permit: &ConnectionPermit,
        phase: watch::Receiver<Phase>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let cut = info.cut.clone();
        let info = Arc::new(info);
        let send_limit = SendLimit::default();
        let is_silent = AtomicBool::new(true);
        let cancellations = Arc::new(Cancellations::default());
        let first_request =
            FirstRequestTimeout { is_silent: &is_silent, timeout: self.options.header_timeout };
        let running_handlers = Arc::new(AtomicUsize::new(0));
        run_as_single_task(|spawner| async {
            let turn = spawner.turn();
            let service = service_fn(|request: Request<Incoming>| {
                is_silent.store(false, Ordering::Relaxed);
                let in_progress = permit.begin_request();
                let handler_count = Arc::clone(&running_handlers);
                let (handler, info, turn) = (Arc::clone(&self.handler), Arc::clone(&info), Arc::clone(&turn));
                let is_http2 = request.version() == Version::HTTP_2;
                let cancellations = is_http2.then(|| Arc::clone(&cancellations));
                let send_limit = is_http2.then(|| send_limit.clone());
                async move {
                    let running = cancellations.as_ref().map(|cancellations| cancellations.begin_request());
                    // After this wait, hyper drops a request that is already reset. hyper would run up to 16 pipelined
                    // HTTP/1.1 requests in one turn.
                    if is_http2 || turn.is_over() {
                        turn.wait_for_next_pass().await;
                    }
                    let response = match request_head::check(&request) {
                        Ok(()) => {
                            let _running = RunningHandler::begin(handler_count);
                            handler.handle(request, info).await
                        }
                        Err(error) => error.response(request.version()),
                    };
                    if let Some(running) = running {
                        running.complete();
                    }
                    Ok::<_, Infallible>(response.map(|body| {
                        let body = match send_limit {
                            Some(send_limit) => send_limit.meter(body),
                            None => MeteredBody::unmetered(body),
                        };
                        body.of_request(in_progress)
                    }))
                }
            });
            let stream = FairStream::new(stream, Arc::clone(&turn));
            let activity = Activity {
                transferred: stream.transferred(),
                running_handlers: Arc::clone(&running_handlers),
            };
            let driver =
                ConnectionDriver { phase, cut, first_request, cancellations: &cancellations, activity };
            let io = TokioIo::new(stream);
            let builder = connection_builder(&self.options, spawner);
            let connection = builder.serve_connection_with_upgrades(io, service);
            driver.run(connection, |connection| connection.graceful_shutdown()).await;
        })
        .await;
    }
}

/// Returns hyper's connection builder with the options of the server.
fn connection_builder(options: &ServerOptions, spawner: Spawner) -> auto::Builder<Spawner> {
    let max_header_bytes = usize::try_from(options.max_header_bytes).unwrap_or(usize::MAX);
    let mut builder = auto::Builder::new(spawner);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(options.header_timeout)
        .max_headers(MAX_HEADER_FIELDS)
        .max_buf_size(max_header_bytes.max(MIN_BUFFER_BYTES));
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(options.max_concurrent_streams)
        .max_header_list_size(options.max_header_bytes)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_ERROR_RESETS)
        .keep_alive_interval(options.ping.0)
        .keep_alive_timeout(options.ping.1);
    builder
}

/// The address of the peer for the log; empty on a unix socket.
fn peer_text(info: &ConnectionInfo) -> String {
    info.peer.map(|peer| peer.to_string()).unwrap_or_default()
}

fn log_displaced(info: &ConnectionInfo) {
    tracing::debug!(peer = peer_text(info), "silent connection closed in favour of a new one");
}

/// Logs the reason of a failed handshake with its peer. The log limits the rate of these lines.
///
/// A peer that closes the connection is logged at debug level only: it may be a port check.
fn log_handshake_error(info: &ConnectionInfo, error: &std::io::Error) {
    let peer = peer_text(info);
    if let Some(reason) = tls::client_certificate_error(error) {
        tracing::warn!(peer, reason, "tls handshake failed: client certificate rejected");
    } else if error.kind() == std::io::ErrorKind::UnexpectedEof {
        tracing::debug!(peer, %error, "tls handshake ended by the peer");
    } else {
        tracing::info!(peer, %error, "tls handshake failed");
    }
}

/// A handler that runs; counted until the value is dropped.
struct RunningHandler(Arc<AtomicUsize>);

impl RunningHandler {
    fn begin(count: Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        RunningHandler(count)
    }
}

impl Drop for RunningHandler {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The activity of a connection: bytes of its stream, and running handlers.
struct Activity {
    transferred: Arc<AtomicU64>,
    running_handlers: Arc<AtomicUsize>,
}

/// Detects a client that sends and reads little while no handler works for it.
struct StallDetector {
    activity: Activity,
    /// The start of the drain.
    start: Instant,
    /// The time and the transferred bytes of the last progress.
    progress: (Instant, u64),
}

impl StallDetector {
    fn new(activity: Activity) -> Self {
        let now = Instant::now();
        StallDetector { activity, start: now, progress: (now, 0) }
    }

    /// Records the start of the drain.
    fn begin(&mut self) {
        self.start = Instant::now();
        self.progress = (self.start, self.activity.transferred.load(Ordering::Relaxed));
    }

    /// Whether the connection made no progress for [`MAX_STALL`] after [`READ_GRACE`].
    fn is_stalled(&mut self) -> bool {
        let transferred = self.activity.transferred.load(Ordering::Relaxed);
        let (last, transferred_before) = self.progress;
        let has_progress = transferred.saturating_sub(transferred_before) >= MIN_PROGRESS;
        if has_progress || self.activity.running_handlers.load(Ordering::Relaxed) > 0 {
            self.progress = (Instant::now(), transferred);
            return false;
        }
        last.elapsed() >= MAX_STALL && self.start.elapsed() >= READ_GRACE + MAX_STALL
    }
}

/// Whether a connection has not sent a request yet, and the time limit for the first request.
struct FirstRequestTimeout<'a> {
    is_silent: &'a AtomicBool,
    timeout: Duration,
}

/// The events that shut down or cut a connection.
struct ConnectionDriver<'a> {
    phase: watch::Receiver<Phase>,
    cut: ConnectionCloser,
    first_request: FirstRequestTimeout<'a>,
    cancellations: &'a Cancellations,
    activity: Activity,
}

impl ConnectionDriver<'_> {
    /// Drives a connection until it ends, its handler cuts it, the server ends, or no first request arrives in
    /// time. While the server drains, a stalled connection ends, see [`StallDetector`]. A connection with too many
    /// cancelled requests takes no new ones.
    ///
    /// `stop` begins the graceful shutdown of the connection.
    async fn run<C, E>(self, connection: C, stop: impl Fn(Pin<&mut C>))
    where
        C: Future<Output = Result<(), E>>,
        E: std::fmt::Display,
    {
        let ConnectionDriver { mut phase, cut, first_request, cancellations, activity } = self;
        let mut stalls = StallDetector::new(activity);
        let mut next_stall_check = pin!(tokio::time::sleep(Duration::ZERO));
        let mut connection = pin!(connection);
        let mut deadline = pin!(tokio::time::sleep(first_request.timeout));
        let mut is_past_deadline = false;
        // Whether the limit of cancelled requests was exceeded before.
        let mut has_excess = false;
        let mut handled = Phase::Serving;
        loop {
            tokio::select! {
                biased;
                result = connection.as_mut() => {
                    if let Err(e) = result {
                        tracing::debug!(error = %e, "connection ended with an error");
                    }
                    return;
                }
                () = cut.closed() => return tracing::debug!("connection cut"),
                () = cancellations.wait_until_exceeded() => {
                    if has_excess {
                        return tracing::debug!("connection cut: the client continues to cancel requests");
                    }
                    tracing::debug!("connection takes no new requests: the client cancels too many");
                    has_excess = true;
                    stop(connection.as_mut());
                }
                () = deadline.as_mut(), if !is_past_deadline => {
                    if first_request.is_silent.load(Ordering::Relaxed) {
                        return tracing::debug!("connection closed: no request in time");
                    }
                    is_past_deadline = true;
                }
                () = next_stall_check.as_mut(), if handled == Phase::Draining => {
                    if stalls.is_stalled() {
                        return tracing::debug!("connection cut: the client stalls the shutdown");
                    }
                    next_stall_check.as_mut().reset(Instant::now() + STALL_CHECK_INTERVAL);
                }
                changed = phase.wait_for(|phase| *phase != handled) => {
                    match changed.map(|phase| *phase) {
                        Ok(Phase::Draining) => {
                            handled = Phase::Draining;
                            stalls.begin();
                            stop(connection.as_mut());
                        }
                        Ok(Phase::Ended) | Err(_) => return,
                        Ok(Phase::Serving) => handled = Phase::Serving,
                    }
                }
            }
        }
    }
}

/// SHA-256 of a certificate chain, in which each certificate follows its length; None for an empty chain.
fn fingerprint(chain: &[Bytes]) -> Option<[u8; 32]> {
    if chain.is_empty() {
        return None;
    }
    let mut context = digest::Context::new(&digest::SHA256);
    for certificate in chain {
        context.update(&certificate.len().to_be_bytes());
        context.update(certificate);
    }
    context.finish().as_ref().try_into().ok()
}

#[cfg(test)]
#[path = "tests/limits.rs"]
mod limits;

#[cfg(test)]
#[path = "tests/server.rs"]
mod tests;
