//! Frames of SPDY/3.1: decoder and encoders.
//!
//! A data frame starts with the stream, a control frame with the version and its type; flags and a length of 24 bits
//! follow in both.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use thiserror::Error;

/// Bytes in the head of each frame.
const HEAD_BYTES: usize = 8;
/// Maximum size of the payload of a control frame in bytes.
pub const MAX_CONTROL_BYTES: usize = 16 * 1024;
/// The version in each control frame.
const VERSION: u16 = 3;
/// The bit that distinguishes control frames, in the first two bytes of the head.
const CONTROL_BIT: u16 = 0x8000;
/// Streams have 31 bits.
const STREAM_MASK: u32 = 0x7fff_ffff;
/// The flag of the last frame of a stream.
const FLAG_FIN: u8 = 1;

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const HEADERS: u16 = 8;

/// Status of RST_STREAM: the receiver refuses the stream before any processing.
pub const REFUSED_STREAM: u32 = 3;
/// Status of RST_STREAM: the sender needs the stream no longer.
pub const CANCEL: u32 = 5;

/// A violation of the framing. The connection cannot be used after it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// A control frame of another protocol version.
    #[error("SPDY control frame has version {0}, not 3")]
    Version(u16),
    /// A control frame above [`MAX_CONTROL_BYTES`].
    #[error("SPDY control frame has {0} bytes, more than 16384")]
    TooLarge(usize),
    /// A control frame whose length does not fit its type.
    #[error("SPDY control frame of type {kind} has {length} bytes")]
    Length {
        /// The type of the frame.
        kind: u16,
        /// The length of its payload.
        length: usize,
    },
    /// A frame of a stream names stream 0.
    #[error("SPDY frame names stream 0")]
    StreamZero,
}

/// A received frame, or a piece of a data frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The peer opens a stream. `headers` is compressed.
    SynStream {
        /// The new stream.
        stream: u32,
        /// Whether the peer sends no data.
        is_last: bool,
        /// The compressed header block.
        headers: Bytes,
    },
    /// The peer accepts a stream.
    SynReply {
        /// The accepted stream.
        stream: u32,
        /// Whether the peer sends no data.
        is_last: bool,
        /// The compressed header block.
        headers: Bytes,
    },
    /// More headers of a stream.
    Headers {
        /// The stream.
        stream: u32,
        /// Whether the peer sends no more data.
        is_last: bool,
        /// The compressed header block.
        headers: Bytes,
    },
    /// The peer ends a stream in both directions.
    Reset {
        /// The stream.
        stream: u32,
        /// The reason, such as [`CANCEL`].
        status: u32,
    },
    /// A ping, or the reply to one.
    Ping(u32),
    /// The peer accepts no more streams.
    GoAway,
    /// A piece of a data frame.
    Data {
        /// The stream.
        stream: u32,
        /// Whether the peer sends no more data on the stream.
        is_last: bool,
        /// The bytes.
        data: Bytes,
    },
}

/// The frame whose payload the decoder is inside.
#[derive(Debug)]
enum Open {
    /// A data frame with the number of bytes that are still to come.
    Data { stream: u32, is_last: bool, remaining: usize },
    /// A frame that is ignored, with the number of bytes that are still to come.
    Skipped { remaining: usize },
}

/// Splits received bytes into frames.
#[derive(Debug, Default)]
pub struct Decoder {
    open: Option<Open>,
}

