//! Calls to the members of an etcd cluster.
//!
//! # Contract
//!
//! Calls go to the members in turn. A member whose call fails is unhealthy until it answers a health check; the pauses
//! between its checks grow. An unhealthy member gets calls only while all members are unhealthy. A repeatable call is
//! retried at the next member; a write is retried only if nothing was sent. So the outcome of a failed write is
//! unknown, unless etcd rejected the write.
//!
//! Connections are kept alive with HTTP/2 pings, so that a dead peer ends them. Each connection reads the TLS files anew.

use std::error::Error as _;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_trait::async_trait;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream::Stream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, ConnectError, Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::protocol as pb;
use super::telemetry::Telemetry;
use crate::{Error, Revision};

/// Time limit of one attempt of a call. etcd itself gives up after 7 s.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of a connection attempt. A call has a longer limit, so a call without a connection fails as unsent.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(4);
/// Pause between two pings of an idle connection, as in kube-apiserver.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Time limit of the answer to a ping, as in kube-apiserver.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of one attempt of a call that another member can answer instead.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of the health check of an unhealthy member.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before the first health check of an unhealthy member; doubled for each further one.
const MIN_CHECK_PAUSE: Duration = Duration::from_millis(100);
/// Longest pause between two health checks of an unhealthy member.
const MAX_CHECK_PAUSE: Duration = Duration::from_secs(5);

/// Advice in errors about an etcd cluster without free space.
pub(super) const FREE_SPACE: &str = "compact and defragment etcd or raise `--quota-backend-bytes`, then disarm the alarm with \
                                     `etcdctl alarm disarm`";

/// A connection to a member.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// Makes TLS connections to members.
#[async_trait]
pub trait Tls: Send + Sync + 'static {
    /// Secures a connection to a host with the protocol `h2`. Reads the certificates anew, so that they can be renewed.
    ///
    /// # Errors
    ///
    /// A file is not readable, or the handshake fails.
    async fn connect(&self, host: &str, tcp: TcpStream) -> io::Result<Box<dyn Connection>>;
}

/// The calls of the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Range,
    Txn,
    Put,
    Compact,
    LeaseGrant,
    Status,
    Alarm,
}

impl Method {
    fn path(self) -> &'static str {
        match self {
            Method::Range => "/etcdserverpb.KV/Range",
            Method::Txn => "/etcdserverpb.KV/Txn",
            Method::Put => "/etcdserverpb.KV/Put",
            Method::Compact => "/etcdserverpb.KV/Compact",
            Method::LeaseGrant => "/etcdserverpb.Lease/LeaseGrant",
            Method::Status => "/etcdserverpb.Maintenance/Status",
            Method::Alarm => "/etcdserverpb.Maintenance/Alarm",
        }
    }

    /// Whether a second execution does no harm. A repeated transaction would find its own write.
    fn is_repeatable(self) -> bool {
        !matches!(self, Method::Txn)
    }
}

/// The reason why a call failed.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    /// The member and the reason, for messages.
    text: String,
    code: Code,
    /// The message of etcd.
    message: String,
    /// Whether the request did not reach etcd.
    is_unsent: bool,
    /// Whether the connection failed; false for an error that etcd returned.
    is_connection_failure: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The failures of etcd that the engine handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    Compacted,
    Future,
    TooLarge,
    NoSpace,
    Damaged,
    LeaseNotFound,
    Other,
}

impl Failure {
    fn new(member: &str, status: &Status) -> Self {
        let mut is_unsent = false;
        let mut reason = status.message().to_owned();
        let mut source = status.source();
        while let Some(error) = source {
            is_unsent |= error.is::<ConnectError>();
            reason = error.to_string();
            source = error.source();
        }
        Failure {
            text: format!("etcd at {member}: {reason}"),
            code: status.code(),
            message: status.message().to_owned(),
            is_unsent,
            // The status of a response has no source.
            is_connection_failure: status.source().is_some(),
        }
    }

    fn timeout(member: &str, limit: Duration) -> Self {
        let message = format!("no answer within {} s", limit.as_secs_f32());
        Failure {
            text: format!("etcd at {member}: {message}"),
            code: Code::DeadlineExceeded,
            message,
            is_unsent: false,
            is_connection_failure: false,
        }
    }

