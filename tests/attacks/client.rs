//! HTTP/2 client over TLS for attackers and the reference client: prepared requests, configurable windows.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Request};
use rustls::client::Resumption;
use rustls_pki_types::ServerName;
use serving::client::Trust;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Error of a request without a response.
pub type Error = Box<dyn std::error::Error + Send + Sync>;

/// Window of streams whose responses are read.
pub const READING: u32 = 4 * 1024 * 1024;

/// Window of connections whose responses are read.
const READING_CONNECTION: u32 = 64 * 1024 * 1024;

/// Time limit of the TCP connection and the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Minimum connection window of HTTP/2.
const LEAST_CONNECTION: u32 = 65_535;

/// Placeholder in a path or header, replaced by a number so that all requests differ.
pub const NUMBER: &str = "{n}";

/// Prepared request, which may be sent many times.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Method, for example `GET`.
    pub method: &'static str,
    /// Path and query; [`NUMBER`] is replaced.
    pub path: String,
    /// Further headers; [`NUMBER`] is replaced in values.
    pub headers: Vec<(&'static str, String)>,
    /// Body; empty for none.
    pub body: Bytes,
}

impl Prepared {
    /// Builds a GET.
    pub fn get(path: impl Into<String>) -> Prepared {
        Prepared { method: "GET", path: path.into(), headers: Vec::new(), body: Bytes::new() }
    }

    /// Builds a GET of a representation.
    pub fn get_as(path: impl Into<String>, accept: &str) -> Prepared {
        Prepared::get(path).header("accept", accept)
    }

    /// Builds a POST of JSON.
    pub fn post(path: impl Into<String>, body: impl Into<Bytes>) -> Prepared {
        Prepared::body("POST", path, "application/json", body)
    }

    /// Builds a request with a body.
    pub fn body(
        method: &'static str,
        path: impl Into<String>,
        media_type: &str,
        body: impl Into<Bytes>,
    ) -> Prepared {
        Prepared { method, path: path.into(), headers: Vec::new(), body: body.into() }
            .header("content-type", media_type)
    }

    /// Adds a header.
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Prepared {
        self.headers.push((name, value.into()));
        self
    }

    fn head(&self, token: Option<&str>, number: u64) -> Result<Request<()>, Error> {
        let fill = |text: &str| match text.contains(NUMBER) {
            true => text.replace(NUMBER, &number.to_string()),
            false => text.to_owned(),
        };
        let mut request =
            Request::builder().method(self.method).uri(format!("https://localhost{}", fill(&self.path)));
        let own = self.headers.iter().any(|(name, _)| *name == "authorization");
        if let Some(token) = token.filter(|_| !own) {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in &self.headers {
            request = request.header(*name, fill(value));
        }
        Ok(request.body(())?)
    }
}

/// Complete response.
pub struct AttackResponse {
    /// Status code.
    pub code: u16,
    /// Number of header lines.
    pub header_lines: usize,
    /// Bytes of headers and body.
    pub bytes: usize,
    /// Body, unless it was only counted.
    pub body: Vec<u8>,
}

/// Returns TLS for servers on the loopback address, without verification and resumption.
pub fn tls(protocol: &str) -> TlsConnector {
    let mut config = Trust::Insecure.tls().expect("a TLS configuration");
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    config.resumption = Resumption::disabled();
    TlsConnector::from(Arc::new(config))
}

/// Connects, with a TLS handshake.
pub async fn connect(port: u16, tls: &TlsConnector) -> Result<TlsStream<TcpStream>, Error> {
    let connect = async {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(tls.connect(ServerName::try_from("localhost")?, stream).await?)
    };
    tokio::time::timeout(HANDSHAKE, connect).await?
}

/// HTTP/2 connection of one caller.
#[derive(Clone)]
pub struct Link {
    send: SendRequest<Bytes>,
    token: Option<String>,
}

impl Link {
    /// Connects; `window` is the window of each stream.
    pub async fn open(
        port: u16,
        tls: &TlsConnector,
        token: Option<&str>,
        window: u32,
    ) -> Result<Link, Error> {
        let stream = connect(port, tls).await?;
        let whole = if window == READING { READING_CONNECTION } else { LEAST_CONNECTION };
        let (send, connection) = client::Builder::new()
            .initial_window_size(window)
            .initial_connection_window_size(whole)
            .enable_push(false)
            .handshake::<_, Bytes>(stream)
            .await?;
        tokio::spawn(connection);
        Ok(Link { send, token: token.map(str::to_owned) })
    }

    /// Sends the head of a request; with `has_body` the function caller sends the body.
    pub async fn begin(
        &self,
        request: &Prepared,
        number: u64,
        has_body: bool,
    ) -> Result<(client::ResponseFuture, SendStream<Bytes>), Error> {
        let head = request.head(self.token.as_deref(), number)?;
        let mut send = self.send.clone().ready().await?;
        Ok(send.send_request(head, !has_body)?)
    }

    /// Sends a request; returns when the head of the response arrives.
    pub async fn send(&self, request: &Prepared, number: u64) -> Result<(u16, HeaderMap, RecvStream), Error> {
        let has_body = !request.body.is_empty();
        let (response, mut stream) = self.begin(request, number, has_body).await?;
        if has_body {
            stream.send_data(request.body.clone(), true)?;
        }
        let (parts, body) = response.await?.into_parts();
        Ok((parts.status.as_u16(), parts.headers, body))
    }

    /// Sends a request and counts the bytes of its response.
    pub async fn exchange(&self, request: &Prepared, number: u64) -> Result<AttackResponse, Error> {
        self.whole(request, number, false).await
    }

    /// Sends a request and keeps its response.
    pub async fn call(&self, request: &Prepared) -> Result<AttackResponse, Error> {
        self.whole(request, 0, true).await
    }

    async fn whole(&self, request: &Prepared, number: u64, keep: bool) -> Result<AttackResponse, Error> {
        let (code, headers, mut body) = self.send(request, number).await?;
        let lines = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>();
        let mut answer = AttackResponse { code, header_lines: headers.len(), bytes: lines, body: Vec::new() };
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            body.flow_control().release_capacity(chunk.len())?;
            answer.bytes += chunk.len();
            if keep {
                answer.body.extend_from_slice(&chunk);
            }
        }
        Ok(answer)
    }
}