impl Decoder {
    /// Takes the next frame out of `bytes`. Returns None if more bytes are needed.
    ///
    /// # Errors
    ///
    /// The bytes violate the framing.
    pub fn decode(&mut self, bytes: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        loop {
            match self.open.take() {
                Some(Open::Data { stream, is_last, remaining }) => {
                    if bytes.is_empty() {
                        self.open = Some(Open::Data { stream, is_last, remaining });
                        return Ok(None);
                    }
                    let data = bytes.split_to(remaining.min(bytes.len())).freeze();
                    let remaining = remaining - data.len();
                    if remaining > 0 {
                        self.open = Some(Open::Data { stream, is_last, remaining });
                    }
                    return Ok(Some(Frame::Data { stream, is_last: is_last && remaining == 0, data }));
                }
                Some(Open::Skipped { remaining }) => {
                    let skipped = remaining.min(bytes.len());
                    bytes.advance(skipped);
                    if remaining > skipped {
                        self.open = Some(Open::Skipped { remaining: remaining - skipped });
                        return Ok(None);
                    }
                }
                None => {
                    if let Some(frame) = self.decode_head(bytes)? {
                        return Ok(Some(frame));
                    }
                    if self.open.is_none() {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Decodes a frame whose payload is complete, or opens a frame. None with no open frame: more bytes are needed.
    fn decode_head(&mut self, bytes: &mut BytesMut) -> Result<Option<Frame>, FrameError> {
        let mut head = match bytes.get(..HEAD_BYTES) {
            Some(head) => head,
            None => return Ok(None),
        };
        let first = head.get_u32();
        let flags = head.get_u8();
        let length = usize::try_from(head.get_uint(3)).unwrap_or(usize::MAX);
        let is_last = flags & FLAG_FIN != 0;
        let [high, low, kind_high, kind_low] = first.to_be_bytes();
        let version = u16::from_be_bytes([high, low]);
        if version & CONTROL_BIT == 0 {
            bytes.advance(HEAD_BYTES);
            let stream = nonzero(first)?;
            if length == 0 {
                return Ok(Some(Frame::Data { stream, is_last, data: Bytes::new() }));
            }
            self.open = Some(Open::Data { stream, is_last, remaining: length });
            return Ok(None);
        }
        if version & !CONTROL_BIT != VERSION {
            return Err(FrameError::Version(version & !CONTROL_BIT));
        }
        let kind = u16::from_be_bytes([kind_high, kind_low]);
        if !matches!(kind, SYN_STREAM | SYN_REPLY | RST_STREAM | PING | GOAWAY | HEADERS) {
            bytes.advance(HEAD_BYTES);
            self.open = Some(Open::Skipped { remaining: length });
            return Ok(None);
        }
        if length > MAX_CONTROL_BYTES {
            return Err(FrameError::TooLarge(length));
        }
        if bytes.len() < HEAD_BYTES + length {
            return Ok(None);
        }
        bytes.advance(HEAD_BYTES);
        control_frame(kind, is_last, bytes.split_to(length).freeze()).map(Some)
    }

    /// Whether the decoder is between two frames.
    pub fn is_between_frames(&self) -> bool {
        self.open.is_none()
    }
}

/// Reads the payload of a control frame.
fn control_frame(kind: u16, is_last: bool, mut payload: Bytes) -> Result<Frame, FrameError> {
    let length = payload.len();
    let has_length = match kind {
        SYN_STREAM => length >= 10,
        SYN_REPLY | HEADERS => length >= 4,
        PING => length == 4,
        _ => length == 8,
    };
    if !has_length {
        return Err(FrameError::Length { kind, length });
    }
    let number = payload.get_u32();
    Ok(match kind {
        PING => Frame::Ping(number),
        GOAWAY => Frame::GoAway,
        RST_STREAM => Frame::Reset { stream: nonzero(number)?, status: payload.get_u32() },
        SYN_STREAM => {
            // The associated stream, the priority and the slot.
            payload.advance(6);
            Frame::SynStream { stream: nonzero(number)?, is_last, headers: payload }
        }
        SYN_REPLY => Frame::SynReply { stream: nonzero(number)?, is_last, headers: payload },
        _ => Frame::Headers { stream: nonzero(number)?, is_last, headers: payload },
    })
}

/// Returns the stream of a frame.
fn nonzero(number: u32) -> Result<u32, FrameError> {
    match number & STREAM_MASK {
        0 => Err(FrameError::StreamZero),
        stream => Ok(stream),
    }
}

/// Encodes the head of a data frame. The frame has `length` bytes, at most 2^24 - 1.
pub fn data_head(stream: u32, is_last: bool, length: usize) -> [u8; HEAD_BYTES] {
    let [a, b, c, d] = (stream & STREAM_MASK).to_be_bytes();
    let [flags, high, middle, low] = flags_and_length(is_last, length);
    [a, b, c, d, flags, high, middle, low]
}

/// Encodes SYN_STREAM with a compressed header block.
pub fn syn_stream(stream: u32, headers: &[u8]) -> Bytes {
    let mut payload = BytesMut::with_capacity(10 + headers.len());
    payload.put_u32(stream);
    // No associated stream, the highest priority, no slot.
    payload.put_bytes(0, 6);
    payload.put_slice(headers);
    control(SYN_STREAM, &payload)
}

/// Encodes SYN_REPLY with a compressed header block.
pub fn syn_reply(stream: u32, headers: &[u8]) -> Bytes {
    control(SYN_REPLY, &[&stream.to_be_bytes()[..], headers].concat())
}

/// Encodes RST_STREAM. `status` is not 0.
pub fn reset(stream: u32, status: u32) -> Bytes {
    control(RST_STREAM, &[stream.to_be_bytes(), status.to_be_bytes()].concat())
}

/// Encodes PING.
pub fn ping(id: u32) -> Bytes {
    control(PING, &id.to_be_bytes())
}

/// Encodes GOAWAY with the last accepted stream of the peer and the status OK.
pub fn go_away(last_stream: u32) -> Bytes {
    control(GOAWAY, &[last_stream.to_be_bytes(), [0; 4]].concat())
}

fn control(kind: u16, payload: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(HEAD_BYTES + payload.len());
    frame.put_u16(CONTROL_BIT | VERSION);
    frame.put_u16(kind);
    frame.put_slice(&flags_and_length(false, payload.len()));
    frame.put_slice(payload);
    frame.freeze()
}

fn flags_and_length(is_last: bool, length: usize) -> [u8; 4] {
    let [_, high, middle, low] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    [if is_last { FLAG_FIN } else { 0 }, high, middle, low]
}