    /// A failure that the engine detects without an error of etcd.
    pub(super) fn own(member: &str, message: &str) -> Self {
        Failure {
            text: format!("etcd at {member}: {message}"),
            code: Code::Unavailable,
            message: message.to_owned(),
            is_unsent: false,
            is_connection_failure: false,
        }
    }

    pub(super) fn rejection(&self) -> Rejection {
        let message = self.message.as_str();
        match self.code {
            Code::OutOfRange if message.contains("compacted") => Rejection::Compacted,
            Code::OutOfRange if message.contains("future revision") => Rejection::Future,
            Code::InvalidArgument if message.contains("request is too large") => Rejection::TooLarge,
            // The limit of gRPC in the member is a little higher than that of the request.
            Code::ResourceExhausted if message.contains("larger than max") => Rejection::TooLarge,
            Code::ResourceExhausted if message.contains("space exceeded") => Rejection::NoSpace,
            Code::DataLoss => Rejection::Damaged,
            Code::NotFound if message.contains("lease not found") => Rejection::LeaseNotFound,
            _ => Rejection::Other,
        }
    }

    /// Whether the member failed, so that another member may answer the call.
    fn is_member_failure(&self) -> bool {
        matches!(self.code, Code::Unavailable | Code::DeadlineExceeded | Code::Cancelled | Code::Unknown)
            || (self.code == Code::Internal && self.is_connection_failure)
    }

    /// The error of the contract for a call without more facts.
    pub(super) fn into_error(self) -> Error {
        match self.rejection() {
            Rejection::NoSpace => Error::Full(format!("{self}: {FREE_SPACE}")),
            Rejection::Damaged => Error::Corrupt(self.to_string()),
            _ => match self.code {
                Code::Unauthenticated | Code::PermissionDenied => Error::Unavailable(format!(
                    "{self}: the user of the client certificate needs read and write access to the keys of `--etcd-prefix` \
                     and to `compact_rev_key`"
                )),
                _ => Error::Unavailable(self.to_string()),
            },
        }
    }

    /// The error of a read at a revision.
    pub(super) fn into_read_error(
        self,
        requested: Revision,
        compacted: Revision,
        current: Revision,
    ) -> Error {
        match self.rejection() {
            Rejection::Compacted => Error::Compacted { requested, compacted },
            Rejection::Future => Error::Future { requested, current },
            _ => self.into_error(),
        }
    }
}

/// A member of the cluster.
struct Member {
    name: String,
    channel: Channel,
    is_unhealthy: AtomicBool,
    /// The key that health checks read.
    health_key: Vec<u8>,
}

impl Member {
    fn is_unhealthy(&self) -> bool {
        self.is_unhealthy.load(Ordering::Relaxed)
    }

    /// Marks the member as unhealthy until it answers a health check.
    fn record_failure(self: &Arc<Self>) {
        if !self.is_unhealthy.swap(true, Ordering::Relaxed) {
            tokio::spawn(Self::recover(Arc::downgrade(self)));
        }
    }

    /// Asks for a key until the member answers. Only a member with a leader answers such a read.
    async fn recover(member: Weak<Self>) {
        let mut pause = MIN_CHECK_PAUSE;
        loop {
            tokio::time::sleep(pause).await;
            let Some(member) = member.upgrade() else { return };
            let read = pb::RangeRequest::one(member.health_key.clone());
            let check: Result<pb::RangeResponse, _> =
                call_member(&member, Method::Range, read, CHECK_TIMEOUT).await;
            if check.is_ok() {
                member.is_unhealthy.store(false, Ordering::Relaxed);
                return;
            }
            pause = pause.saturating_mul(2).min(MAX_CHECK_PAUSE);
        }
    }
}

/// The client of a cluster.
pub(super) struct Client {
    members: Vec<Arc<Member>>,
    turn: AtomicUsize,
    pub(super) telemetry: Arc<dyn Telemetry>,
}

impl Client {
    /// A client that connects with its first call.
    ///
    /// # Errors
    ///
    /// A URL is invalid.
    pub(super) fn new(
        urls: &[String],
        tls: Option<Arc<dyn Tls>>,
        health_key: Vec<u8>,
        telemetry: Arc<dyn Telemetry>,
    ) -> Result<Self, String> {
        if urls.is_empty() {
            return Err("no URL of an etcd server".to_owned());
        }
        let members =
            urls.iter().map(|url| member(url, tls.clone(), health_key.clone())).collect::<Result<_, _>>()?;
        Ok(Client { members, turn: AtomicUsize::new(0), telemetry })
    }

