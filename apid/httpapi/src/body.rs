//! Request bodies within size, time and memory limits.
//!
//! # Contract
//!
//! [`RequestBody::receive`] reads a body within the share of its user. It waits until the share has room. It
//! rejects a large slow body when the slow bodies in progress reach the limit. After the start of the shutdown,
//! it rejects a body that does not arrive within [`STOPPING_TIMEOUT`].

use std::time::Duration;

use apimachinery::codec::Limits;
use apimachinery::status::{Reason, Status};
use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt as _, StreamExt as _};
use http_body::Frame;
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use hyper::body::Incoming;
use serving::body::{Body, BodyError, ReadError};
use tokio::sync::watch;

use crate::in_flight::too_many_requests;
use crate::shares::{MAX_SMALL_BODY, Reservation, TooManySlowBodies, UserShare};

/// Maximum time for a body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum time for a body to arrive after the start of the shutdown.
const STOPPING_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum number of buffered bytes of a forwarded body of unknown size.
const MAX_FIRST_BYTES: usize = Limits::BODY.bytes;
/// Maximum time for the arrival of the buffered bytes of a forwarded body.
const FIRST_TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which a body counts as slow.
const SLOW_AFTER: Duration = Duration::from_secs(1);
/// Maximum number of bytes that apid drains from a body that no verb has read.
const MAX_DRAINED_BYTES: usize = 256 * 1024;
/// Maximum time for draining a body that no verb has read.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// A request body that has not been read.
pub enum RequestBody {
    /// A body that arrives on a connection.
    Incoming(UnreadBody),
    /// A body whose first bytes are buffered.
    Partial(PartialBody),
    /// A body in memory, for requests of the process itself and for tests.
    Whole(Bytes),
}

/// The buffered first bytes of a body and its unread rest; see [`RequestBody::receive_first`].
pub struct PartialBody {
    first: ReceivedBody,
    rest: UnreadBody,
}

/// The result of [`RequestBody::receive_first`].
pub(super) enum FirstReceived {
    /// The whole body.
    Whole(ReceivedBody),
    /// A body above the limit of bodies, or a body that has not arrived within [`FIRST_TIMEOUT`].
    Unfinished(RequestBody),
}

/// The bytes of a body, which count against the share of their user until they are dropped.
pub(super) struct ReceivedBody {
    bytes: Bytes,
    /// None for an empty body.
    _reservation: Option<Reservation>,
}

impl ReceivedBody {
    /// An empty body.
    pub(super) const EMPTY: Self = ReceivedBody { bytes: Bytes::new(), _reservation: None };
}

impl AsRef<[u8]> for ReceivedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl std::ops::Deref for ReceivedBody {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

impl RequestBody {
    /// Reads the body when the share of its user has room for it.
    ///
    /// # Errors
    ///
    /// Errors of [`RequestBody::read`]. 429 for a slow body above the limits of the user or of the server; 503
    /// for a body that does not arrive during the shutdown. `stopping` becomes true at the shutdown.
    pub(super) async fn receive(
        self,
        share: &UserShare,
        stopping: &watch::Receiver<bool>,
    ) -> Result<ReceivedBody, Status> {
        let max = self.max_bytes();
        if max == 0 {
            return Ok(ReceivedBody::EMPTY);
        }
        let received = async {
            tokio::select! {
                biased;
                received = self.receive_bytes(max, share) => received,
                () = shutdown_timeout(stopping, STOPPING_TIMEOUT) => Err(stopping_status()),
            }
        };
        // Boxed, because requests without a body do not need the memory of this future.
        Box::pin(received).await
    }

    /// Reads a body that is forwarded. Unlike [`RequestBody::receive`], accepts a body above the limit of bodies and a
    /// body of unknown size that has not arrived within [`FIRST_TIMEOUT`].
    ///
    /// # Errors
    ///
    /// Those of [`RequestBody::receive`] for a body of known size within the limit. 400 if the connection ends within the
    /// body; 503 for a body that does not arrive during the shutdown.
    pub(super) async fn receive_first(
        self,
        share: &UserShare,
        stopping: &watch::Receiver<bool>,
    ) -> Result<FirstReceived, Status> {
        let body = match self {
            RequestBody::Incoming(UnreadBody(Some(ref body)))
                if http_body::Body::size_hint(body).exact().is_none() =>
            {
                self
            }
            sized if sized.has_size_within_limit() => {
                return Ok(FirstReceived::Whole(sized.receive(share, stopping).await?));
            }
            long => return Ok(FirstReceived::Unfinished(long)),
        };
        let received = async {
            tokio::select! {
                biased;
                received = body.receive_beginning(share) => received,
                () = shutdown_timeout(stopping, STOPPING_TIMEOUT) => Err(stopping_status()),
            }
        };
        Box::pin(received).await
    }

