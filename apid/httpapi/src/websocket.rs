//! Watches over WebSocket (RFC 6455), for browsers, which cannot read a body as a stream (requirements
//! D-WATCH-34).
//!
//! # Contract
//!
//! apid responds 101 to a watch with a WebSocket upgrade, and sends each event as a message: text for JSON,
//! binary for other encodings. A Protobuf event has no length prefix here. Errors before the first event are
//! ordinary responses. The server closes with 1000 at the end of the watch. It answers pings and ignores
//! other client messages up to [`MAX_CLIENT_MESSAGE_BYTES`]. It cuts the connection of a client that does not
//! take a message within the request timeout.
//!
//! tungstenite reads frames and answers pings. Events bypass its write buffer, because that buffer never shrinks:
//! an idle connection owns only [`READ_BUFFER_BYTES`].
//!
//! The selected sub-protocol is the first one that the client names ([`Handshake::from_head`]).
//! Authentication has already removed a bearer token from the list.
//!
//! # Reference
//!
//! Kubernetes' `WatchServer.HandleWS`. Unlike it, apid ignores `Origin`, because authorization depends on
//! credentials alone.

use std::io;
use std::time::Duration;

use apimachinery::status::Status;
use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Buf as _, Bytes};
use futures_util::{SinkExt as _, Stream, StreamExt as _};
use http::HeaderValue;
use http::header::{
    CONNECTION, HeaderName, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, SEC_WEBSOCKET_PROTOCOL,
    SEC_WEBSOCKET_VERSION, UPGRADE,
};
use http::request::Parts;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{CloseCode, Data, OpCode};
use tokio_tungstenite::tungstenite::protocol::frame::{CloseFrame, FrameHeader};
use tokio_tungstenite::tungstenite::protocol::{Message, Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, Utf8Bytes};

use crate::negotiate::list_elements;

/// The GUID that RFC 6455 appends to the key of a client.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// Maximum time for the connection upgrade.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(60);

/// Size of the read buffer of a connection in bytes: more than a control frame.
const READ_BUFFER_BYTES: usize = 256;