    /// The members in the order of their next attempt: the next one in turn first, unhealthy ones last.
    fn order(&self) -> Vec<&Arc<Member>> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let (after, before) = self.members.split_at(turn % self.members.len().max(1));
        let mut order: Vec<&Arc<Member>> = before.iter().chain(after).collect();
        order.sort_by_key(|member| member.is_unhealthy());
        order
    }

    /// Calls a member, and retries the call at the next members if the failure permits it.
    pub(super) async fn call<Q, R>(&self, method: Method, request: Q) -> Result<R, Failure>
    where
        Q: prost::Message + Clone + 'static,
        R: prost::Message + Default + 'static,
    {
        self.call_within(READ_TIMEOUT, method, request).await
    }

    /// As [`Client::call`], with the time limit of an attempt that another member can repeat.
    pub(super) async fn call_within<Q, R>(
        &self,
        limit: Duration,
        method: Method,
        request: Q,
    ) -> Result<R, Failure>
    where
        Q: prost::Message + Clone + 'static,
        R: prost::Message + Default + 'static,
    {
        let mut last = None;
        let limit = if method.is_repeatable() && self.members.len() > 1 { limit } else { CALL_TIMEOUT };
        for member in self.order() {
            match call_member(member, method, request.clone(), limit).await {
                Ok(response) => return Ok(response),
                Err(failure) => {
                    let is_retryable =
                        failure.is_member_failure() && (method.is_repeatable() || failure.is_unsent);
                    if !is_retryable {
                        return Err(failure);
                    }
                    last = Some(failure);
                }
            }
        }
        Err(last.unwrap_or_else(|| Failure::own("no member", "no call was made")))
    }

    /// Asks each member for its state.
    pub(super) async fn statuses(&self) -> Vec<(&str, Result<pb::StatusResponse, Failure>)> {
        let mut statuses = Vec::with_capacity(self.members.len());
        for member in &self.members {
            let status = call_member(member, Method::Status, pb::StatusRequest {}, CALL_TIMEOUT).await;
            statuses.push((member.name.as_str(), status));
        }
        statuses
    }

    /// Opens a watch stream of a member. Returns the name of the member, its state and the stream.
    pub(super) async fn watch(
        &self,
        requests: impl Stream<Item = pb::WatchRequest> + Send + 'static,
    ) -> Result<(&str, pb::StatusResponse, Streaming<pb::WatchResponse>), Failure> {
        let mut chosen = Err(Failure::own("no member", "no call was made"));
        for member in self.order() {
            chosen = call_member(member, Method::Status, pb::StatusRequest {}, CALL_TIMEOUT)
                .await
                .map(|status| (member, status));
            if chosen.is_ok() {
                break;
            }
        }
        let (member, status) = chosen?;
        let mut grpc = Grpc::new(member.channel.clone()).max_decoding_message_size(usize::MAX);
        let mut request = Request::new(requests);
        // The member ends the stream when the cluster has no leader, so that the client tries another one.
        request.metadata_mut().insert("hasleader", tonic::metadata::MetadataValue::from_static("true"));
        let path = PathAndQuery::from_static("/etcdserverpb.Watch/Watch");
        let open = async {
            grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            grpc.streaming(request, path, ProstCodec::default()).await
        };
        match tokio::time::timeout(CALL_TIMEOUT, open).await {
            Ok(Ok(response)) => Ok((&member.name, status, response.into_inner())),
            Ok(Err(error)) => {
                member.record_failure();
                Err(Failure::new(&member.name, &error))
            }
            Err(_) => {
                member.record_failure();
                Err(Failure::timeout(&member.name, CALL_TIMEOUT))
            }
        }
    }

    /// Records that a stream of a member failed.
    pub(super) fn record_failure(&self, name: &str) {
        self.members.iter().filter(|member| member.name == name).for_each(Member::record_failure);
    }

    /// The failure of a stream.
    pub(super) fn stream_failure(name: &str, status: &Status) -> Failure {
        Failure::new(name, status)
    }
}

