//! The client of `Decide.Stream`: one long-lived stream with many concurrent requests.
//!
//! # Contract
//!
//! [`Client::connect`] returns at once and keeps a stream open, reconnecting with back-off. A request waits
//! for a short time for a stream that is being reopened, then for its response. A request without a response
//! fails with an [`AuthdError`].
//!
//! # Concurrency
//!
//! Requests go through one queue, and all queued requests go out in one write. The stream has its own
//! connection and one task, which writes the requests, reads the responses and wakes the waiting callers
//! (see [`serving::single_task`]). The stream serves requests only after its response headers have shown the
//! names and the protocol of apid. A response of any other call must come from the same process. When the stream
//! breaks, all pending requests fail at once; with several authds, each request is sent once more. The
//! response to a request whose future was dropped is discarded. All other gRPC calls share a second connection.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use authproto::auth::authn_client::AuthnClient;
use authproto::auth::authz_client::AuthzClient;
use authproto::auth::decide_client::DecideClient;
use authproto::auth::decide_request::Query;
use authproto::auth::review_client::ReviewClient;
use authproto::auth::{
    CoversRequest, CoversResponse, DecideRequest, DecideResponse, IssueTokenRequest, IssueTokenResponse,
    KeysRequest, KeysResponse, ReviewRequest, ReviewResponse,
};
use authproto::health::HealthCheckRequest;
use authproto::health::health_client::HealthClient;
use futures_util::FutureExt as _;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use serving::backoff::Backoff;
use serving::single_task::{Spawner, run_as_single_task};
use serving::waits::wait_for_process;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::transport::authd_api::{AuthdApi, AuthdError};
use crate::transport::connection::{AuthdConnection, AuthdProblem};
use crate::transport::peer::ExpectedAuthd;
use crate::transport::servers::{ApidName, AuthdServer, Connection, FIRST_PATIENCE, Servers};

/// Maximum number of queued requests to the stream. While the queue is full, further requests wait.
const QUEUE: usize = 4096;
/// The origin in the URIs of gRPC requests. The socket, not this name, determines the destination.
const ORIGIN: &str = "http://authd";
/// The interval of keep-alive pings.
///
/// An authd that hangs counts as lost when a ping has no response within [`KEEP_ALIVE_TIMEOUT`], so the
/// cached responses of apid expire.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum time that a request waits for a stream that is being reopened.
const REOPEN_TIMEOUT: Duration = Duration::from_millis(300);
/// The pauses before a reconnection.
///
/// The pauses are short: without authd, apid serves only requests with cached decisions, and a failed
/// connection to a Unix socket costs only some microseconds.
const BACKOFF: Backoff = Backoff { first: Duration::from_millis(5), longest: Duration::from_millis(20) };
/// The pauses before a connection to the next of several authds: all of them may be gone for long.
const BACKOFF_OF_SEVERAL: Backoff =
    Backoff { first: Duration::from_millis(5), longest: Duration::from_millis(500) };
/// The time after which the end of a stream is first taken for the end of its connection, not of authd. An authd whose streams
/// end sooner, one after the other, is left.
pub(crate) const PROVEN: Duration = Duration::from_secs(1);
/// The pause after a mismatch with authd: each attempt fails until the flags of a process change.
const REJECTED_PAUSE: Duration = Duration::from_secs(1);
/// Maximum size of a message in bytes: the size of a review with the largest request body, and a margin.
const LARGEST_MESSAGE: usize = 16 * 1024 * 1024;
/// The flow-control window in bytes, large enough for a burst of requests.
const WINDOW: u32 = 4 * 1024 * 1024;

/// A client of authd that keeps a decision stream open.
pub(crate) struct Client {
    open: watch::Receiver<Option<OpenStream>>,
    timeout: Duration,
    expected: ExpectedAuthd,
    connection: Arc<AuthdConnection>,
    servers: Arc<Servers>,
}

/// A channel whose requests name this process.
pub(crate) type NamedChannel = InterceptedService<Channel, ApidName>;

/// The open stream, and the channel for gRPC calls outside the stream.
#[derive(Clone)]
struct OpenStream {
    requests: mpsc::Sender<DecideRequest>,
    pending: Arc<PendingRequests>,
    channel: NamedChannel,
    /// The process that serves the stream.
    instance: Arc<str>,
    /// The time of the opening.
    since: Instant,
}

/// The requests that have no response yet, by id.
struct PendingRequests {
    next_id: AtomicU64,
    /// None after the stream is closed: a late request fails at once.
    waiting: Mutex<Option<HashMap<u64, oneshot::Sender<DecideResponse>>>>,
}

impl PendingRequests {
    fn new() -> Self {
        PendingRequests { next_id: AtomicU64::new(0), waiting: Mutex::new(Some(HashMap::new())) }
    }

