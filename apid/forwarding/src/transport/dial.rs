//! New connections: TCP to the addresses of the target, then TLS if the target requires TLS.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustix::net::sockopt;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::TransportError;
use crate::lookup::lookup;
use crate::target::{Addresses, Scheme};
use crate::{ClientCredentials, Target};

/// Maximum number of bytes of one read. hyper enlarges the read buffer of a connection in HTTP/1.1 after each read that
/// fills the buffer, up to the size of a head, and keeps the buffer while a client does not read the response.
const MAX_READ_BYTES: usize = 16 * 1024 - 1;
/// Maximum number of open connections of a transport.
const MAX_CONNECTIONS: usize = 4000;
/// Time without data before the first TCP keep-alive probe, and between two probes. A backend that is gone without a
/// reset must not keep a connection forever.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);

const HTTP1: &[u8] = b"http/1.1";
const HTTP2: &[u8] = b"h2";

/// Makes connections with the same settings.
pub(super) struct Dialer {
    server_name: Option<ServerName<'static>>,
    credentials: Option<Arc<ClientCredentials>>,
    connect_timeout: Duration,
    http2: bool,
    tls: Mutex<CurrentTls>,
    /// The free connections of the transport.
    free: Arc<Semaphore>,
}

/// The TLS configurations with the current client certificate.
struct CurrentTls {
    /// Generation of the client certificate.
    generation: u64,
    /// Without client certificate and ALPN.
    base: ClientConfig,
    /// For connections with a choice of protocols.
    negotiating: Arc<ClientConfig>,
    /// For connections in HTTP/1.1.
    http1: Arc<ClientConfig>,
}

/// A new connection to a backend.
pub(super) struct Connection {
    pub(super) stream: TokioIo<Stream>,
    /// Whether the backend has chosen HTTP/2.
    pub(super) is_http2: bool,
    /// Generation of the client certificate that the connection presents.
    pub(super) generation: u64,
}

/// A connection counts against the limits of its target and of the transport.
pub(super) struct ConnectionPermit {
    _of_target: OwnedSemaphorePermit,
    _of_transport: OwnedSemaphorePermit,
}

impl Dialer {
    pub(super) fn new(
        base: ClientConfig,
        server_name: Option<ServerName<'static>>,
        credentials: Option<Arc<ClientCredentials>>,
        connect_timeout: Duration,
        http2: bool,
    ) -> Self {
        let generation = 0;
        let (negotiating, http1) = (Arc::new(base.clone()), Arc::new(base.clone()));
        let mut tls = CurrentTls { generation, base, negotiating, http1 };
        tls.configure(credentials.as_deref(), http2);
        let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        Dialer { server_name, credentials, connect_timeout, http2, tls: Mutex::new(tls), free }
    }

    /// The generation of the client certificate. Connections of older generations must not be reused.
    pub(super) fn generation(&self) -> u64 {
        self.credentials.as_ref().map_or(0, |credentials| credentials.current().0)
    }

    /// Connects in the protocol that the backend chooses.
    pub(super) async fn connect(
        &self,
        target: &Target,
        permit: ConnectionPermit,
    ) -> Result<Connection, TransportError> {
        let (generation, tls) = self.tls(|tls| &tls.negotiating);
        let io = self.connect_with(target, tls).await?;
        let is_http2 = io.is_http2();
        Ok(Connection { stream: TokioIo::new(Stream { io, _permit: permit }), is_http2, generation })
    }

    /// Connects in HTTP/1.1.
    pub(super) async fn connect_http1(
        &self,
        target: &Target,
        permit: ConnectionPermit,
    ) -> Result<TokioIo<Stream>, TransportError> {
        let (_, tls) = self.tls(|tls| &tls.http1);
        let io = self.connect_with(target, tls).await?;
        Ok(TokioIo::new(Stream { io, _permit: permit }))
    }

