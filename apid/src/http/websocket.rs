//! Watches over WebSocket (RFC 6455), for clients that cannot read a body as it comes: browsers (requirements D-WATCH-34).
//!
//! # Contract
//!
//! A watch that asks to become a WebSocket is answered 101, and each event is a message: of text for JSON, binary for other
//! encodings, where a Protobuf event comes without the length that frames it in a body. What is wrong before the first
//! event is an ordinary answer. The server closes with 1000 when the watch is over; it answers pings and otherwise ignores
//! what the client sends. A client that takes no bytes for a minute is cut off.
//!
//! The sub-protocol agreed on is the first that the client names ([`Handshake::of`]): a bearer token among them was taken
//! out before, when the request was authenticated.
//!
//! # Reference
//!
//! Kubernetes' `WatchServer.HandleWS`. Unlike it, no `Origin` is asked for: who may watch depends on credentials alone.

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

use self::frames::{BINARY, CLOSE, NORMAL, Received, Reply, TEXT, frame};

/// What RFC 6455 appends to a client's key.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// How long the connection may take to become a WebSocket, and a client to take any bytes of what is sent.
const PATIENCE: Duration = Duration::from_secs(60);

/// A request to become a WebSocket that can be granted.
pub(super) struct Handshake {
    upgrade: OnUpgrade,
    /// Headers of the answer.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
}

impl Handshake {
    /// That of a request; None when it does not ask, or its connection cannot (HTTP/2).
    ///
    /// # Errors
    ///
    /// 400: it asks in a way that RFC 6455 does not know.
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
        let mut answer = vec![
            (UPGRADE, HeaderValue::from_static("websocket")),
            (CONNECTION, HeaderValue::from_static("Upgrade")),
            (SEC_WEBSOCKET_ACCEPT, accept),
        ];
        let offered = headers.get(SEC_WEBSOCKET_PROTOCOL).and_then(|value| value.to_str().ok());
        let protocol =
            offered.and_then(|value| value.split(',').map(str::trim).find(|name| !name.is_empty()));
        if let Some(Ok(protocol)) = protocol.map(HeaderValue::from_str) {
            answer.push((SEC_WEBSOCKET_PROTOCOL, protocol));
        }
        Ok(Some(Handshake { upgrade, headers: answer }))
    }

    /// Sends messages, one an item, once the connection has become a WebSocket.
    pub(super) fn send(self, messages: impl Stream<Item = Bytes> + Send + 'static, text: bool) {
        let upgrade = self.upgrade;
        tokio::spawn(async move {
            let connection = match tokio::time::timeout(PATIENCE, upgrade).await {
                Ok(Ok(connection)) => TokioIo::new(connection),
                Ok(Err(error)) => return tracing::debug!(%error, "a connection did not become a websocket"),
                Err(_) => return tracing::debug!("a connection did not become a websocket in time"),
            };
            if let Err(error) = converse(connection, messages, text).await {
                tracing::debug!(%error, "a websocket ended");
            }
        });
    }
}

/// Whether a header that is a list has a word.
fn names(headers: &HeaderMap, name: HeaderName, word: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|part| part.trim().eq_ignore_ascii_case(word))
}

/// What proves that a key was understood.
fn accept(key: &[u8]) -> String {
    let mut context = digest::Context::new(&digest::SHA1_FOR_LEGACY_USE_ONLY);
    context.update(key);
    context.update(GUID);
    STANDARD.encode(context.finish())
}

async fn converse(
    connection: impl AsyncRead + AsyncWrite,
    messages: impl Stream<Item = Bytes>,
    text: bool,
) -> io::Result<()> {
    let (mut read, mut write) = tokio::io::split(connection);
    let mut messages = std::pin::pin!(messages);
    let mut received = Received::default();
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
        send(&mut write, &frame, PATIENCE).await?;
        if last {
            return write.shutdown().await;
        }
    }
}

/// Sends bytes to a client that takes some of them in each `patience`: a slow one is waited for, one that has stopped is
/// not.
///
/// # Errors
///
/// `TimedOut`, and those of the connection.
async fn send(write: &mut (impl AsyncWrite + Unpin), mut bytes: &[u8], patience: Duration) -> io::Result<()> {
    let late = |_| io::Error::from(io::ErrorKind::TimedOut);
    while !bytes.is_empty() {
        let part = bytes.get(..PART).unwrap_or(bytes);
        let taken = tokio::time::timeout(patience, write.write(part)).await.map_err(late)??;
        if taken == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        bytes = bytes.get(taken..).unwrap_or_default();
    }
    tokio::time::timeout(patience, write.flush()).await.map_err(late)?
}

/// Bytes of a message that a connection is given at a time.
const PART: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_accepted_as_the_rfc_says() {
        assert_eq!(accept(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    /// A client that takes a few bytes at a time and lets time pass between: all of it comes, though the whole takes much
    /// longer than its patience is.
    #[tokio::test]
    async fn a_slow_client_is_waited_for_and_one_that_has_stopped_is_not() {
        let message: Vec<u8> = (0..4 * PART).map(|i| (i % 251) as u8).collect();
        let mut slow = Slow { taken: Vec::new(), pauses: 40, every: PART / 10, sleep: None };
        send(&mut slow, &message, 4 * Slow::PAUSE).await.unwrap();
        assert!(slow.taken == message && slow.pauses == 0);
        let (mut ours, theirs) = tokio::io::duplex(PART);
        let stopped = send(&mut ours, &message, Duration::from_millis(1)).await.unwrap_err();
        assert_eq!(stopped.kind(), io::ErrorKind::TimedOut);
        drop(theirs);
        let gone = send(&mut ours, &message, PATIENCE).await.unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::BrokenPipe);
    }

    /// Takes `every` bytes after each pause.
    struct Slow {
        taken: Vec<u8>,
        pauses: usize,
        every: usize,
        sleep: Option<std::pin::Pin<Box<tokio::time::Sleep>>>,
    }

    impl Slow {
        const PAUSE: Duration = Duration::from_millis(10);
    }

    impl AsyncWrite for Slow {
        fn poll_write(
            mut self: std::pin::Pin<&mut Self>,
            context: &mut std::task::Context<'_>,
            bytes: &[u8],
        ) -> std::task::Poll<io::Result<usize>> {
            let this = &mut *self;
            if this.pauses > 0 {
                let sleep = this.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep(Self::PAUSE)));
                std::task::ready!(sleep.as_mut().poll(context));
                this.sleep = None;
                this.pauses -= 1;
            }
            let count = bytes.len().min(this.every);
            this.taken.extend_from_slice(&bytes[..count]);
            std::task::Poll::Ready(Ok(count))
        }

        fn poll_flush(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Ready(Ok(()))
        }

        fn poll_shutdown(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<io::Result<()>> {
            std::task::Poll::Ready(Ok(()))
        }
    }
}