/// Maximum size of a message from the client. Larger messages end the watch with 1009.
const MAX_CLIENT_MESSAGE_BYTES: usize = 64 * 1024;

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
    pub(super) fn from_head(head: &Parts) -> Result<Option<Self>, Status> {
        let headers = &head.headers;
        let contains =
            |name, word: &str| list_elements(headers, name).any(|element| element.eq_ignore_ascii_case(word));
        if !contains(UPGRADE, "websocket") || !contains(CONNECTION, "upgrade") {
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
        let accept = HeaderValue::from_str(&accept_value(key)).map_err(Status::internal)?;
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

    /// Selects a sub-protocol instead of the first one that the client names; None selects none.
    #[must_use]
    pub(super) fn with_protocol(mut self, protocol: Option<&str>) -> Self {
        self.headers.retain(|(name, _)| name != SEC_WEBSOCKET_PROTOCOL);
        if let Some(Ok(protocol)) = protocol.map(HeaderValue::from_str) {
            self.headers.push((SEC_WEBSOCKET_PROTOCOL, protocol));
        }
        self
    }

    /// Waits for the connection, which the client upgrades after the response.
    ///
    /// # Errors
    ///
    /// `TimedOut`, and errors of the upgrade.
    pub(super) async fn upgrade(self) -> io::Result<TokioIo<Upgraded>> {
        match tokio::time::timeout(UPGRADE_TIMEOUT, self.upgrade).await {
            Ok(Ok(connection)) => Ok(TokioIo::new(connection)),
            Ok(Err(error)) => Err(io::Error::other(error)),
            Err(_elapsed) => Err(io::ErrorKind::TimedOut.into()),
        }
    }

    /// Sends each item as a message after the connection upgrade.
    ///
    /// The client must take each message within `message_timeout`.
    pub(super) fn send(
        self,
        messages: impl Stream<Item = Bytes> + Send + 'static,
        is_text: bool,
        message_timeout: Duration,
    ) {
        tokio::spawn(async move {
            let connection = match self.upgrade().await {
                Ok(connection) => connection,
                Err(error) => return tracing::debug!(%error, "websocket upgrade failed; watch ended"),
            };
            if let Err(error) = run_connection(connection, messages, is_text, message_timeout).await {
                tracing::debug!(%error, "websocket connection failed; watch ended");
            }
        });
    }
}

/// Returns the `Sec-WebSocket-Accept` value of a key.
fn accept_value(key: &[u8]) -> String {
    let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(key);
    context.update(GUID);
    STANDARD.encode(context.finish())
}

/// Sends messages and answers the client until one side closes.
async fn run_connection(
    connection: impl AsyncRead + AsyncWrite + Unpin,
    messages: impl Stream<Item = Bytes>,
    is_text: bool,
    message_timeout: Duration,
) -> Result<(), Error> {
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(0)
        .max_message_size(Some(MAX_CLIENT_MESSAGE_BYTES))
        .max_frame_size(Some(MAX_CLIENT_MESSAGE_BYTES));
    let mut socket = WebSocketStream::from_raw_socket(connection, Role::Server, Some(config)).await;
    let opcode = OpCode::Data(if is_text { Data::Text } else { Data::Binary });
    let mut messages = std::pin::pin!(messages);
    loop {
        tokio::select! {
            received = socket.next() => match received {
                // tungstenite has queued the reply; the flush sends it.
                Some(Ok(Message::Ping(_))) => with_timeout(message_timeout, socket.flush()).await?,
                Some(Ok(Message::Close(_))) => {
                    return with_timeout(message_timeout, confirm_close(&mut socket)).await;
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    if let Some(code) = close_code(&error) {
                        with_timeout(message_timeout, close_with(&mut socket, code)).await?;
                    }
                    return Err(error);
                }
                None => return Ok(()),
            },
            message = messages.next() => match message {
                Some(message) => with_timeout(message_timeout, send(&mut socket, opcode, message)).await?,
                None => return with_timeout(message_timeout, close_with(&mut socket, CloseCode::Normal)).await,
            },
        }
    }
}

/// Limits the time that a client has to take a message.
///
/// # Errors
///
/// `TimedOut`, and errors of the connection.
async fn with_timeout(
    message_timeout: Duration,
    work: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    let timeout_error = || Error::Io(io::ErrorKind::TimedOut.into());
    tokio::time::timeout(message_timeout, work).await.map_err(|_| timeout_error())?
}

/// Sends a message as one frame. The frame bypasses the write buffer of the socket.
async fn send<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<S>,
    opcode: OpCode,
    message: Bytes,
) -> Result<(), Error> {
    // A reply to a ping can wait in the socket.
    socket.flush().await?;
    let header = FrameHeader { opcode, ..FrameHeader::default() };
    let mut head = Vec::with_capacity(header.len(message.len() as u64));
    header.format(message.len() as u64, &mut head)?;
    let connection = socket.get_mut();
    connection.write_all_buf(&mut head.as_slice().chain(message)).await?;
    Ok(connection.flush().await?)
}

/// Sends a close frame and closes the connection.
async fn close_with<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<S>,
    code: CloseCode,
) -> Result<(), Error> {
    let frame = CloseFrame { code, reason: Utf8Bytes::default() };
    socket.send(Message::Close(Some(frame))).await?;
    Ok(socket.get_mut().shutdown().await?)
}

/// Sends the reply to a close frame and closes the connection.
async fn confirm_close<S: AsyncRead + AsyncWrite + Unpin>(
    socket: &mut WebSocketStream<S>,
) -> Result<(), Error> {
    socket.flush().await?;
    Ok(socket.get_mut().shutdown().await?)
}

