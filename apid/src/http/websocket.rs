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

/// What RFC 6455 appends to a client's key.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// How long the connection may take to become a WebSocket, and a client to take what is sent.
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
        let sent = async {
            write.write_all(&frame).await?;
            write.flush().await
        };
        tokio::time::timeout(PATIENCE, sent).await.map_err(|_| io::ErrorKind::TimedOut)??;
        if last {
            return write.shutdown().await;
        }
    }
}

const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = 8;
const PING: u8 = 9;
const PONG: u8 = 10;

/// Codes of a close: nothing is wrong, and the client broke the protocol.
const NORMAL: u16 = 1000;
const PROTOCOL_ERROR: u16 = 1002;

/// Bytes of the longest control frame's payload.
const CONTROL_MAX: usize = 125;

/// A whole message, unmasked, as servers send them.
fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(payload.len() + 10);
    out.push(0x80 | opcode);
    match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
        (Ok(length), _) if usize::from(length) <= CONTROL_MAX => out.push(length),
        (_, Ok(length)) => {
            out.push(126);
            out.extend_from_slice(&length.to_be_bytes());
        }
        _ => {
            out.push(127);
            out.extend_from_slice(&u64::try_from(payload.len()).unwrap_or(u64::MAX).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
    out
}

/// What a client sends: control frames are answered, the content of others is passed over as it comes.
#[derive(Default)]
struct Received {
    /// The beginning of a frame: at most a head and the payload of a control frame.
    begun: Vec<u8>,
    /// Bytes of a payload to pass over.
    passing: u64,
}

/// What is to be sent for what was received.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Nothing,
    Frames(Vec<u8>),
    /// And then no more.
    Close(Vec<u8>),
}

impl Received {
    /// Takes some bytes.
    fn take(&mut self, bytes: &[u8]) -> Reply {
        let mut frames = Vec::new();
        for byte in bytes {
            if self.passing > 0 {
                self.passing -= 1;
                continue;
            }
            self.begun.push(*byte);
            match self.finished() {
                Ok(None) => {}
                Ok(Some((PING, payload))) => frames.extend(frame(PONG, &payload)),
                Ok(Some((CLOSE, payload))) => {
                    // The code is sent back, if there is one.
                    frames.extend(frame(CLOSE, payload.get(..2).unwrap_or_default()));
                    return Reply::Close(frames);
                }
                Ok(Some(_)) => {}
                Err(Malformed) => {
                    frames.extend(frame(CLOSE, &PROTOCOL_ERROR.to_be_bytes()));
                    return Reply::Close(frames);
                }
            }
        }
        if frames.is_empty() { Reply::Nothing } else { Reply::Frames(frames) }
    }

