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

/// Flow-control window of streams whose responses are read, in bytes.
pub const READ_STREAM_WINDOW: u32 = 4 * 1024 * 1024;

/// Flow-control window of connections whose responses are read, in bytes.
const READ_CONNECTION_WINDOW: u32 = 64 * 1024 * 1024;

/// Time limit of the TCP connection and the TLS handshake.
const CONNECT_TIME_LIMIT: Duration = Duration::from_secs(10);

/// Minimum flow-control window of an HTTP/2 connection (RFC 9113), in bytes.
const MIN_CONNECTION_WINDOW: u32 = 65_535;

/// Placeholder in a path or header. The number of the request replaces it, so that all requests differ.
pub const NUMBER: &str = "{n}";

/// Placeholder in a path. The resource version of a written object replaces it.
pub const VERSION: &str = "{version}";

/// Prepared request, which may be sent many times.
#[derive(Clone, Debug)]
pub struct Prepared {
    /// Method, for example `GET`.
    pub method: &'static str,
    /// Path and query; [`NUMBER`] and [`VERSION`] are replaced.
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

    /// Builds a GET with a media type in `Accept`.
    pub fn get_as(path: impl Into<String>, accept: &str) -> Prepared {
        Prepared::get(path).header("accept", accept)
    }

    /// Builds a POST of JSON.
    pub fn post(path: impl Into<String>, body: impl Into<Bytes>) -> Prepared {
        Prepared::with_body("POST", path, "application/json", body)
    }

    /// Builds a request with a body.
    pub fn with_body(
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

    /// Returns the request with a resource version in place of [`VERSION`].
    pub fn at_version(&self, version: &str) -> Prepared {
        Prepared { path: self.path.replace(VERSION, version), ..self.clone() }
    }

    /// Whether the request is a read.
    pub fn is_read(&self) -> bool {
        self.method == "GET"
    }

    fn head(&self, token: Option<&str>, number: u64) -> Result<Request<()>, Error> {
        let fill = |text: &str| match text.contains(NUMBER) {
            true => text.replace(NUMBER, &number.to_string()),
            false => text.to_owned(),
        };
        let mut request =
            Request::builder().method(self.method).uri(format!("https://localhost{}", fill(&self.path)));
        let has_own_credentials = self.headers.iter().any(|(name, _)| *name == "authorization");
        if let Some(token) = token.filter(|_| !has_own_credentials) {
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
    /// Body; empty if only its bytes were counted.
    pub body: Vec<u8>,
}

/// Returns a TLS connector for `protocol` in ALPN, without verification of the server and without resumption.
pub fn tls(protocol: &str) -> TlsConnector {
    let mut config = Trust::Insecure.tls().expect("a TLS configuration");
    config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    config.resumption = Resumption::disabled();
    TlsConnector::from(Arc::new(config))
}

/// Connects, with a TLS handshake.
pub async fn connect(port: u16, tls: &TlsConnector) -> Result<TlsStream<TcpStream>, Error> {
    let connect = async { secure(TcpStream::connect(("127.0.0.1", port)).await?, tls).await };
    tokio::time::timeout(CONNECT_TIME_LIMIT, connect).await?
}

/// Completes the TLS handshake on a connection.
pub async fn secure(stream: TcpStream, tls: &TlsConnector) -> Result<TlsStream<TcpStream>, Error> {
    stream.set_nodelay(true)?;
    Ok(tls.connect(ServerName::try_from("localhost")?, stream).await?)
}

/// HTTP/2 connection of one caller.
#[derive(Clone)]
pub struct Link {
    send: SendRequest<Bytes>,
    token: Option<String>,
}

impl Link {
    /// Connects; `window` is the flow-control window of each stream in bytes.
    pub async fn open(
        port: u16,
        tls: &TlsConnector,
        token: Option<&str>,
        window: u32,
    ) -> Result<Link, Error> {
        let stream = connect(port, tls).await?;
        let connection_window =
            if window == READ_STREAM_WINDOW { READ_CONNECTION_WINDOW } else { MIN_CONNECTION_WINDOW };
        let (send, connection) = client::Builder::new()
            .initial_window_size(window)
            .initial_connection_window_size(connection_window)
            .enable_push(false)
            .handshake::<_, Bytes>(stream)
            .await?;
        tokio::spawn(connection);
        Ok(Link { send, token: token.map(str::to_owned) })
    }

    /// Sends the head of a request. With `has_body`, the stream stays open for the body, which the calling
    /// function sends.
    pub async fn send_head(
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
        let (response, mut stream) = self.send_head(request, number, has_body).await?;
        if has_body {
            stream.send_data(request.body.clone(), true)?;
        }
        let (parts, body) = response.await?.into_parts();
        Ok((parts.status.as_u16(), parts.headers, body))
    }

    /// Sends a request and counts the bytes of its response.
    pub async fn exchange(&self, request: &Prepared, number: u64) -> Result<AttackResponse, Error> {
        self.read_response(request, number, false).await
    }

    /// Sends a request and keeps its response.
    pub async fn call(&self, request: &Prepared) -> Result<AttackResponse, Error> {
        self.read_response(request, 0, true).await
    }

    async fn read_response(
        &self,
        request: &Prepared,
        number: u64,
        keeps_body: bool,
    ) -> Result<AttackResponse, Error> {
        let (code, headers, mut body) = self.send(request, number).await?;
        let lines = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>();
        let mut answer = AttackResponse { code, header_lines: headers.len(), bytes: lines, body: Vec::new() };
        while let Some(chunk) = body.data().await {
            let chunk = chunk?;
            body.flow_control().release_capacity(chunk.len())?;
            answer.bytes += chunk.len();
            if keeps_body {
                answer.body.extend_from_slice(&chunk);
            }
        }
        Ok(answer)
    }
}

/// Panics unless an answer has one of these status codes.
pub fn expect_code(path: &str, answer: &Result<AttackResponse, Error>, codes: &[u16]) {
    match answer {
        Ok(answer) if codes.contains(&answer.code) => {}
        Ok(answer) => panic!("{path}: {} {}", answer.code, String::from_utf8_lossy(&answer.body)),
        Err(error) => panic!("{path}: {error}"),
    }
}