    fn add(&self) -> Result<(PendingRequest<'_>, oneshot::Receiver<DecideResponse>), AuthdError> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let (waiter, response) = oneshot::channel();
        self.waiting.lock().as_mut().ok_or_else(no_stream_error)?.insert(id, waiter);
        Ok((PendingRequest { pending: self, id }, response))
    }

    fn take(&self, id: u64) -> Option<oneshot::Sender<DecideResponse>> {
        self.waiting.lock().as_mut()?.remove(&id)
    }

    fn close(&self) {
        *self.waiting.lock() = None;
    }
}

/// A pending request, removed on drop.
struct PendingRequest<'p> {
    pending: &'p PendingRequests,
    id: u64,
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        self.pending.take(self.id);
    }
}

impl Client {
    /// Connects to an authd in the background.
    pub(crate) fn connect(
        servers: Arc<Servers>,
        timeout: Duration,
        expected: ExpectedAuthd,
        connection: Arc<AuthdConnection>,
    ) -> Self {
        let (sender, open) = watch::channel(None);
        let task = keep_connected(Arc::clone(&servers), expected.clone(), Arc::clone(&connection), sender);
        tokio::spawn(task);
        Client { open, timeout, expected, connection, servers }
    }

    async fn current_stream(&self) -> Result<OpenStream, AuthdError> {
        if let Some(open) = self.open.borrow().clone() {
            return Ok(open);
        }
        let mut receiver = self.open.clone();
        let reopened = tokio::time::timeout(REOPEN_TIMEOUT, receiver.wait_for(Option::is_some)).await;
        match reopened {
            Ok(Ok(open)) => open.clone().ok_or_else(no_stream_error),
            _ => Err(no_stream_error()),
        }
    }

    /// Sends a request. With several authds, sends it once more when the stream ends before the response.
    async fn send(&self, request_id: &str, query: Query) -> Result<DecideResponse, AuthdError> {
        if !self.servers.has_others() {
            return self.send_once(request_id, query).await;
        }
        match self.send_once(request_id, query.clone()).await {
            Err(AuthdError::Unreachable(_)) => self.send_once(request_id, query).await,
            result => result,
        }
    }

    async fn send_once(&self, request_id: &str, query: Query) -> Result<DecideResponse, AuthdError> {
        let open = self.current_stream().await?;
        let (pending_request, response) = open.pending.add()?;
        let request =
            DecideRequest { id: pending_request.id, request_id: request_id.to_owned(), query: Some(query) };
        open.requests.send(request).await.map_err(|_| no_stream_error())?;
        response
            .await
            .map_err(|_| AuthdError::Unreachable("the stream closed before the response".to_owned()))
    }

    /// Makes a call outside the stream. The response must come from the process that serves the stream.
    async fn call<T, Call: Future<Output = Result<tonic::Response<T>, tonic::Status>>>(
        &self,
        call: impl FnOnce(NamedChannel) -> Call,
    ) -> Result<T, AuthdError> {
        let exchange = async {
            let open = self.current_stream().await?;
            let response = call(open.channel).await.map_err(classify_status)?;
            if self.expected.instance(response.metadata()).is_ok_and(|instance| instance == open.instance) {
                return Ok(response.into_inner());
            }
            self.connection.set_decisions_stale();
            Err(AuthdError::Unreachable("a process without the decision stream responded".to_owned()))
        };
        self.with_timeout(exchange).await
    }

    async fn with_timeout<T>(
        &self,
        work: impl Future<Output = Result<T, AuthdError>>,
    ) -> Result<T, AuthdError> {
        // authd can ask webhooks, which can depend on requests that wait for the slot of this one.
        let response = wait_for_process(tokio::time::timeout(self.timeout, work)).await;
        response.unwrap_or(Err(AuthdError::Timeout))
    }
}

fn no_stream_error() -> AuthdError {
    AuthdError::Unreachable("no stream is open".to_owned())
}

/// Converts the gRPC status of a failed call: codes of a lost connection to `Unreachable`, all others to
/// `Malformed`.
fn classify_status(status: tonic::Status) -> AuthdError {
    match status.code() {
        Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown => {
            AuthdError::Unreachable(status.message().to_owned())
        }
        code => {
            tracing::error!(
                grpc_code = %code,
                message = status.message(),
                "authd returned an unexpected gRPC status; the request fails"
            );
            AuthdError::Malformed
        }
    }
}

#[async_trait]
impl AuthdApi for Client {
    async fn decide(&self, request_id: &str, query: Query) -> Result<DecideResponse, AuthdError> {
        self.with_timeout(self.send(request_id, query)).await
    }

    async fn covers(&self, request: CoversRequest) -> Result<CoversResponse, AuthdError> {
        self.call(async |channel| {
            let client = AuthzClient::new(channel).max_encoding_message_size(LARGEST_MESSAGE);
            client.max_decoding_message_size(LARGEST_MESSAGE).covers(request).await
        })
        .await
    }