    /// The frame that has begun, if it is whole by now: its opcode, and its payload if it is a control frame.
    fn finished(&mut self) -> Result<Option<(u8, Vec<u8>)>, Malformed> {
        let [first, second, rest @ ..] = self.begun.as_slice() else { return Ok(None) };
        let (opcode, length) = (first & 0x0f, second & 0x7f);
        let control = opcode >= CLOSE;
        let known = opcode <= BINARY || (CLOSE..=PONG).contains(&opcode);
        let whole = first & 0x80 != 0 && usize::from(length) <= CONTROL_MAX;
        if first & 0x70 != 0 || second & 0x80 == 0 || !known || (control && !whole) {
            return Err(Malformed);
        }
        let (length, rest) = match length {
            126 => match rest.split_first_chunk::<2>() {
                Some((length, rest)) => (u64::from(u16::from_be_bytes(*length)), rest),
                None => return Ok(None),
            },
            127 => match rest.split_first_chunk::<8>() {
                Some((length, rest)) => (u64::from_be_bytes(*length), rest),
                None => return Ok(None),
            },
            length => (u64::from(length), rest),
        };
        let Some((mask, payload)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        if !control {
            if length > i64::MAX.unsigned_abs() {
                return Err(Malformed);
            }
            self.passing = length;
            self.begun.clear();
            return Ok(Some((opcode, Vec::new())));
        }
        if u64::try_from(payload.len()).unwrap_or(u64::MAX) < length {
            return Ok(None);
        }
        let payload = payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
        self.begun.clear();
        Ok(Some((opcode, payload)))
    }
}

/// Not what RFC 6455 lets a client send.
#[derive(Debug)]
struct Malformed;

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame as clients send them.
    fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = frame(0, payload);
        out[0] = first;
        out[1] |= 0x80;
        let mask = [1, 2, 3, 4];
        let head = out.len() - payload.len();
        out.splice(head..head, mask);
        out.iter_mut().skip(head + 4).zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
        out
    }

    #[test]
    fn a_key_is_accepted_as_the_rfc_says() {
        assert_eq!(accept(b"dGhlIHNhbXBsZSBub25jZQ=="), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    }

    #[test]
    fn lengths_of_messages() {
        for (length, head) in [
            (0, vec![0x81, 0]),
            (125, vec![0x81, 125]),
            (126, vec![0x81, 126, 0, 126]),
            (65_535, vec![0x81, 126, 0xff, 0xff]),
            (65_536, vec![0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]),
        ] {
            let out = frame(TEXT, &vec![7; length]);
            assert_eq!((&out[..head.len()], out.len()), (head.as_slice(), head.len() + length));
        }
    }

    #[test]
    fn what_clients_send_is_answered_or_passed_over_however_it_is_cut() {
        let close = |code: u16| Reply::Close(frame(CLOSE, &code.to_be_bytes()));
        let pong = |payload: &[u8]| Reply::Frames(frame(PONG, payload));
        let after_text = [masked(0x81, &[9; 70_000]), masked(0x89, b"still there")].concat();
        let fragments = [masked(0x01, b"a"), masked(0x89, b"between"), masked(0x80, b"b")].concat();
        for (sent, reply) in [
            (masked(0x81, b"text"), Reply::Nothing),
            (masked(0x82, &[0; 300]), Reply::Nothing),
            (masked(0x89, b""), pong(b"")),
            (masked(0x89, &[5; 125]), pong(&[5; 125])),
            (masked(0x8a, b"pong"), Reply::Nothing),
            (after_text, pong(b"still there")),
            (fragments, pong(b"between")),
            (masked(0x88, b""), Reply::Close(frame(CLOSE, b""))),
            (masked(0x88, b"\x03\xe9gone"), close(1001)),
            (frame(PING, b"unmasked"), close(1002)),
            (masked(0xc1, b"reserved bit"), close(1002)),
            (masked(0x83, b"opcode"), close(1002)),
            (masked(0x8b, b"opcode"), close(1002)),
            (masked(0x09, b"a control frame in parts"), close(1002)),
            (masked(0x89, &[0; 126]), close(1002)),
            ([&[0x82, 0xff][..], &[0xff; 12]].concat(), close(1002)),
        ] {
            for cut in [sent.len(), 1, 3] {
                let mut received = Received::default();
                let mut replies = Vec::new();
                for part in sent.chunks(cut) {
                    match received.take(part) {
                        Reply::Nothing => {}
                        reply @ Reply::Frames(_) => replies.push(reply),
                        reply @ Reply::Close(_) => {
                            replies.push(reply);
                            break;
                        }
                    }
                    assert!(received.begun.len() <= 14 + CONTROL_MAX);
                }
                let replies = if replies.is_empty() { vec![Reply::Nothing] } else { replies };
                assert_eq!(
                    replies,
                    [match &reply {
                        Reply::Nothing => Reply::Nothing,
                        Reply::Frames(frames) => Reply::Frames(frames.clone()),
                        Reply::Close(frames) => Reply::Close(frames.clone()),
                    }],
                    "{sent:?} cut by {cut}"
                );
            }
        }
    }
}