    /// Takes a free connection of a target and of the transport; None if the target or the transport has none.
    /// `free`: the free connections of the target.
    pub(super) fn permit(&self, free: &Arc<Semaphore>) -> Option<ConnectionPermit> {
        let take = |free: &Arc<Semaphore>| Arc::clone(free).try_acquire_owned().ok();
        Some(ConnectionPermit { _of_target: take(free)?, _of_transport: take(&self.free)? })
    }

    /// Waits for a free connection of a target and of the transport.
    pub(super) async fn wait_for_permit(&self, free: &Arc<Semaphore>) -> Option<ConnectionPermit> {
        let _of_target = Arc::clone(free).acquire_owned().await.ok()?;
        let _of_transport = Arc::clone(&self.free).acquire_owned().await.ok()?;
        Some(ConnectionPermit { _of_target, _of_transport })
    }

    /// Returns a TLS configuration with the current client certificate.
    fn tls(&self, select: impl Fn(&CurrentTls) -> &Arc<ClientConfig>) -> (u64, Arc<ClientConfig>) {
        let generation = self.generation();
        let mut tls = self.tls.lock();
        if tls.generation != generation {
            tls.configure(self.credentials.as_deref(), self.http2);
        }
        (tls.generation, Arc::clone(select(&tls)))
    }

    async fn connect_with(&self, target: &Target, tls: Arc<ClientConfig>) -> Result<Io, TransportError> {
        let dial = tokio::time::timeout(self.connect_timeout, dial(target)).await;
        let tcp =
            dial.unwrap_or_else(|_| Err(TransportError::of_dial(target, &io::ErrorKind::TimedOut.into())))?;
        if target.scheme() == Scheme::Http {
            return Ok(Io::Plain(tcp));
        }
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(target.host().to_owned())
                .map_err(|_| TransportError::Request(format!("`{}` is not a valid host", target.host())))?,
        };
        match tokio::time::timeout(self.connect_timeout, TlsConnector::from(tls).connect(name, tcp)).await {
            Ok(Ok(session)) => Ok(Io::Tls(Box::new(session))),
            Ok(Err(error)) => Err(TransportError::of_handshake(target, &error)),
            Err(_) => Err(TransportError::Tls("net/http: TLS handshake timeout".to_owned())),
        }
    }
}

impl CurrentTls {
    fn configure(&mut self, credentials: Option<&ClientCredentials>, http2: bool) {
        let mut tls = self.base.clone();
        if let Some(credentials) = credentials {
            let (generation, identity) = credentials.current();
            self.generation = generation;
            identity.configure(&mut tls);
        }
        tls.alpn_protocols = vec![HTTP1.to_vec()];
        self.http1 = Arc::new(tls.clone());
        if http2 {
            tls.alpn_protocols.insert(0, HTTP2.to_vec());
        }
        self.negotiating = Arc::new(tls);
    }
}

/// Connects to the first address of the target that answers.
async fn dial(target: &Target) -> Result<TcpStream, TransportError> {
    let addresses: Vec<SocketAddr> = match target.addresses() {
        Addresses::Checked(ips) => ips.iter().map(|ip| SocketAddr::new(*ip, target.port())).collect(),
        Addresses::OfHost => {
            let found = lookup(target.host(), target.port()).await;
            found.map_err(|_| TransportError::Lookup(target.host().to_owned()))?
        }
    };
    let connected = TcpStream::connect(addresses.as_slice()).await;
    let stream = connected.map_err(|error| TransportError::of_dial(target, &error))?;
    // Without Nagle's algorithm small messages of interactive streams leave at once. A failure costs time only.
    drop(stream.set_nodelay(true));
    if let Err(error) = keep_alive(&stream) {
        tracing::debug!(%error, "TCP keep-alive of a connection to a backend could not be set");
    }
    Ok(stream)
}

/// Turns on TCP keep-alive. The connection ends after a number of probes without answer, which the system sets.
fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_keepidle(stream, KEEP_ALIVE_INTERVAL)?;
    sockopt::set_tcp_keepintvl(stream, KEEP_ALIVE_INTERVAL)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}

