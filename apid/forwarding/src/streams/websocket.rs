//! Messages of WebSocket clients (RFC 6455), in pieces, and frames for them.
//!
//! Unlike a reader of whole messages, the reader holds no message: a client may send a message of any size, and a piece
//! goes on to the node at once.

use std::io::{self, Cursor};

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Control, Data, OpCode};

/// Size of the read buffer in bytes.
const READ_BUFFER_BYTES: usize = 8 * 1024;
/// Maximum size of the payload of a control frame in bytes.
const MAX_CONTROL_BYTES: u64 = 125;

/// Close code of a normal end.
pub const CLOSE_NORMAL: u16 = 1000;
/// Close code of a violation of the protocol.
pub const CLOSE_PROTOCOL_ERROR: u16 = 1002;

/// A violation of the framing by a client. The connection cannot be used after it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum MessageError {
    /// A reserved bit or opcode, an unmasked frame, an invalid control frame or a fragment in a wrong place.
    #[error("client violates the WebSocket protocol")]
    Protocol,
}

/// A part of what a client sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientFrame {
    /// A piece of a text or binary message.
    Message {
        /// Whether the piece begins a message.
        is_first: bool,
        /// The unmasked bytes.
        data: Bytes,
    },
    /// A ping to reply to, with its payload.
    Ping(Bytes),
    /// The client closes the connection.
    Close,
}

/// The data frame whose payload the decoder is inside.
#[derive(Debug)]
struct OpenFrame {
    remaining: u64,
    /// The mask, rotated so that its first byte is for the next byte of the payload.
    mask: [u8; 4],
    is_final: bool,
}

/// Splits the bytes of a client into pieces of messages and control frames.
#[derive(Debug, Default)]
pub struct ClientDecoder {
    open: Option<OpenFrame>,
    /// Whether a message has begun and its last frame has not arrived.
    in_message: bool,
    /// Whether the next piece begins a message.
    is_first: bool,
}

impl ClientDecoder {
    /// Takes the next piece or control frame out of `bytes`. Returns None if more bytes are needed.
    ///
    /// # Errors
    ///
    /// The bytes violate the framing.
    pub fn decode(&mut self, bytes: &mut BytesMut) -> Result<Option<ClientFrame>, MessageError> {
        loop {
            if let Some(frame) = self.open.take() {
                if bytes.is_empty() && frame.remaining > 0 {
                    self.open = Some(frame);
                    return Ok(None);
                }
                return Ok(Some(self.take_piece(frame, bytes)));
            }
            let mut cursor = Cursor::new(&bytes[..]);
            let parsed = FrameHeader::parse(&mut cursor).map_err(|_| MessageError::Protocol)?;
            let Some((header, length)) = parsed else { return Ok(None) };
            let head_bytes = usize::try_from(cursor.position()).unwrap_or(usize::MAX);
            let has_reserved_bit = header.rsv1 || header.rsv2 || header.rsv3;
            let mask = header.mask.filter(|_| !has_reserved_bit).ok_or(MessageError::Protocol)?;
            match header.opcode {
                OpCode::Data(data) => {
                    let begins = match data {
                        Data::Text | Data::Binary => true,
                        Data::Continue => false,
                        Data::Reserved(_) => return Err(MessageError::Protocol),
                    };
                    if begins == self.in_message {
                        return Err(MessageError::Protocol);
                    }
                    bytes.advance(head_bytes);
                    (self.in_message, self.is_first) = (true, begins || self.is_first);
                    self.open = Some(OpenFrame { remaining: length, mask, is_final: header.is_final });
                }
                OpCode::Control(control) => {
                    if length > MAX_CONTROL_BYTES || !header.is_final {
                        return Err(MessageError::Protocol);
                    }
                    let payload_bytes = usize::try_from(length).unwrap_or(usize::MAX);
                    if bytes.len() < head_bytes + payload_bytes {
                        return Ok(None);
                    }
                    bytes.advance(head_bytes);
                    let mut payload = bytes.split_to(payload_bytes);
                    unmask(&mut payload, mask);
                    match control {
                        Control::Ping => return Ok(Some(ClientFrame::Ping(payload.freeze()))),
                        Control::Close => return Ok(Some(ClientFrame::Close)),
                        Control::Pong => {}
                        Control::Reserved(_) => return Err(MessageError::Protocol),
                    }
                }
            }
        }
    }

    /// Takes a piece of the payload of a data frame.
    fn take_piece(&mut self, mut frame: OpenFrame, bytes: &mut BytesMut) -> ClientFrame {
        let size = usize::try_from(frame.remaining).unwrap_or(usize::MAX).min(bytes.len());
        let mut data = bytes.split_to(size);
        unmask(&mut data, frame.mask);
        frame.mask.rotate_left(size % 4);
        frame.remaining -= size as u64;
        let is_first = std::mem::take(&mut self.is_first);
        if frame.remaining > 0 {
            self.open = Some(frame);
        } else {
            self.in_message = !frame.is_final;
        }
        ClientFrame::Message { is_first, data: data.freeze() }
    }
}

