//! The open connections of one target.
//!
//! # Contract
//!
//! A request takes an HTTP/2 connection with a free stream, or an idle HTTP/1.1 connection, or a new connection. A
//! connection in HTTP/1.1 returns to the pool when its response is complete. A connection with an older client
//! certificate is not used again.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use http_body::{Body as _, Frame, SizeHint};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use parking_lot::Mutex;
use serving::body::Body;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::{Connection, Dialer, MAX_HEAD_BYTES, MAX_STREAMS, STREAM_WINDOW, TransportError, http1_builder};
use crate::Target;
use crate::target::Scheme;

/// Maximum number of open connections of one target, so that a slow target leaves connections to the others.
pub(super) const MAX_TARGET_CONNECTIONS: usize = 1000;
/// Time after which an idle connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum number of idle HTTP/1.1 connections of one target.
const MAX_IDLE_CONNECTIONS: usize = 25;
/// Maximum number of reused connections that a request tries before it gets a new one.
const MAX_REUSED_CONNECTIONS: usize = 4;
/// Interval of pings on a silent HTTP/2 connection.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Time for the response to a ping, after which the connection is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(15);

/// The connections of one target.
pub(super) struct Pool {
    connections: Arc<Mutex<Connections>>,
    /// The free connections of the target.
    pub(super) free: Arc<Semaphore>,
}

impl Default for Pool {
    fn default() -> Self {
        Pool { connections: Arc::default(), free: Arc::new(Semaphore::new(MAX_TARGET_CONNECTIONS)) }
    }
}

#[derive(Default)]
struct Connections {
    idle: Vec<Idle>,
    multiplexed: Vec<Multiplexed>,
}

/// An HTTP/1.1 connection without a request.
struct Idle {
    sender: http1::SendRequest<Body>,
    since: Instant,
    generation: u64,
}

/// An HTTP/2 connection.
#[derive(Clone)]
struct Multiplexed {
    sender: http2::SendRequest<Body>,
    /// Number of streams in use.
    streams: Arc<AtomicUsize>,
    generation: u64,
}

/// A connection that a request may use.
enum Sender {
    Http1(http1::SendRequest<Body>),
    Http2(Multiplexed, Stream),
}