/// Calls one member, and marks the member as unhealthy if it failed.
async fn call_member<Q, R>(
    member: &Arc<Member>,
    method: Method,
    request: Q,
    limit: Duration,
) -> Result<R, Failure>
where
    Q: prost::Message + 'static,
    R: prost::Message + Default + 'static,
{
    let mut grpc = Grpc::new(member.channel.clone()).max_decoding_message_size(usize::MAX);
    let call = async {
        grpc.ready().await.map_err(|error| Status::from_error(error.into()))?;
        let path = PathAndQuery::from_static(method.path());
        grpc.unary(Request::new(request), path, ProstCodec::<Q, R>::default()).await
    };
    let failure = match tokio::time::timeout(limit, call).await {
        Ok(Ok(response)) => return Ok(response.into_inner()),
        Ok(Err(status)) => Failure::new(&member.name, &status),
        Err(_) => Failure::timeout(&member.name, limit),
    };
    if failure.is_member_failure() {
        member.record_failure();
    }
    Err(failure)
}

/// A member at a URL such as `https://etcd-0:2379`.
fn member(url: &str, tls: Option<Arc<dyn Tls>>, health_key: Vec<u8>) -> Result<Arc<Member>, String> {
    // The URL names the member in messages, and must hold no password.
    if url.contains('@') {
        return Err(
            "a URL of an etcd server has a user: use a URL such as `https://etcd-0:2379`, and a client \
                    certificate"
                .to_owned(),
        );
    }
    let invalid = |problem: &str| format!("`{url}`: {problem}; use a URL such as `https://etcd-0:2379`");
    let uri: Uri = url.parse().map_err(|_| invalid("the URL is invalid"))?;
    let host = uri.host().map(|host| host.trim_matches(['[', ']']).to_owned());
    let (Some(host), Some(authority)) = (host, uri.authority()) else {
        return Err(invalid("the URL has no host"));
    };
    let port = uri.port_u16().unwrap_or(2379);
    let tls = match (uri.scheme_str(), tls) {
        (Some("https"), Some(tls)) => Some(tls),
        (Some("https"), None) => return Err(invalid("no TLS configuration is known")),
        (Some("http"), _) => None,
        _ => return Err(invalid("the scheme is not http or https")),
    };
    // The connector below speaks TLS: the transport itself sees plain bytes.
    let endpoint = Endpoint::from_shared(format!("http://{authority}"))
        .map_err(|error| invalid(&error.to_string()))?
        .origin(uri.clone())
        .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    let connector = tower::service_fn(move |_: Uri| {
        let (host, tls) = (host.clone(), tls.clone());
        async move {
            // The connector applies the limit, because a timeout of the transport does not show that nothing was sent.
            let connect = connect(&host, port, tls);
            match tokio::time::timeout(CONNECT_TIMEOUT, connect).await {
                Ok(connection) => connection.map(TokioIo::new),
                Err(_) => Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("no connection within {} s", CONNECT_TIMEOUT.as_secs()),
                )),
            }
        }
    });
    let channel = endpoint.connect_with_connector_lazy(connector);
    Ok(Arc::new(Member { name: url.to_owned(), channel, is_unhealthy: AtomicBool::new(false), health_key }))
}