/// Removes the mask of a payload.
fn unmask(payload: &mut [u8], mask: [u8; 4]) {
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = payload.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

/// Reads what a client sends.
#[derive(Debug)]
pub struct ClientReader<R> {
    connection: R,
    buffer: BytesMut,
    decoder: ClientDecoder,
}

impl<R: AsyncRead + Unpin> ClientReader<R> {
    /// Wraps the read half of a connection.
    pub fn new(connection: R) -> Self {
        ClientReader { connection, buffer: BytesMut::new(), decoder: ClientDecoder::default() }
    }

    /// Returns the next piece of a message or control frame. Returns None after the client has closed the connection.
    ///
    /// Dropping the future loses no bytes.
    ///
    /// # Errors
    ///
    /// `InvalidData` for a violation of the framing, and errors of the connection.
    pub async fn next(&mut self) -> io::Result<Option<ClientFrame>> {
        loop {
            let decoded = self.decoder.decode(&mut self.buffer);
            if let Some(frame) = decoded.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
                return Ok(Some(frame));
            }
            // An idle connection keeps no buffer of its last messages.
            if self.buffer.is_empty() {
                self.buffer = BytesMut::new();
            }
            self.buffer.reserve(READ_BUFFER_BYTES);
            if self.connection.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }
}

/// Encodes the head of a binary message of one frame, with `length` bytes.
pub fn binary_head(length: usize) -> Bytes {
    head(0x82, length)
}

/// Encodes a pong with the payload of its ping.
pub fn pong(payload: &[u8]) -> Bytes {
    [&head(0x8a, payload.len())[..], payload].concat().into()
}

/// Encodes a close frame.
pub fn close(code: u16) -> Bytes {
    [&head(0x88, 2)[..], &code.to_be_bytes()].concat().into()
}

/// Encodes the head of an unmasked frame. `first` is its final bit and opcode.
fn head(first: u8, length: usize) -> Bytes {
    let mut head = BytesMut::with_capacity(10);
    head.put_u8(first);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(length @ ..=125), _) => head.put_u8(length),
        (_, Ok(length)) => {
            head.put_u8(126);
            head.put_u16(length);
        }
        _ => {
            head.put_u8(127);
            head.put_u64(length as u64);
        }
    }
    head.freeze()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Encodes a masked frame, as clients send it.
    pub(in crate::streams) fn masked(first: u8, payload: &[u8]) -> Vec<u8> {
        let mask = [0x11, 0x22, 0x33, 0x44];
        let mut frame = head(first, payload.len()).to_vec();
        frame[1] |= 0x80;
        frame.extend(mask);
        frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
        frame
    }

    /// Decodes bytes that arrive in pieces of a size. Joins the pieces of a message.
    fn decode(bytes: &[u8], size: usize) -> Result<Vec<ClientFrame>, MessageError> {
        let (mut decoder, mut buffer, mut frames) =
            (ClientDecoder::default(), BytesMut::new(), Vec::<ClientFrame>::new());
        for piece in bytes.chunks(size.max(1)) {
            buffer.extend_from_slice(piece);
            while let Some(frame) = decoder.decode(&mut buffer)? {
                let message = frames.iter_mut().rev().find_map(|frame| match frame {
                    ClientFrame::Message { data, .. } => Some(data),
                    _ => None,
                });
                match (message, frame) {
                    (Some(data), ClientFrame::Message { is_first: false, data: more }) => {
                        *data = [&data[..], &more].concat().into();
                    }
                    (_, frame) => frames.push(frame),
                }
            }
        }
        Ok(frames)
    }

    fn message(data: &[u8]) -> ClientFrame {
        ClientFrame::Message { is_first: true, data: Bytes::copy_from_slice(data) }
    }

    #[test]
    fn messages_fragments_and_control_frames_decode_in_each_split() {
        let large = vec![b'l'; 70_000];
        let bytes = [
            masked(0x82, b"whole"),
            masked(0x01, b"in "),
            masked(0x89, b"between"),
            masked(0x00, b""),
            masked(0x80, b"parts"),
            masked(0x82, b""),
            masked(0x8a, b"pong"),
            masked(0x82, &large),
            masked(0x88, b"\x03\xe8"),
        ]
        .concat();
        let expected = [
            message(b"whole"),
            message(b"in parts"),
            ClientFrame::Ping(Bytes::from_static(b"between")),
            message(b""),
            message(&large),
            ClientFrame::Close,
        ];
        for size in [1, 2, 3, 7, 100, bytes.len()] {
            assert_eq!(decode(&bytes, size).unwrap(), expected, "pieces of {size} bytes");
        }
    }

    #[test]
    fn protocol_violations_are_errors() {
        for bytes in [
            b"\x82\x01x".to_vec(),
            masked(0xc2, b"reserved bit"),
            masked(0x83, b"reserved opcode"),
            masked(0x8b, b"reserved control opcode"),
            masked(0x80, b"no message to continue"),
            [masked(0x02, b"a"), masked(0x82, b"message in a message")].concat(),
            masked(0x09, b"fragmented ping"),
            masked(0x89, &[0; 126]),
        ] {
            assert_eq!(decode(&bytes, 1), Err(MessageError::Protocol), "{bytes:?}");
        }
    }

    #[test]
    fn random_client_bytes_decode_equally_in_each_split() {
        let examples =
            [masked(0x82, b"whole"), [masked(0x01, b"a"), masked(0x89, b"b"), masked(0x80, b"c")].concat()];
        fuzzing::run("WebSocket client frames", &examples, |input| {
            assert_eq!(decode(input, input.len()), decode(input, 3));
        });
    }

    #[test]
    fn encoded_frames_match_rfc_6455() {
        assert_eq!(&binary_head(5)[..], b"\x82\x05");
        assert_eq!(&binary_head(126)[..], b"\x82\x7e\x00\x7e");
        assert_eq!(&binary_head(0x1_0000)[..], b"\x82\x7f\x00\x00\x00\x00\x00\x01\x00\x00");
        assert_eq!(&pong(b"hi")[..], b"\x8a\x02hi");
        assert_eq!(&close(CLOSE_NORMAL)[..], b"\x88\x02\x03\xe8");
    }
}
