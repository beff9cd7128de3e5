//! Channels of exec and attach in WebSocket messages: the first byte of a message is its channel.
//!
//! In version 5, a message of [`CLOSE`] and a channel ends this channel.

use bytes::{Buf as _, Bytes};

use super::websocket::{self, ClientFrame};

/// Standard input, from the client.
pub const STDIN: u8 = 0;
/// Standard output, to the client.
pub const STDOUT: u8 = 1;
/// Standard error, to the client.
pub const STDERR: u8 = 2;
/// The Status at the end, to the client.
pub const ERROR: u8 = 3;
/// Sizes of the terminal in JSON, from the client.
pub const RESIZE: u8 = 4;
/// The signal that a channel ends.
pub const CLOSE: u8 = 255;

/// A client sent a close signal that names no channel, or more than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("close signal does not name one channel")]
pub struct InvalidClose;

/// A part of what a client sends on its channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChannelEvent {
    /// Bytes of a channel.
    Data(u8, Bytes),
    /// The end of a channel.
    End(u8),
    /// Nothing that concerns a channel.
    Nothing,
}

/// Assigns pieces of messages to channels.
#[derive(Debug, Default)]
pub struct ChannelReader {
    /// The channel of the message whose pieces arrive; None before the first byte of a message.
    channel: Option<u8>,
    /// Whether a close signal has named its channel.
    has_closed: bool,
}

impl ChannelReader {
    /// Takes a piece of a message.
    ///
    /// # Errors
    ///
    /// A close signal is invalid.
    pub fn read(&mut self, is_first: bool, mut data: Bytes) -> Result<ChannelEvent, InvalidClose> {
        if is_first {
            (self.channel, self.has_closed) = (None, false);
        }
        if self.channel.is_none() {
            self.channel = data.try_get_u8().ok();
        }
        match self.channel {
            None => Ok(ChannelEvent::Nothing),
            _ if data.is_empty() => Ok(ChannelEvent::Nothing),
            Some(CLOSE) => match (&data[..], std::mem::replace(&mut self.has_closed, true)) {
                (&[channel @ ..=RESIZE], false) => Ok(ChannelEvent::End(channel)),
                _ => Err(InvalidClose),
            },
            Some(channel) => Ok(ChannelEvent::Data(channel, data)),
        }
    }

    /// Takes a frame of a client. Close frames and pings concern no channel.
    ///
    /// # Errors
    ///
    /// A close signal is invalid.
    pub fn read_frame(&mut self, frame: ClientFrame) -> Result<ChannelEvent, InvalidClose> {
        match frame {
            ClientFrame::Message { is_first, data } => self.read(is_first, data),
            ClientFrame::Ping(_) | ClientFrame::Close => Ok(ChannelEvent::Nothing),
        }
    }
}

/// Encodes the head of a message on a channel, with `length` bytes of data.
pub fn message_head(channel: u8, length: usize) -> Bytes {
    [&websocket::binary_head(1 + length)[..], &[channel]].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_in_pieces_belong_to_channel_of_first_byte() {
        let data = |channel, data: &'static [u8]| ChannelEvent::Data(channel, Bytes::from_static(data));
        let mut reader = ChannelReader::default();
        for (is_first, piece, expected) in [
            (true, &b"\x00input"[..], Ok(data(0, b"input"))),
            (false, b" more", Ok(data(0, b" more"))),
            (true, b"", Ok(ChannelEvent::Nothing)),
            (false, b"\x04", Ok(ChannelEvent::Nothing)),
            (false, b"{}", Ok(data(4, b"{}"))),
            (true, b"\x09unknown", Ok(data(9, b"unknown"))),
            (true, b"\xff", Ok(ChannelEvent::Nothing)),
            (false, b"\x00", Ok(ChannelEvent::End(0))),
            (true, b"\xff\x04", Ok(ChannelEvent::End(4))),
            (false, b"\x00", Err(InvalidClose)),
            (true, b"\xff\x00\x00", Err(InvalidClose)),
            (true, b"\xff\x05", Err(InvalidClose)),
        ] {
            let event = reader.read(is_first, Bytes::from_static(piece));
            assert_eq!(event, expected, "{piece:?}");
        }
    }

    #[test]
    fn message_head_counts_channel() {
        assert_eq!(&message_head(STDOUT, 4)[..], b"\x82\x05\x01");
        assert_eq!(&message_head(ERROR, 0)[..], b"\x82\x01\x03");
    }
}