async fn connect(host: &str, port: u16, tls: Option<Arc<dyn Tls>>) -> io::Result<Box<dyn Connection>> {
    let tcp = TcpStream::connect((host, port)).await?;
    tcp.set_nodelay(true)?;
    match tls {
        Some(tls) => tls.connect(host, tcp).await,
        None => Ok(Box::new(tcp)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(code: Code, message: &str) -> Failure {
        Failure::new("m", &Status::new(code, message))
    }

    #[test]
    fn messages_of_etcd_become_errors_of_the_contract() {
        let (requested, compacted, current) = (Revision(3), Revision(5), Revision(9));
        let read = |code, message| failure(code, message).into_read_error(requested, compacted, current);
        assert_eq!(
            read(Code::OutOfRange, "etcdserver: mvcc: required revision has been compacted"),
            Error::Compacted { requested, compacted }
        );
        assert_eq!(
            read(Code::OutOfRange, "etcdserver: mvcc: required revision is a future revision"),
            Error::Future { requested, current }
        );
        let plain = |code, message| failure(code, message).into_error();
        assert!(matches!(
            plain(Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
            Error::Full(_)
        ));
        assert!(matches!(plain(Code::DataLoss, "etcdserver: corrupt cluster"), Error::Corrupt(_)));
        for (code, message) in [
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: no leader"),
            (Code::ResourceExhausted, "etcdserver: too many requests"),
            (Code::PermissionDenied, "etcdserver: permission denied"),
            (Code::DeadlineExceeded, ""),
        ] {
            assert!(matches!(plain(code, message), Error::Unavailable(_)), "{message}");
        }
        let too_large = failure(Code::InvalidArgument, "etcdserver: request is too large");
        assert_eq!(too_large.rejection(), Rejection::TooLarge);
        let lease = failure(Code::NotFound, "etcdserver: requested lease not found");
        assert_eq!(lease.rejection(), Rejection::LeaseNotFound);
    }

    #[test]
    fn failed_connection_is_an_unsent_request() {
        let refused = ConnectError(Box::new(io::Error::from(io::ErrorKind::ConnectionRefused)));
        let failure = Failure::new("m", &Status::from_error(Box::new(refused)));
        assert!(failure.is_unsent && failure.is_member_failure(), "{failure:?}");
        assert!(!self::failure(Code::Unavailable, "broken pipe").is_unsent);
    }

    #[test]
    fn interrupted_connection_is_a_member_failure() {
        let mut status = Status::internal("h2 protocol error");
        status.set_source(Arc::new(io::Error::other("GOAWAY")));
        let failure = Failure::new("m", &status);
        assert!(failure.is_member_failure() && !failure.is_unsent, "{failure:?}");
        assert!(!self::failure(Code::Internal, "etcdserver: a fault").is_member_failure());
    }

    #[tokio::test]
    async fn unhealthy_member_is_called_last() {
        let urls = ["http://127.0.0.1:1".to_owned(), "http://127.0.0.1:2".to_owned()];
        let client = Client::new(&urls, None, Vec::new(), Arc::new(())).unwrap();
        let first = |client: &Client| client.order().first().map(|member| member.name.clone());
        assert_ne!(first(&client), first(&client), "members take turns");
        client.record_failure(&urls[0]);
        let choices = [first(&client), first(&client), first(&client)];
        assert_eq!(choices, [(); 3].map(|()| Some(urls[1].clone())));
        let failure = client.call::<_, pb::TxnResponse>(Method::Txn, pb::TxnRequest::default()).await;
        let failure = failure.unwrap_err();
        assert!(failure.is_unsent && failure.text.contains(&urls[0]), "an unsent write tries all: {failure}");
    }

    #[tokio::test]
    async fn urls_without_scheme_or_host_are_rejected() {
        for url in ["etcd:2379", "ftp://etcd:2379", "http://", "", "https://etcd:2379"] {
            let error = member(url, None, Vec::new()).err().unwrap_or_default();
            assert!(error.contains("https://etcd-0:2379"), "{url}: {error}");
        }
        let error = member("https://root:password@etcd:2379", None, Vec::new()).err().unwrap_or_default();
        assert!(error.contains("has a user") && !error.contains("password"), "{error}");
    }

    #[tokio::test]
    async fn connection_timeout_is_an_unsent_request() {
        struct Silent;
        #[async_trait]
        impl Tls for Silent {
            async fn connect(&self, _: &str, _: TcpStream) -> io::Result<Box<dyn Connection>> {
                std::future::pending().await
            }
        }
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let client = Client::new(&[url], Some(Arc::new(Silent)), Vec::new(), Arc::new(())).unwrap();
        let failure = client.call::<_, pb::TxnResponse>(Method::Txn, pb::TxnRequest::default()).await;
        let failure = failure.unwrap_err();
        assert!(failure.is_unsent && failure.text.contains("no connection within 4 s"), "{failure:?}");
    }

    #[tokio::test]
    async fn member_without_quorum_stays_unhealthy() {
        let Some(mut cluster) = prerequisites::etcd::EtcdCluster::start(2) else { return };
        let urls = [cluster.member(0).url().to_owned()];
        let client = Client::new(&urls, None, b"/health".to_vec(), Arc::new(())).unwrap();
        let begin = tokio::time::Instant::now();
        let recovers = async || {
            while client.members[0].is_unhealthy() {
                assert!(begin.elapsed() < Duration::from_secs(60), "the member does not recover");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        client.record_failure(&urls[0]);
        recovers().await;
        cluster.member(1).kill();
        client.record_failure(&urls[0]);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(client.members[0].is_unhealthy(), "the member has no leader");
        let status = client.statuses().await.pop().unwrap().1;
        assert!(status.is_ok(), "the member itself answers: {status:?}");
        cluster.member(1).restart();
        recovers().await;
    }
}