/// Returns the close code for an error; None if the connection is broken and no close frame can be sent.
fn close_code(error: &Error) -> Option<CloseCode> {
    match error {
        Error::Protocol(ProtocolError::ResetWithoutClosingHandshake) => None,
        Error::Protocol(_) => Some(CloseCode::Protocol),
        Error::Capacity(_) => Some(CloseCode::Size),
        Error::Utf8(_) => Some(CloseCode::Invalid),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, DuplexStream};

    const TIMEOUT: Duration = Duration::from_secs(20);

    #[test]
    fn websocket_accept_matches_rfc_6455_example() {
        assert_eq!(accept_value(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    /// Runs a connection without events. Returns the end of the client and the task of the connection.
    fn idle_connection() -> (DuplexStream, tokio::task::JoinHandle<Result<(), Error>>) {
        let (client, server) = tokio::io::duplex(1 << 20);
        (client, tokio::spawn(run_connection(server, futures_util::stream::pending(), true, TIMEOUT)))
    }

    /// Encodes a masked frame, as clients send it.
    fn encode_masked_frame(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![first];
        match u8::try_from(payload.len()) {
            Ok(length @ ..=125) => frame.push(0x80 | length),
            _ => {
                frame.push(0x80 | 127);
                frame.extend((payload.len() as u64).to_be_bytes());
            }
        }
        let mask = [1, 2, 3, 4];
        frame.extend(mask);
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        frame
    }

    #[tokio::test]
    async fn websocket_client_frames_get_expected_replies() {
        let fragments = [
            encode_masked_frame(0x01, b"a"),
            encode_masked_frame(0x89, b"between"),
            encode_masked_frame(0x80, b"b"),
        ]
        .concat();
        let large = vec![b'x'; MAX_CLIENT_MESSAGE_BYTES];
        for (sent, replies) in [
            (encode_masked_frame(0x89, b"hi"), &b"\x8a\x02hi"[..]),
            ([encode_masked_frame(0x81, b"text"), encode_masked_frame(0x89, b"")].concat(), b"\x8a\x00"),
            ([encode_masked_frame(0x82, &large), encode_masked_frame(0x89, b"")].concat(), b"\x8a\x00"),
            (fragments, b"\x8a\x07between"),
            (encode_masked_frame(0x88, b""), b"\x88\x00"),
            (encode_masked_frame(0x88, b"\x03\xe9"), b"\x88\x02\x03\xe9"),
            (encode_masked_frame(0x82, &[&large[..], b"x"].concat()), b"\x88\x02\x03\xf1"),
            (encode_masked_frame(0x81, b"\xff"), b"\x88\x02\x03\xef"),
            (b"\x89\x00".to_vec(), b"\x88\x02\x03\xea"),
            (encode_masked_frame(0xc1, b"reserved bit"), b"\x88\x02\x03\xea"),
            (encode_masked_frame(0x83, b"opcode"), b"\x88\x02\x03\xea"),
            (encode_masked_frame(0x09, b"a control frame in parts"), b"\x88\x02\x03\xea"),
        ] {
            let (mut client, running) = idle_connection();
            client.write_all(&sent).await.unwrap();
            let mut received = vec![0; replies.len()];
            client.read_exact(&mut received).await.unwrap();
            assert_eq!(received, replies, "{:?}", &sent[..sent.len().min(20)]);
            if replies[0] == 0x88 {
                assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "the server closes the connection");
            }
            running.abort();
        }
    }

    #[tokio::test]
    async fn websocket_messages_are_whole_frames_followed_by_close() {
        let (mut client, server) = tokio::io::duplex(1024);
        let messages = [vec![1; 125], vec![2; 126], vec![3; 70_000]];
        let events = futures_util::stream::iter(messages.clone().map(Bytes::from));
        tokio::spawn(run_connection(server, events, false, TIMEOUT));
        let mut received = Vec::new();
        client.read_to_end(&mut received).await.unwrap();
        let heads = [&[0x82, 125][..], &[0x82, 126, 0, 126], &[0x82, 127, 0, 0, 0, 0, 0, 1, 0x11, 0x70]];
        let frames = heads.iter().zip(&messages).flat_map(|(head, message)| [*head, message]);
        let expected = frames.chain([&b"\x88\x02\x03\xe8"[..]]).collect::<Vec<_>>().concat();
        assert!(received == expected, "{} bytes", received.len());
    }

    /// A client that takes a few bytes at a time must take the whole message in time, too.
    #[tokio::test]
    async fn websocket_message_not_read_in_time_fails_with_timeout() {
        let (mut client, server) = tokio::io::duplex(1024);
        let events = futures_util::stream::iter([Bytes::from(vec![7; 64 * 1024])]);
        let slow = tokio::spawn(async move {
            while client.read_u8().await.is_ok() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        });
        let late = run_connection(server, events, false, Duration::from_millis(20)).await.unwrap_err();
        assert!(matches!(late, Error::Io(error) if error.kind() == io::ErrorKind::TimedOut));
        slow.abort();
    }
}