    /// Reads at most [`MAX_FIRST_BYTES`] of a body of unknown size.
    async fn receive_beginning(self, share: &UserShare) -> Result<FirstReceived, Status> {
        let RequestBody::Incoming(unread) = self else { return Ok(FirstReceived::Unfinished(self)) };
        let Some(mut rest) = unread.take() else { return Ok(FirstReceived::Whole(ReceivedBody::EMPTY)) };
        let mut reservation = share.reserve_body(MAX_FIRST_BYTES).await;
        let mut bytes = BytesMut::new();
        let reading = async {
            let broken = |error: hyper::Error| {
                Status::bad_request(format!("reading the body of the request failed: {error}"))
            };
            while bytes.len() < MAX_FIRST_BYTES {
                let Some(frame) = rest.frame().await else { return Ok(true) };
                let frame = frame.map_err(broken)?;
                bytes.extend_from_slice(frame.data_ref().map_or(&[], Bytes::as_ref));
            }
            Ok::<bool, Status>(false)
        };
        let is_whole = tokio::time::timeout(FIRST_TIMEOUT, reading).await.unwrap_or(Ok(false))?;
        if let Some(reservation) = &mut reservation {
            reservation.shrink(bytes.len());
        }
        let first = ReceivedBody { bytes: bytes.freeze(), _reservation: reservation };
        Ok(match is_whole {
            true => FirstReceived::Whole(first),
            false => {
                let rest = UnreadBody(Some(rest));
                FirstReceived::Unfinished(RequestBody::Partial(PartialBody { first, rest }))
            }
        })
    }

    /// Returns the body as a stream, without a limit.
    pub(super) fn into_stream(self) -> Body {
        match self {
            RequestBody::Whole(bytes) => Body::from(bytes),
            RequestBody::Partial(PartialBody { first, rest }) => {
                // A slice keeps its owner, so the bytes count against the share until all of them are sent.
                let first = (!first.is_empty()).then(|| Ok(Frame::data(Bytes::from_owner(first))));
                let rest = futures_util::stream::iter(rest.take()).flat_map(BodyStream::new);
                let rest = rest.map(|frame| frame.map_err(BodyError::from));
                Body::stream(StreamBody::new(futures_util::stream::iter(first).chain(rest)))
            }
            RequestBody::Incoming(unread) => match unread.take() {
                Some(body) if !http_body::Body::is_end_stream(&body) => Body::stream(body),
                _ => Body::empty(),
            },
        }
    }

    /// Whether the size of the body is known and within the limit of bodies.
    pub(super) fn has_size_within_limit(&self) -> bool {
        let size = match self {
            RequestBody::Whole(bytes) => Some(bytes.len() as u64),
            RequestBody::Partial(_) => None,
            RequestBody::Incoming(UnreadBody(None)) => Some(0),
            RequestBody::Incoming(UnreadBody(Some(body))) => http_body::Body::size_hint(body).exact(),
        };
        size.is_some_and(|size| size <= Limits::BODY.bytes as u64)
    }

    /// Whether the request has no body.
    pub(super) fn is_empty(&self) -> bool {
        self.max_bytes() == 0
    }

    /// Reads a body of at most `max` bytes.
    async fn receive_bytes(self, max: usize, share: &UserShare) -> Result<ReceivedBody, Status> {
        let mut reservation = share.reserve_body(max).await;
        if max <= MAX_SMALL_BODY {
            return Ok(ReceivedBody { bytes: self.read().await?, _reservation: reservation });
        }
        let mut read = std::pin::pin!(self.read());
        let bytes = match tokio::time::timeout(SLOW_AFTER, &mut read).await {
            Ok(result) => result?,
            Err(_elapsed) => {
                let reservation = share.reserve_slow_body(max);
                let _slow_reservation = reservation.map_err(|TooManySlowBodies| {
                    too_many_requests("too many request bodies arrive slowly")
                })?;
                read.await?
            }
        };
        if let Some(reservation) = &mut reservation {
            reservation.shrink(bytes.len());
        }
        Ok(ReceivedBody { bytes, _reservation: reservation })
    }

    /// Returns the maximum number of bytes to read: the Content-Length, at most the limit of a body. Without
    /// a Content-Length, the maximum is this limit.
    fn max_bytes(&self) -> usize {
        let limit = Limits::BODY.bytes;
        match self {
            RequestBody::Whole(bytes) => bytes.len().min(limit),
            RequestBody::Partial(_) => limit,
            RequestBody::Incoming(UnreadBody(None)) => 0,
            RequestBody::Incoming(UnreadBody(Some(body))) if http_body::Body::is_end_stream(body) => 0,
            RequestBody::Incoming(UnreadBody(Some(body))) => {
                let announced = http_body::Body::size_hint(body).exact();
                announced
                    .and_then(|bytes| usize::try_from(bytes).ok())
                    .map_or(limit, |bytes| bytes.min(limit))
            }
        }
    }