    async fn issue_token(&self, request: IssueTokenRequest) -> Result<IssueTokenResponse, AuthdError> {
        self.call(async |channel| AuthnClient::new(channel).issue_token(request).await).await
    }

    async fn keys(&self, request: KeysRequest) -> Result<KeysResponse, AuthdError> {
        self.call(async |channel| AuthnClient::new(channel).keys(request).await).await
    }

    async fn review(&self, request: ReviewRequest) -> Result<ReviewResponse, AuthdError> {
        self.call(async |channel| {
            let client = ReviewClient::new(channel).max_encoding_message_size(LARGEST_MESSAGE);
            client.max_decoding_message_size(LARGEST_MESSAGE).create(request).await
        })
        .await
    }
}

/// Opens a channel to an authd.
pub(crate) async fn open_channel(server: &AuthdServer) -> Result<Channel, tonic::transport::Error> {
    let server = server.clone();
    Endpoint::from_static(ORIGIN)
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .connect_with_connector(tower::service_fn(move |_: Uri| {
            let server = server.clone();
            async move { server.connect().await.map(TokioIo::new) }
        }))
        .await
}

/// Calls authd's health service over a new connection. Any response of the service passes, whatever its
/// status.
///
/// # Errors
///
/// authd cannot be reached, or responds with a gRPC error.
pub async fn check_health(socket: &std::path::Path) -> Result<(), AuthdProblem> {
    let server = AuthdServer::Socket(socket.to_owned());
    let channel = open_channel(&server).await.map_err(|error| unreachable(&error))?;
    let response = HealthClient::new(channel).check(HealthCheckRequest::default()).await;
    let failed = |status: tonic::Status| AuthdProblem::Unreachable(status.message().to_owned());
    response.map(drop).map_err(failed)
}

/// The failed attempts to connect, which determine the next pause.
#[derive(Default)]
pub(crate) struct FailedAttempts {
    count: u32,
    is_rejected: bool,
}

impl FailedAttempts {
    /// Resets to the shortest pause after a success.
    pub(crate) fn reset(&mut self) {
        *self = FailedAttempts::default();
    }

    /// Waits before the next attempt, with one of `servers`.
    pub(crate) async fn pause(&mut self, servers: &Servers) {
        let backoff = if servers.has_others() { BACKOFF_OF_SEVERAL } else { BACKOFF };
        let pause = if self.is_rejected { REJECTED_PAUSE } else { backoff.pause(self.count) };
        *self = FailedAttempts { count: self.count.saturating_add(1), is_rejected: false };
        tokio::time::sleep(pause).await;
    }

    /// Sets the next pause to [`REJECTED_PAUSE`].
    pub(crate) fn record_rejection(&mut self) {
        self.is_rejected = true;
    }
}

/// Keeps a decision stream open to one of the authds, until the client is dropped.
async fn keep_connected(
    servers: Arc<Servers>,
    expected: ExpectedAuthd,
    connection: Arc<AuthdConnection>,
    open: watch::Sender<Option<OpenStream>>,
) {
    tokio::select! {
        () = keep_open(&servers, &expected, &connection, &open) => {}
        () = servers.leave_unusable(&connection, FIRST_PATIENCE), if servers.has_others() => {}
    }
}

/// The end of a decision stream without an error of authd.
enum StreamEnd {
    /// authd closed the stream, or the client was dropped.
    Closed,
    /// Another process, or another authd, must serve the stream.
    Stale,
}

/// Keeps a decision stream open until the client is dropped.
///
/// A panic must not end this loop: the loop reports the loss of authd, and without this report cached
/// responses would serve for ever.
async fn keep_open(
    servers: &Arc<Servers>,
    expected: &ExpectedAuthd,
    connection: &AuthdConnection,
    open: &watch::Sender<Option<OpenStream>>,
) {
    let mut attempts = FailedAttempts::default();
    loop {
        let position = servers.selected();
        let stream = run_stream(servers, position, expected, connection, open, &mut attempts);
        let unreachable = |reason: &str| AuthdProblem::Unreachable(reason.to_owned());
        let end = AssertUnwindSafe(stream).catch_unwind().await;
        let ended = open.send_replace(None);
        // The certificate of a connection can expire while authd has a new one: the next attempt shows whether authd is gone.
        let is_proven = ended.as_ref().is_some_and(|stream| stream.since.elapsed() >= PROVEN);
        if !is_proven && !matches!(end, Ok(Ok(StreamEnd::Stale))) {
            let _ = servers.leave(position);
        }
        let problem = match end {
            Ok(Ok(StreamEnd::Closed)) => unreachable("authd closed the stream"),
            Ok(Ok(StreamEnd::Stale)) => {
                AuthdProblem::Mismatched("a newer connection leads to another process of authd".to_owned())
            }
            Ok(Err(problem)) => problem,
            Err(_panic) => unreachable("the task of the connection to authd panicked"),
        };
        if let Some(stream) = ended {
            stream.pending.close();
        }
        if matches!(problem, AuthdProblem::Mismatched(_)) && servers.selected() == position {
            attempts.record_rejection();
        }
        tracing::debug!(reason = %problem, "decision stream closed; reconnecting");
        connection.set_decisions_lost(problem);
        tokio::select! {
            () = attempts.pause(servers) => {}
            () = open.closed() => return,
        }
    }
}

