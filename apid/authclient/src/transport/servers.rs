//! The authds that apid can use: one at a Unix socket, or several at TCP addresses with mutual TLS.
//!
//! # Contract
//!
//! apid uses one authd at a time for all streams and calls, and begins with the first of the list. apid goes on to the next
//! authd, after the last one to the first, in two cases: the decision stream ends and cannot be opened again, or authd cannot
//! decide for longer than [`FIRST_PATIENCE`] ([`Servers::leave_unusable`]). The second case covers an authd that rejects the
//! mirror or never gets ready. A stream can also end with the certificate of its connection: authd gets the next stream too.
//! apid stays with an authd that can decide: a return to an earlier one would end all caches and watches.
//!
//! A change of the authd is a change of the process: cached responses and identities of the earlier authd end as after a
//! restart of authd ([`crate::decisions::epoch`]).

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use authproto::peer::APID_KEY;
use http::HeaderMap;
use serving::local::LocalStream;
use serving::mutual_tls::MutualTlsClient;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::TcpStream;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;

use crate::transport::connection::AuthdConnection;

/// Time limit of a connection over TCP with its TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Maximum number of bytes of authd that are read before the first request.
const FIRST_BYTES: usize = 1024;
/// Time for which apid waits until an authd with an open decision stream can decide.
pub(crate) const FIRST_PATIENCE: Duration = Duration::from_secs(10);
/// The longest such time. The time doubles after each round of the list, for snapshots that take long.
const LONGEST_PATIENCE: Duration = Duration::from_secs(320);

/// An authd that apid can use.
#[derive(Clone, Debug)]
pub enum AuthdServer {
    /// At a Unix socket.
    Socket(PathBuf),
    /// At a TCP address, with mutual TLS.
    Remote {
        /// The DNS name or address, which the certificate of authd has.
        host: String,
        /// The port.
        port: u16,
        /// The TLS of this end.
        tls: Arc<MutualTlsClient>,
    },
}

impl fmt::Display for AuthdServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AuthdServer::Socket(path) => write!(f, "{}", path.display()),
            AuthdServer::Remote { host, port, .. } if host.contains(':') => {
                write!(f, "https://[{host}]:{port}")
            }
            AuthdServer::Remote { host, port, .. } => write!(f, "https://{host}:{port}"),
        }
    }
}

/// A connection to an authd.
pub(crate) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

impl AuthdServer {
    /// Opens a connection.
    ///
    /// # Errors
    ///
    /// authd cannot be reached, or the TLS handshake fails.
    pub(crate) async fn connect(&self) -> io::Result<Box<dyn Connection>> {
        match self {
            AuthdServer::Socket(path) => Ok(Box::new(LocalStream::connect(path).await?)),
            AuthdServer::Remote { host, port, tls } => {
                let connecting = async {
                    let stream = TcpStream::connect((host.as_str(), *port)).await?;
                    stream.set_nodelay(true)?;
                    confirmed(tls.connect(host, stream).await?).await
                };
                let timeout = |_| io::Error::from(io::ErrorKind::TimedOut);
                tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.map_err(timeout)?
            }
        }
    }
}

/// Waits for the first bytes of authd, which sends its HTTP/2 settings at once. authd verifies the certificate of apid after
/// the handshake, so its rejection arrives instead of these bytes.
async fn confirmed(mut stream: impl Connection + 'static) -> io::Result<Box<dyn Connection>> {
    let mut first = vec![0; FIRST_BYTES];
    let count = stream.read(&mut first).await?;
    if count == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "authd closed the connection; see its log"));
    }
    first.truncate(count);
    let (read, write) = tokio::io::split(stream);
    Ok(Box::new(tokio::io::join(io::Cursor::new(first).chain(read), write)))
}

/// The authds of this process, and the one in use.
#[derive(Debug)]
pub(crate) struct Servers {
    list: Vec<AuthdServer>,
    selected: AtomicUsize,
    name: ApidName,
}

impl Servers {
    /// The authds in the order of preference, and the name of this process; an empty name is not sent.
    pub(crate) fn new(list: Vec<AuthdServer>, apid: &str) -> Arc<Self> {
        let name = Some(apid).filter(|apid| !apid.is_empty()).and_then(|apid| apid.parse().ok());
        Arc::new(Servers { list, selected: AtomicUsize::new(0), name: ApidName(name) })
    }

    /// The name of this process in requests.
    pub(crate) fn name(&self) -> &ApidName {
        &self.name
    }

    /// The position of the authd in use.
    pub(crate) fn selected(&self) -> usize {
        self.selected.load(Ordering::SeqCst)
    }

    /// The authd at a position.
    ///
    /// # Errors
    ///
    /// The process has no authd.
    pub(crate) fn server(&self, position: usize) -> io::Result<&AuthdServer> {
        self.list.get(position).ok_or_else(|| io::Error::other("no authd is configured"))
    }

    /// Whether apid can go on to another authd.
    pub(crate) fn has_others(&self) -> bool {
        self.list.len() > 1
    }