/// A connection that is counted until it is dropped.
pub(super) struct Stream {
    io: Io,
    _permit: ConnectionPermit,
}

/// A connection with or without TLS.
enum Io {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Io {
    fn is_http2(&self) -> bool {
        match self {
            Io::Plain(_) => false,
            Io::Tls(session) => session.get_ref().1.alpn_protocol() == Some(HTTP2),
        }
    }
}

/// Calls a method of the stream of either kind.
macro_rules! delegate {
    ($self:ident, $method:ident($($argument:expr),*)) => {
        match &mut $self.get_mut().io {
            Io::Plain(stream) => Pin::new(stream).$method($($argument),*),
            Io::Tls(stream) => Pin::new(stream.as_mut()).$method($($argument),*),
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if into.remaining() <= MAX_READ_BYTES {
            return delegate!(self, poll_read(context, into));
        }
        let mut part = ReadBuf::new(into.initialize_unfilled_to(MAX_READ_BYTES));
        let result = delegate!(self, poll_read(context, &mut part));
        let read = part.filled().len();
        into.advance(read);
        result
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        delegate!(self, poll_write(context, bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        delegate!(self, poll_write_vectored(context, buffers))
    }

    fn is_write_vectored(&self) -> bool {
        match &self.io {
            Io::Plain(stream) => stream.is_write_vectored(),
            Io::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, poll_flush(context))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, poll_shutdown(context))
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use serving::client::Trust;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::AddressPolicy;

    #[tokio::test]
    async fn connection_counts_until_it_ends_and_probes_a_silent_backend() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let policy = AddressPolicy::new(&["127.0.0.1".to_owned()]).unwrap();
        let target = Target::at_address(Scheme::Http, Ipv4Addr::LOCALHOST.into(), port, &policy).unwrap();
        let dialer = Dialer::new(Trust::Insecure.tls().unwrap(), None, None, Duration::from_secs(30), true);
        let free = Arc::new(Semaphore::new(1));
        let permit = dialer.permit(&free).unwrap();
        let first = dialer.connect(&target, permit).await.ok().unwrap();
        assert!(dialer.permit(&free).is_none());
        let Io::Plain(stream) = &first.stream.inner().io else { panic!("a connection without TLS") };
        assert!(sockopt::socket_keepalive(stream).unwrap());
        assert_eq!(sockopt::tcp_keepidle(stream).unwrap(), KEEP_ALIVE_INTERVAL);
        assert_eq!(sockopt::tcp_keepintvl(stream).unwrap(), KEEP_ALIVE_INTERVAL);
        drop(first);
        let permit = dialer.permit(&free).unwrap();
        assert!(dialer.connect_http1(&target, permit).await.is_ok());
    }

    #[tokio::test]
    async fn read_returns_at_most_max_read_bytes() {
        const SENT: usize = 40_000;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let policy = AddressPolicy::new(&["127.0.0.1".to_owned()]).unwrap();
        let target = Target::at_address(Scheme::Http, Ipv4Addr::LOCALHOST.into(), port, &policy).unwrap();
        let dialer = Dialer::new(Trust::Insecure.tls().unwrap(), None, None, Duration::from_secs(30), true);
        let permit = dialer.permit(&Arc::new(Semaphore::new(1))).unwrap();
        let mut stream = dialer.connect_http1(&target, permit).await.ok().unwrap().into_inner();
        let (mut backend, _) = listener.accept().await.unwrap();
        backend.write_all(&[7; SENT]).await.unwrap();
        let (mut into, mut received) = (vec![0; 64 * 1024], 0);
        while received < SENT {
            let read = stream.read(&mut into).await.unwrap();
            assert!(
                (1..=MAX_READ_BYTES).contains(&read) && into[..read].iter().all(|byte| *byte == 7),
                "{read}"
            );
            received += read;
        }
    }
}
