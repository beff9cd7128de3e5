//! The open connections of one target.
//!
//! # Contract
//!
//! A request takes an HTTP/2 connection with a free stream, or an idle HTTP/1.1 connection, or a new connection. A
//! connection in HTTP/1.1 returns to the pool when its response is complete. A connection with an older client
//! certificate is not used again. A connection without requests for [`IDLE_TIMEOUT`] is closed.

use std::pin::Pin;
use std::sync::Arc;
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

use super::{
    Connection, MAX_HEAD_BYTES, MAX_STREAMS, STREAM_WINDOW, Transport, TransportError, http1_builder,
};
use crate::Target;
use crate::target::Scheme;

/// Maximum number of open connections of one target, so that a slow target leaves connections to the others.
pub(super) const MAX_TARGET_CONNECTIONS: usize = 1000;
/// Time after which an idle connection is closed.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Interval at which a pool closes its connections that have been idle for long.
const IDLE_CHECK_INTERVAL: Duration = Duration::from_secs(15);
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
    streams: Arc<Mutex<Streams>>,
    generation: u64,
}

/// The streams of an HTTP/2 connection.
#[derive(Default)]
struct Streams {
    /// Number of streams in use.
    used: u32,
    /// The end of the last stream; None while a stream is in use.
    idle_since: Option<Instant>,
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
        transport: &Transport,
        target: &Target,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, TransportError> {
        let generation = transport.dialer.generation();
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
        let permit = transport.permit(target, self).await?;
        let connection = transport.dialer.connect(target, permit).await?;
        let generation = connection.generation;
        let sender = self.open(connection, target).await?;
        self.exchange(sender, target, request, generation).await.map_err(|failure| failure.error)
    }

    /// Closes the connections without requests; returns their number. They end soon after.
    pub(super) fn close_idle(&self) -> usize {
        self.connections.lock().remove_idle()
    }

    /// Takes an open connection of a generation of the client certificate.
    fn take(&self, generation: u64) -> Option<Sender> {
        let mut connections = self.connections.lock();
        connections.remove_unusable(generation);
        connections.remove_expired(Instant::now());
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
            self.spawn(connection);
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
        self.spawn(connection);
        let multiplexed = Multiplexed { sender, streams: Arc::default(), generation };
        let stream = Stream::begin(&multiplexed.streams).unwrap_or_default();
        self.connections.lock().multiplexed.push(multiplexed.clone());
        Ok(Sender::Http2(multiplexed, stream))
    }

    /// Runs a connection in a task, which also closes the connections of the pool that have been idle for long.
    fn spawn<E>(&self, connection: impl Future<Output = Result<(), E>> + Send + 'static) {
        let connections = Arc::downgrade(&self.connections);
        tokio::spawn(async move {
            let mut connection = std::pin::pin!(connection);
            while tokio::time::timeout(IDLE_CHECK_INTERVAL, &mut connection).await.is_err() {
                if let Some(connections) = connections.upgrade() {
                    connections.lock().remove_expired(Instant::now());
                }
            }
        });
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
        self.idle.retain(|idle| idle.generation == generation && idle.sender.is_ready());
        self.multiplexed
            .retain(|connection| connection.generation == generation && !connection.sender.is_closed());
    }

    /// Removes the connections that are idle for [`IDLE_TIMEOUT`].
    fn remove_expired(&mut self, now: Instant) {
        let is_recent = |since: Instant| now.saturating_duration_since(since) < IDLE_TIMEOUT;
        self.idle.retain(|idle| is_recent(idle.since));
        self.multiplexed.retain(|connection| connection.streams.lock().idle_since.is_none_or(is_recent));
    }

    /// Removes the connections without requests; returns their number.
    fn remove_idle(&mut self) -> usize {
        let before = self.idle.len() + self.multiplexed.len();
        self.idle.clear();
        self.multiplexed.retain(|connection| connection.streams.lock().idle_since.is_none());
        before - self.multiplexed.len()
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
struct Stream(Arc<Mutex<Streams>>);

impl Stream {
    /// Begins a stream; None if the connection has no free stream.
    fn begin(streams: &Arc<Mutex<Streams>>) -> Option<Self> {
        let mut counted = streams.lock();
        if counted.used >= MAX_STREAMS {
            return None;
        }
        counted.used += 1;
        counted.idle_since = None;
        drop(counted);
        Some(Stream(Arc::clone(streams)))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let mut streams = self.0.lock();
        streams.used = streams.used.saturating_sub(1);
        if streams.used == 0 {
            streams.idle_since = Some(Instant::now());
        }
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

#[cfg(test)]
mod tests {
    use hyper_util::rt::TokioIo;
    use tokio::io::DuplexStream;

    use super::*;

    const GENERATION: u64 = 0;

    /// A connection in HTTP/2, the end of the backend, and the task of the connection.
    async fn multiplexed() -> (Multiplexed, DuplexStream, tokio::task::JoinHandle<()>) {
        let (client, backend) = tokio::io::duplex(1 << 16);
        let handshake = http2::Builder::new(TokioExecutor::new()).handshake::<_, Body>(TokioIo::new(client));
        let (sender, connection) = handshake.await.unwrap();
        let task = tokio::spawn(async move { drop(connection.await) });
        (Multiplexed { sender, streams: Arc::default(), generation: GENERATION }, backend, task)
    }

    #[tokio::test]
    async fn http2_connection_ends_after_idle_time_without_streams() {
        let (connection, _backend, task) = multiplexed().await;
        let streams = Arc::clone(&connection.streams);
        let (first, second) = (Stream::begin(&streams).unwrap(), Stream::begin(&streams).unwrap());
        let mut connections = Connections::default();
        connections.multiplexed.push(connection);
        let later = || Instant::now() + IDLE_TIMEOUT;
        drop(first);
        connections.remove_expired(later());
        assert_eq!(connections.multiplexed.len(), 1, "a stream is in use");
        drop(second);
        connections.remove_expired(Instant::now());
        assert_eq!(connections.multiplexed.len(), 1);
        let reused = Stream::begin(&streams).unwrap();
        connections.remove_expired(later());
        assert_eq!(connections.multiplexed.len(), 1, "a stream has begun again");
        drop(reused);
        connections.remove_expired(later());
        assert!(connections.multiplexed.is_empty());
        tokio::time::timeout(Duration::from_secs(30), task).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn only_connections_without_requests_are_closed_at_the_limit() {
        let (client, _backend) = tokio::io::duplex(1 << 16);
        let (sender, _connection) = http1_builder().handshake(TokioIo::new(client)).await.unwrap();
        let (used, _used_backend, _used_task) = multiplexed().await;
        let (unused, _unused_backend, _unused_task) = multiplexed().await;
        let _stream = Stream::begin(&used.streams).unwrap();
        drop(Stream::begin(&unused.streams));
        let pool = Pool::default();
        let mut connections = pool.connections.lock();
        connections.idle.push(Idle { sender, since: Instant::now(), generation: GENERATION });
        connections.multiplexed.extend([used, unused]);
        drop(connections);
        assert_eq!((pool.close_idle(), pool.close_idle()), (2, 0));
        assert_eq!(pool.connections.lock().multiplexed.len(), 1);
    }
}
