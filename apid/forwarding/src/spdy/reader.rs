//! Reads frames from a connection.

use std::io;

use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt as _};

use super::frame::{Decoder, Frame};

/// Size of the read buffer in bytes, and the largest piece of a data frame.
const READ_BUFFER_BYTES: usize = 8 * 1024;

/// Reads frames from a connection.
#[derive(Debug)]
pub struct FrameReader<R> {
    connection: R,
    buffer: BytesMut,
    decoder: Decoder,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    /// Wraps the read half of a connection.
    pub fn new(connection: R) -> Self {
        FrameReader { connection, buffer: BytesMut::new(), decoder: Decoder::default() }
    }

    /// Returns the next frame, or a piece of a data frame. Returns None after the peer has closed the connection.
    ///
    /// Dropping the future loses no bytes.
    ///
    /// # Errors
    ///
    /// `InvalidData` for a violation of the framing, `UnexpectedEof` for an end within a frame, and errors of the
    /// connection.
    pub async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            let decoded = self.decoder.decode(&mut self.buffer);
            if let Some(frame) = decoded.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
                return Ok(Some(frame));
            }
            // An idle connection keeps no buffer of its last frames.
            if self.buffer.is_empty() {
                self.buffer = BytesMut::new();
            }
            self.buffer.reserve(READ_BUFFER_BYTES);
            if self.connection.read_buf(&mut self.buffer).await? == 0 {
                let is_complete = self.buffer.is_empty() && self.decoder.is_between_frames();
                return if is_complete { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
        }
    }
}