    /// Goes on from the authd at a position to the next one. Does nothing and returns false if that authd is not in use.
    pub(crate) fn leave(&self, position: usize) -> bool {
        let next = if position.saturating_add(1) < self.list.len() { position.saturating_add(1) } else { 0 };
        self.selected.compare_exchange(position, next, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Leaves each authd that cannot decide for longer than the patience with it; never returns.
    /// `first_patience` is the time of the first round of the list.
    pub(crate) async fn leave_unusable(&self, connection: &AuthdConnection, first_patience: Duration) {
        let mut left: usize = 0;
        loop {
            let rounds = left.checked_div(self.list.len()).and_then(|rounds| u32::try_from(rounds).ok());
            let factor = 2_u32.saturating_pow(rounds.unwrap_or_default());
            let patience = first_patience.saturating_mul(factor).min(LONGEST_PATIENCE);
            let position = self.selected();
            if tokio::time::timeout(patience, connection.wait_until_healthy()).await.is_ok() {
                left = 0;
                connection.wait_until_unhealthy().await;
            } else if self.leave(position) {
                left = left.saturating_add(1);
                if let (Err(problem), Ok(server)) = (connection.health(), self.server(position)) {
                    tracing::warn!(authd = %server, %problem, "authd cannot decide; going on to the next one");
                }
                connection.set_decisions_stale();
            }
        }
    }
}

/// The name of this process, which each request to authd carries in its metadata.
#[derive(Clone, Debug)]
pub(crate) struct ApidName(Option<MetadataValue<Ascii>>);

impl ApidName {
    /// Adds the name to the headers of a request.
    pub(crate) fn add_to(&self, headers: &mut HeaderMap) {
        if let Some(value) = self.0.as_ref().and_then(|name| name.to_str().ok()?.parse().ok()) {
            headers.insert(APID_KEY, value);
        }
    }
}

impl Interceptor for ApidName {
    fn call(&mut self, mut request: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        if let Some(name) = &self.0 {
            request.metadata_mut().insert(APID_KEY, name.clone());
        }
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use apimachinery::clock::SystemClock;
    use tokio::time::Instant;

    use super::*;

    #[test]
    fn next_authd_follows_the_last_one_and_a_newer_choice_stays() {
        let list = ["a", "b", "c"].map(|path| AuthdServer::Socket(path.into())).to_vec();
        let servers = Servers::new(list, "");
        for expected in [1, 2, 0] {
            assert!(servers.leave(servers.selected()));
            assert_eq!(servers.selected(), expected);
        }
        assert!(!servers.leave(2) && servers.selected() == 0, "apid does not use the third authd");
        assert!(Servers::new(Vec::new(), "").server(0).is_err());
    }

    #[tokio::test]
    async fn authd_that_cannot_decide_is_left_and_a_usable_one_is_kept() {
        let list = ["a", "b"].map(|path| AuthdServer::Socket(path.into())).to_vec();
        let servers = Servers::new(list, "");
        let connection = Arc::new(AuthdConnection::new(Arc::new(SystemClock::new())));
        let mut stale = connection.stale_decisions();
        // The decision stream is open, and the mirror is refused.
        connection.set_decisions_open(&"one".into());
        connection.set_mirror_lost("authd rejected the mirror stream".to_owned());
        let patience = Duration::from_millis(20);
        let begin = Instant::now();
        let task = {
            let (servers, connection) = (Arc::clone(&servers), Arc::clone(&connection));
            tokio::spawn(async move { servers.leave_unusable(&connection, patience).await })
        };
        stale.changed().await.unwrap();
        // The second authd can decide, so apid keeps it.
        connection.set_decisions_open(&"two".into());
        connection.set_mirror_open(&"two".into());
        connection.set_mirror_synced();
        connection.set_ready(true, Vec::new());
        assert!(begin.elapsed() >= patience);
        let position = servers.selected();
        tokio::time::sleep(patience * 2).await;
        stale.mark_unchanged();
        let kept = servers.selected();
        tokio::time::sleep(patience * 10).await;
        assert_eq!((position, servers.selected(), stale.has_changed().unwrap()), (1, kept, false));
        // No authd can decide: apid waits longer in each round.
        let begin = Instant::now();
        connection.set_ready(false, Vec::new());
        for _ in 0..5 {
            stale.changed().await.unwrap();
        }
        assert!(begin.elapsed() >= patience * (1 + 1 + 2 + 2 + 4), "{:?}", begin.elapsed());
        task.abort();
    }

    #[test]
    fn requests_carry_the_name_of_the_process() {
        for (name, expected) in [("one", Some("one")), ("", None)] {
            let servers = Servers::new(Vec::new(), name);
            let mut headers = HeaderMap::new();
            servers.name().add_to(&mut headers);
            let request = servers.name().clone().call(tonic::Request::new(())).unwrap();
            let value = headers.get(APID_KEY).map(|value| value.to_str().unwrap());
            assert_eq!((value, authproto::peer::apid_of(request.metadata())), (expected, name));
        }
    }
}