impl Pool {
    /// Sends a request and returns the response when its head has arrived.
    pub(super) async fn send(
        &self,
        dialer: &Dialer,
        target: &Target,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, TransportError> {
        let generation = dialer.generation();
        for _ in 0..MAX_REUSED_CONNECTIONS {
            let Some(sender) = self.take(generation) else { break };
            let replay = replayable(&request);
            let failure = match self.exchange(sender, target, request, generation).await {
                Ok(response) => return Ok(response),
                Err(failure) => failure,
            };
            // The backend may have closed the idle connection while the request was on the way.
            let is_closed = matches!(failure.error, TransportError::Closed | TransportError::Reset(_));
            match (failure.unsent, replay) {
                (Some(unsent), _) => request = unsent,
                (None, Some(replay)) if is_closed => {
                    request = replay;
                    break;
                }
                _ => return Err(failure.error),
            }
        }
        let connection = dialer.connect(target, &self.free).await?;
        let generation = connection.generation;
        let sender = self.open(connection, target).await?;
        self.exchange(sender, target, request, generation).await.map_err(|failure| failure.error)
    }

    /// Takes an open connection of a generation of the client certificate.
    fn take(&self, generation: u64) -> Option<Sender> {
        let mut connections = self.connections.lock();
        connections.remove_unusable(generation);
        for connection in &connections.multiplexed {
            if let Some(stream) = Stream::begin(&connection.streams) {
                return Some(Sender::Http2(connection.clone(), stream));
            }
        }
        connections.idle.pop().map(|idle| Sender::Http1(idle.sender))
    }

    /// Begins HTTP on a new connection.
    async fn open(&self, connection: Connection, target: &Target) -> Result<Sender, TransportError> {
        let Connection { stream, is_http2, generation } = connection;
        let broken = |error: hyper::Error| TransportError::of_exchange(target, &error);
        if !is_http2 {
            let (sender, connection) = http1_builder().handshake(stream).await.map_err(broken)?;
            // The connection ends when its sender is dropped; its errors also reach the request.
            tokio::spawn(async move { drop(connection.await) });
            return Ok(Sender::Http1(sender));
        }
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(STREAM_WINDOW * MAX_STREAMS)
            .max_header_list_size(u32::try_from(MAX_HEAD_BYTES).unwrap_or(u32::MAX))
            .max_send_buf_size(MAX_HEAD_BYTES)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        let (sender, connection) = builder.handshake(stream).await.map_err(broken)?;
        tokio::spawn(async move { drop(connection.await) });
        let multiplexed = Multiplexed { sender, streams: Arc::default(), generation };
        let stream = Stream::begin(&multiplexed.streams).unwrap_or_default();
        self.connections.lock().multiplexed.push(multiplexed.clone());
        Ok(Sender::Http2(multiplexed, stream))
    }

    async fn exchange(
        &self,
        sender: Sender,
        target: &Target,
        request: Request<Body>,
        generation: u64,
    ) -> Result<Response<Body>, Failure> {
        let failure = |mut failed: hyper::client::conn::TrySendError<Request<Body>>| {
            let unsent = failed.take_message();
            Failure { error: TransportError::of_exchange(target, failed.error()), unsent }
        };
        match sender {
            Sender::Http1(mut sender) => {
                let response = sender.try_send_request(request).await.map_err(failure)?;
                if response.status() == StatusCode::SWITCHING_PROTOCOLS {
                    return Err(TransportError::UnexpectedUpgrade.into());
                }
                self.return_when_complete(sender, generation);
                Ok(response.map(Body::stream))
            }
            Sender::Http2(mut connection, stream) => {
                let request = with_absolute_uri(request, target)?;
                let response = connection.sender.try_send_request(request).await.map_err(failure)?;
                Ok(response.map(|body| Body::stream(StreamBody { body, _stream: stream })))
            }
        }
    }

    /// Puts a connection back when its response is complete. A connection with an incomplete response is dropped.
    fn return_when_complete(&self, mut sender: http1::SendRequest<Body>, generation: u64) {
        let connections = Arc::downgrade(&self.connections);
        tokio::spawn(async move {
            if sender.ready().await.is_err() {
                return;
            }
            if let Some(connections) = connections.upgrade() {
                let mut connections = connections.lock();
                if connections.idle.len() < MAX_IDLE_CONNECTIONS {
                    connections.idle.push(Idle { sender, since: Instant::now(), generation });
                }
            }
        });
    }
}

impl Connections {
    fn remove_unusable(&mut self, generation: u64) {
        let now = Instant::now();
        self.idle.retain(|idle| {
            idle.generation == generation && idle.sender.is_ready() && now - idle.since < IDLE_TIMEOUT
        });
        self.multiplexed
            .retain(|connection| connection.generation == generation && !connection.sender.is_closed());
    }
}

/// A failed exchange.
struct Failure {
    error: TransportError,
    /// The request, if the connection has sent nothing of it.
    unsent: Option<Request<Body>>,
}

impl From<TransportError> for Failure {
    fn from(error: TransportError) -> Self {
        Failure { error, unsent: None }
    }
}

/// Returns a copy of a request that may be sent twice: a read without a body.
fn replayable(request: &Request<Body>) -> Option<Request<Body>> {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
    if !is_read || !request.body().is_end_stream() {
        return None;
    }
    let mut copy = Request::new(Body::empty());
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

/// Moves the header `Host` to the URI, from which HTTP/2 takes `:authority`.
fn with_absolute_uri(mut request: Request<Body>, target: &Target) -> Result<Request<Body>, TransportError> {
    let invalid = |error: &dyn std::fmt::Display| TransportError::Request(error.to_string());
    let host = request.headers_mut().remove(http::header::HOST);
    let authority = match host.as_ref().map(|host| host.to_str()) {
        Some(host) => host.map_err(|error| invalid(&error))?.to_owned(),
        None => target.authority(),
    };
    let scheme = if target.scheme() == Scheme::Http { "http" } else { "https" };
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str()).to_owned();
    let uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(path).build();
    *request.uri_mut() = uri.map_err(|error| invalid(&error))?;
    *request.version_mut() = Version::HTTP_2;
    Ok(request)
}

/// A stream of an HTTP/2 connection in use.
#[derive(Default)]
struct Stream(Arc<AtomicUsize>);

impl Stream {
    /// Begins a stream; None if the connection has no free stream.
    fn begin(streams: &Arc<AtomicUsize>) -> Option<Self> {
        let begin = |used: usize| (used < MAX_STREAMS as usize).then_some(used + 1);
        streams.fetch_update(Ordering::Relaxed, Ordering::Relaxed, begin).ok()?;
        Some(Stream(Arc::clone(streams)))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The body of a response on an HTTP/2 stream.
struct StreamBody {
    body: Incoming,
    _stream: Stream,
}

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
