//! Watches over WebSocket (RFC 6455), for browsers, which cannot read a body as a stream (requirements
//! D-WATCH-34).
//!
//! # Contract
//!
//! apid responds 101 to a watch with a WebSocket upgrade, and sends each event as a message: text for JSON,
//! binary for other encodings. A Protobuf event has no length prefix here. Errors before the first event are
//! ordinary responses. The server closes with 1000 at the end of the watch. It answers pings and ignores
//! other client messages. It cuts the connection of a client that does not take a message within the request
//! timeout.
//!
//! The selected sub-protocol is the first one that the client names ([`Handshake::of`]). Authentication has
//! already removed a bearer token from the list.
//!
//! # Reference
//!
//! Kubernetes' `WatchServer.HandleWS`. Unlike it, apid ignores `Origin`, because authorization depends on
//! credentials alone.

mod frames;
#[cfg(test)]
mod fuzz;

use std::io;
use std::time::Duration;

use apimachinery::status::Status;
use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::header::{
    CONNECTION, HeaderName, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use self::frames::{BINARY, CLOSE, ClientFrameParser, NORMAL, Reply, TEXT, frame};

/// The GUID that RFC 6455 appends to the key of a client.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Maximum time for the connection upgrade.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(60);

/// A valid WebSocket handshake.
pub(super) struct Handshake {
    upgrade: OnUpgrade,
    /// Headers of the response.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

impl Handshake {
    /// Reads the handshake of a request; None without an upgrade request or on HTTP/2.
    ///
    /// # Errors
    ///
    /// 400: the handshake does not conform to RFC 6455.
    pub(super) fn of(head: &Parts) -> Result<Option<Self>, Status> {
        let headers = &head.headers;
        if !names(headers, UPGRADE, "websocket") || !names(headers, CONNECTION, "upgrade") {
            return Ok(None);
        }
        let Some(upgrade) = head.extensions.get::<OnUpgrade>().cloned() else { return Ok(None) };
        if headers.get(SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
            return Err(Status::bad_request("websocket: Sec-WebSocket-Version must be 13"));
        }
        let key = headers.get(SEC_WEBSOCKET_KEY).map(HeaderValue::as_bytes).unwrap_or_default();
        if STANDARD.decode(key).map_or(0, |nonce| nonce.len()) != 16 {
            return Err(Status::bad_request("websocket: Sec-WebSocket-Key must be 16 bytes in base64"));
        }
        let accept = HeaderValue::from_str(&accept(key)).map_err(Status::internal)?;
        let mut response_headers = vec![
            (UPGRADE, HeaderValue::from_static("websocket")),
            (CONNECTION, HeaderValue::from_static("Upgrade")),
            (SEC_WEBSOCKET_ACCEPT, accept),
        ];
        let offered = headers.get(SEC_WEBSOCKET_PROTOCOL).and_then(|value| value.to_str().ok());
        let protocol =
            offered.and_then(|value| value.split(',').map(str::trim).find(|name| !name.is_empty()));
        if let Some(Ok(protocol)) = protocol.map(HeaderValue::from_str) {
            response_headers.push((SEC_WEBSOCKET_PROTOCOL, protocol));
        }
        Ok(Some(Handshake { upgrade, headers: response_headers }))
    }

    /// Sends each item as a message after the connection upgrade.
    ///
    /// The client must take each message within `time`.
    pub(super) fn send(
        self,
        messages: impl Stream<Item = Bytes> + Send + 'static,
        text: bool,
        time: Duration,
    ) {
        let upgrade = self.upgrade;
        tokio::spawn(async move {
            let connection = match tokio::time::timeout(UPGRADE_TIMEOUT, upgrade).await {
                Ok(Ok(connection)) => TokioIo::new(connection),
                Ok(Err(error)) => return tracing::debug!(%error, "websocket upgrade failed; watch dropped"),
                Err(_) => return tracing::debug!("websocket upgrade timed out; watch dropped"),
            };
            if let Err(error) = run_connection(connection, messages, text, time).await {
                tracing::debug!(%error, "websocket connection failed; watch ended");
            }
        });
    }
}

/// Whether a list-valued header contains a word.
fn names(headers: &HeaderMap, name: HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
}

/// Returns the `Sec-WebSocket-Accept` value of a key.
fn accept(key: &[u8]) -> String {
    let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(key);
    context.update(GUID);
    STANDARD.encode(context.finish())
}

async fn run_connection(
    connection: impl AsyncRead + AsyncWrite,
    messages: impl Stream<Item = Bytes>,
    text: bool,
    time: Duration,
) -> io::Result<()> {
    let (mut read, mut write) = tokio::io::split(connection);
    let mut messages = std::pin::pin!(messages);
    let mut received = ClientFrameParser::default();
    let mut buffer = [0; 1024];
    let opcode = if text { TEXT } else { BINARY };
    loop {
        let (frame, last) = tokio::select! {
            count = read.read(&mut buffer) => match count? {
                0 => return Ok(()),
                count => match received.take(buffer.get(..count).unwrap_or_default()) {
                    Reply::Nothing => continue,
                    Reply::Frames(frames) => (frames, false),
                    Reply::Close(frames) => (frames, true),
                },
            },
            message = messages.next() => match message {
                Some(message) => (frame(opcode, &message), false),
                None => (frame(CLOSE, &NORMAL.to_be_bytes()), true),
            },
        };
        send(&mut write, &frame, last, time).await?;
        if last {
            return Ok(());
        }
    }
}

/// Sends bytes to a client that must take all of them within `time`; `last` closes the connection.
///
/// # Errors
///
/// `TimedOut`, and errors of the connection.
async fn send(
    write: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    last: bool,
    time: Duration,
) -> io::Result<()> {
    let sent = async {
        write.write_all(bytes).await?;
        if last { write.shutdown().await } else { write.flush().await }
    };
    tokio::time::timeout(time, sent).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn websocket_accept_matches_rfc_6455_example() {
        assert_eq!(accept(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    /// A client that takes a few bytes at a time must take the whole message in time, too.
    #[tokio::test]
    async fn websocket_message_not_read_in_time_fails_with_timeout() {
        let message = vec![7; 64 * 1024];
        let (mut ours, mut theirs) = tokio::io::duplex(1024);
        let took = tokio::spawn(async move {
            let mut all = Vec::new();
            theirs.read_to_end(&mut all).await.map(|_| all)
        });
        send(&mut ours, &message, true, UPGRADE_TIMEOUT).await.unwrap();
        assert!(took.await.unwrap().unwrap() == message);

        let (mut ours, mut theirs) = tokio::io::duplex(1024);
        let slow = tokio::spawn(async move {
            while theirs.read_u8().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let late = send(&mut ours, &message, false, Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        slow.abort();
    }
}