async fn run_stream(
    servers: &Servers,
    position: usize,
    expected: &ExpectedAuthd,
    connection: &AuthdConnection,
    open: &watch::Sender<Option<OpenStream>>,
    attempts: &mut FailedAttempts,
) -> Result<StreamEnd, AuthdProblem> {
    let stale = connection.stale_decisions();
    if servers.selected() != position {
        return Ok(StreamEnd::Stale);
    }
    let opened = OpenedConnections::to(servers, position).await?;
    run_as_single_task(|spawner| run_connection(opened, spawner, expected, connection, stale, open, attempts))
        .await
}

/// New connections to an authd: one for the decision stream, and one for all other calls.
struct OpenedConnections<'s> {
    server: &'s AuthdServer,
    name: ApidName,
    stream: Box<dyn Connection>,
    channel: NamedChannel,
}

impl<'s> OpenedConnections<'s> {
    async fn to(servers: &'s Servers, position: usize) -> Result<Self, AuthdProblem> {
        let server = servers.server(position).map_err(|error| unreachable(&error))?;
        let name = servers.name().clone();
        let channel = open_channel(server).await.map_err(|error| unreachable(&error))?;
        let channel = InterceptedService::new(channel, name.clone());
        let stream = server.connect().await.map_err(|error| unreachable(&error))?;
        Ok(OpenedConnections { server, name, stream, channel })
    }
}

fn unreachable(error: &dyn std::error::Error) -> AuthdProblem {
    AuthdProblem::Unreachable(error_chain_text(error))
}

/// Runs the connection of the decision stream, from its handshake to its end.
async fn run_connection(
    opened: OpenedConnections<'_>,
    spawner: Spawner,
    expected: &ExpectedAuthd,
    connection: &AuthdConnection,
    mut stale: watch::Receiver<()>,
    open: &watch::Sender<Option<OpenStream>>,
    attempts: &mut FailedAttempts,
) -> Result<StreamEnd, AuthdProblem> {
    let OpenedConnections { server, name, stream, channel } = opened;
    let (sender, http2_connection) = http2::Builder::new(spawner)
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| unreachable(&error))?;
    let call = tower::service_fn(move |mut request: http::Request<tonic::body::Body>| {
        name.add_to(request.headers_mut());
        sender.clone().send_request(request)
    });
    let mut client = DecideClient::with_origin(call, Uri::from_static(ORIGIN))
        .max_encoding_message_size(LARGEST_MESSAGE)
        .max_decoding_message_size(LARGEST_MESSAGE);
    let exchange = async {
        let (requests, outgoing) = mpsc::channel(QUEUE);
        let rejected = |status: tonic::Status| {
            AuthdProblem::Unreachable(format!("authd rejected the decision stream: {}", status.message()))
        };
        let response = client.stream(ReceiverStream::new(outgoing)).await.map_err(rejected)?;
        let instance = expected.instance(response.metadata())?;
        let mut responses = response.into_inner();
        let (pending, since) = (Arc::new(PendingRequests::new()), Instant::now());
        connection.set_decisions_open(&instance);
        open.send_replace(Some(OpenStream { requests, pending: pending.clone(), channel, instance, since }));
        attempts.reset();
        tracing::info!(authd = %server, "decision stream to authd opened");
        let broken = |status: tonic::Status| AuthdProblem::Unreachable(status.message().to_owned());
        while let Some(response) = responses.message().await.map_err(broken)? {
            // A response whose caller no longer waits is discarded.
            if let Some(waiter) = pending.take(response.id) {
                let _ = waiter.send(response);
            }
        }
        Ok(StreamEnd::Closed)
    };
    tokio::select! {
        // Responses that arrived before the end of the connection are delivered first.
        biased;
        result = exchange => result,
        result = http2_connection => {
            result.map(|()| StreamEnd::Closed).map_err(|error| unreachable(&error))
        }
        _ = stale.changed() => Ok(StreamEnd::Stale),
        () = open.closed() => Ok(StreamEnd::Closed),
    }
}

/// Returns the texts of an error and its sources in one line: tonic's own text is only `transport error`.
pub(crate) fn error_chain_text(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some errors repeat the text of their source.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        source = cause.source();
    }
    text
}