    /// Reads the body.
    ///
    /// # Errors
    ///
    /// 413 above 3 MiB (requirements D-ERR-35), 400 if the connection ends within the body, 504 if the body
    /// does not arrive in time.
    async fn read(self) -> Result<Bytes, Status> {
        let limit = Limits::BODY.bytes;
        let read = match self {
            RequestBody::Incoming(unread) => match unread.take() {
                Some(body) => serving::body::read(body, limit, BODY_TIMEOUT).await,
                None => Ok(Bytes::new()),
            },
            // Only forwarded bodies are buffered in part, and a forwarded body becomes a stream.
            RequestBody::Partial(_) => Err(ReadError::TooLarge(limit)),
            RequestBody::Whole(bytes) if bytes.len() > limit => Err(ReadError::TooLarge(limit)),
            RequestBody::Whole(bytes) => Ok(bytes),
        };
        read.map_err(|error| match error {
            ReadError::TooLarge(limit) => {
                Status::too_large(format!("Request entity too large: limit is {limit}"))
            }
            ReadError::Timeout => {
                Status::failure(Reason::Timeout, "the body of the request did not arrive in time")
            }
            ReadError::Broken(reason) => {
                Status::bad_request(format!("reading the body of the request failed: {reason}"))
            }
        })
    }
}

fn stopping_status() -> Status {
    Status::unavailable("the server is stopping and the body of the request has not arrived", 1)
}

/// Returns at a time after the start of the shutdown.
async fn shutdown_timeout(stopping: &watch::Receiver<bool>, timeout: Duration) {
    let is_stopping = stopping.clone().wait_for(|stopping| *stopping).await.is_ok();
    if !is_stopping {
        // The process has no shutdown.
        std::future::pending::<()>().await;
    }
    tokio::time::sleep(timeout).await;
}

impl From<Incoming> for RequestBody {
    fn from(body: Incoming) -> Self {
        RequestBody::Incoming(UnreadBody(Some(body)))
    }
}

/// The unread body of a request.
///
/// apid may respond before it reads the body (405, 404, 403). Dropping the value drains the bytes that have
/// arrived, and the rest in the background, within limits. Otherwise HTTP/2 resets a stream whose body is
/// unread, and some clients then lose the response.
pub struct UnreadBody(Option<Incoming>);

impl UnreadBody {
    fn take(mut self) -> Option<Incoming> {
        self.0.take()
    }
}

impl Drop for UnreadBody {
    fn drop(&mut self) {
        if let Some(body) = self.0.take().filter(|body| !http_body::Body::is_end_stream(body)) {
            let mut drain = Box::pin(serving::body::drain(body, MAX_DRAINED_BYTES, DRAIN_TIMEOUT));
            // The body of a cancelled request ends at once.
            if drain.as_mut().now_or_never().is_none() {
                tokio::spawn(drain);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::pending;

    use futures_util::stream;
    use http::{Request, Response};
    use http_body::Frame;
    use http_body_util::{Empty, StreamBody};
    use hyper::service::service_fn;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::sync::{mpsc, oneshot};

    use super::*;

    /// Returns the number of tasks that the drop of a body adds.
    fn count_tasks_of_drop(body: Incoming) -> usize {
        let alive_tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        let before = alive_tasks();
        drop(UnreadBody(Some(body)));
        alive_tasks() - before
    }

    #[tokio::test]
    async fn wait_for_body_ends_after_shutdown_timeout() {
        const TIMEOUT: Duration = Duration::from_millis(20);
        let (sender, stopping) = watch::channel(false);
        let wait = |receiver: watch::Receiver<bool>| async move {
            tokio::time::timeout(TIMEOUT * 3, shutdown_timeout(&receiver, TIMEOUT)).await
        };
        assert!(wait(stopping.clone()).await.is_err(), "the server runs");
        sender.send_replace(true);
        let stopped = tokio::time::Instant::now();
        shutdown_timeout(&stopping, TIMEOUT).await;
        assert!(stopped.elapsed() >= TIMEOUT);
        let (sender, no_shutdown) = watch::channel(false);
        drop(sender);
        assert!(wait(no_shutdown).await.is_err(), "the process has no shutdown");
    }

    #[tokio::test]
    async fn unread_body_of_cancelled_request_needs_no_task() {
        let (client, server_stream) = tokio::io::duplex(64 * 1024);
        // Each body, and a receiver that ends when the handler is dropped.
        let (bodies, mut received_bodies) = mpsc::unbounded_channel();
        let service = service_fn(move |request: Request<Incoming>| {
            let (drop_signal, handler_end) = oneshot::channel::<()>();
            bodies.send((request.into_body(), handler_end)).unwrap();
            async move {
                let _drop_signal = drop_signal;
                pending::<Result<Response<Empty<Bytes>>, Infallible>>().await
            }
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        tokio::spawn(server.serve_connection(TokioIo::new(server_stream), service));
        let (mut sender, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(client)).await.unwrap();
        tokio::spawn(connection);
        let mut send = || {
            let body = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
            tokio::spawn(sender.send_request(Request::new(body)))
        };
        let (_open, cancelled) = (send(), send());
        let (open_body, _) = received_bodies.recv().await.unwrap();
        let (cancelled_body, handler_end) = received_bodies.recv().await.unwrap();
        cancelled.abort();
        assert!(handler_end.await.is_err(), "the server has dropped the handler");
        assert_eq!(count_tasks_of_drop(cancelled_body), 0);
        assert_eq!(count_tasks_of_drop(open_body), 1);
    }
}
